"""Smaller versions of a blocks trace, the boldest first. Each is a guess; the minimiser tries whether it still fails."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from properties.blocks.exchange import one_for_two, plain_returns
from properties.blocks.guess import guesses
from properties.blocks.operations import Admit, Allocate, Append, Computed, Fork, Geometry, Operation, Truncate

Trace = tuple[Geometry, tuple[Operation, ...]]


def shrink(geometry: Geometry, operations: Sequence[Operation]) -> Iterator[Trace]:
    """Propose smaller `(geometry, operations)`."""
    ops = tuple(operations)
    yield from ((geometry, smaller) for smaller in _fewer(ops))
    yield from ((geometry, smaller) for smaller in _joined(ops))
    yield from ((geometry, smaller) for smaller in _shorter(ops, geometry.block_size))
    yield from ((smaller, ops) for smaller in _simpler_geometry(geometry))
    yield from _smaller_pool(geometry, ops)
    yield from ((geometry, smaller) for smaller in _plainer(ops))
    yield from _smaller_blocks(geometry, ops)
    yield from ((geometry, smaller) for smaller in plain_returns(ops))
    yield from ((geometry, smaller) for smaller in one_for_two(ops))
    yield from ((geometry, guess) for guess in guesses(geometry, ops))
    yield from _wider_blocks(geometry, ops)


def _names(op: Operation) -> set[str]:
    return {getattr(op, "name", ""), getattr(op, "child", "")} - {""}


def _fewer(ops: tuple[Operation, ...]) -> Iterator[tuple[Operation, ...]]:
    """Without a chunk, without a sequence's whole life, without one step, without two."""
    count = len(ops)
    size = count // 2
    while size > 2:
        for start in range(0, count, size):
            yield ops[:start] + ops[start + size :]
        size //= 2
    for name in sorted({name for op in ops for name in _names(op)}):
        yield tuple(op for op in ops if name not in _names(op))
    for index in reversed(range(count)):
        yield ops[:index] + ops[index + 1 :]
    if count <= 14:
        for first in range(count):
            for second in range(first + 1, count):
                yield ops[:first] + ops[first + 1 : second] + ops[second + 1 :]


def _joined(ops: tuple[Operation, ...]) -> Iterator[tuple[Operation, ...]]:
    """Two steps as one: appends in a row, an admission and its append, a split admission, a preemption and its return."""
    for index, op in enumerate(ops):
        for later in range(index + 1, min(index + 6, len(ops))):
            other = ops[later]
            if getattr(other, "name", None) != getattr(op, "name", ""):
                continue
            joined = _join(op, other)
            if joined is not None:
                yield (*ops[:index], joined, *ops[index + 1 : later], *ops[later + 1 :])
                yield (*ops[:index], *ops[index + 1 : later], joined, *ops[later + 1 :])
            break
    for index, op in enumerate(ops):  # a fork from the parent is often as good as a repeat
        if isinstance(op, Fork):
            renamed = tuple(_rename(later, op.child, op.name) for later in ops[index + 1 :])
            yield ops[:index] + renamed
            without_parent = (later for later in ops[index + 1 :] if getattr(later, "name", None) != op.name)
            yield ops[:index] + tuple(_rename(later, op.child, op.name) for later in without_parent)


def _join(op: Operation, other: Operation) -> Operation | None:
    if isinstance(other, Append) and isinstance(op, Admit | Append):
        return msgspec.structs.replace(op, tokens=op.tokens + other.tokens)
    if isinstance(op, Allocate) and isinstance(other, Computed) and other.upto >= len(op.tokens):
        return Admit(op.name, op.tokens, op.salt)
    if isinstance(op, Computed) and isinstance(other, Computed):
        return other
    return None


def _rename(op: Operation, old: str, new: str) -> Operation:
    if getattr(op, "name", None) == old:
        op = msgspec.structs.replace(op, name=new)
    return op


def _shorter(ops: tuple[Operation, ...], size: int) -> Iterator[tuple[Operation, ...]]:
    """One step with fewer tokens: half, a block less, one less from either end."""
    for index, op in enumerate(ops):
        if isinstance(op, Admit | Allocate | Append):
            count = len(op.tokens)
            for keep in sorted({count // 2, count - size, count - 1}):
                if 0 < keep < count:
                    for tokens in (op.tokens[:keep], op.tokens[count - keep :]):
                        yield (*ops[:index], msgspec.structs.replace(op, tokens=tokens), *ops[index + 1 :])
        if isinstance(op, Truncate) and op.length > 1:
            for length in {1, op.length // 2, op.length - 1} - {op.length}:
                yield (*ops[:index], msgspec.structs.replace(op, length=length), *ops[index + 1 :])


def _simpler_geometry(geometry: Geometry) -> Iterator[Geometry]:
    replace = msgspec.structs.replace
    if geometry.window is not None:
        yield replace(geometry, window=None, num_sinks=0)
    if geometry.num_sinks:
        yield replace(geometry, num_sinks=0)
    if geometry.hash_bits is not None:
        yield replace(geometry, hash_bits=None)
    if geometry.num_host_blocks:
        yield replace(geometry, num_host_blocks=0)
        yield replace(geometry, num_host_blocks=geometry.num_host_blocks - 1)
    for num_blocks in (geometry.num_blocks // 2, geometry.num_blocks - 1):
        if 0 < num_blocks < geometry.num_blocks:
            yield replace(geometry, num_blocks=num_blocks)


def _smaller_pool(geometry: Geometry, ops: tuple[Operation, ...]) -> Iterator[Trace]:
    """One block less in the pool and in what must fill it: a sequence, or a block out of every run, or out of one."""
    if geometry.num_blocks < 2:
        return
    size = geometry.block_size
    smaller = msgspec.structs.replace(geometry, num_blocks=geometry.num_blocks - 1)
    runs = [(index, op.tokens) for index, op in enumerate(ops) if isinstance(op, Admit | Allocate | Append)]
    for name in sorted({name for op in ops for name in _names(op)}):
        yield smaller, tuple(op for op in ops if name not in _names(op))
    longest = max((len(tokens) for _, tokens in runs), default=0)
    for start in range(0, min(longest, 8 * size), size):
        yield smaller, tuple(_without(op, start, size) for op in ops)
    for index, tokens in runs:
        if len(tokens) > size:
            for start in {0, (len(tokens) - 1) // size * size, len(tokens) - size}:
                yield smaller, (*ops[:index], _without(ops[index], start, size), *ops[index + 1 :])


def _without(op: Operation, start: int, size: int) -> Operation:
    """The operation without one block of its tokens; unchanged where it would have none left."""
    if isinstance(op, Admit | Allocate | Append):
        tokens = op.tokens[:start] + op.tokens[start + size :]
        return _with_tokens(op, tokens) if tokens else op
    return op


def _plainer(ops: tuple[Operation, ...]) -> Iterator[tuple[Operation, ...]]:
    """Without salts, with smaller tokens, with names in order of appearance."""
    for index, op in enumerate(ops):
        if getattr(op, "salt", None) is not None:
            yield (*ops[:index], msgspec.structs.replace(op, salt=None), *ops[index + 1 :])
    used = sorted({token for op in ops for token in getattr(op, "tokens", ())})
    if used and used[-1] > len(used) - 1:
        order = {token: rank for rank, token in enumerate(used)}
        yield tuple(_with_tokens(op, tuple(order[t] for t in op.tokens)) if hasattr(op, "tokens") else op for op in ops)
    for index, op in enumerate(ops):
        tokens: tuple[int, ...] = getattr(op, "tokens", ())
        if len(tokens) > 64:
            continue
        for position, token in enumerate(tokens):
            if token:
                plain = (*tokens[:position], 0, *tokens[position + 1 :])
                yield (*ops[:index], _with_tokens(op, plain), *ops[index + 1 :])
    renamed = rename_in_order(ops)
    if renamed != ops:
        yield renamed


def _with_tokens(op: Operation, tokens: tuple[int, ...]) -> Operation:
    return msgspec.structs.replace(op, tokens=tokens)


def rename_in_order(ops: Sequence[Operation]) -> tuple[Operation, ...]:
    """Call the sequences A, B, C in the order in which they appear."""
    order: dict[str, str] = {}
    renamed = []
    for op in ops:
        changes = {}
        for field in ("name", "child"):
            old = getattr(op, field, None)
            if old is not None:
                changes[field] = order.setdefault(old, chr(65 + len(order)) if len(order) < 26 else f"S{len(order)}")
        renamed.append(msgspec.structs.replace(op, **changes) if changes else op)
    return tuple(renamed)


def _smaller_blocks(geometry: Geometry, ops: tuple[Operation, ...]) -> Iterator[Trace]:
    """The same trace with smaller blocks, its runs cut in proportion."""
    for size in (1, 2, 3, 4):
        if size < geometry.block_size:
            smaller = msgspec.structs.replace(geometry, block_size=size)
            yield smaller, ops
            yield smaller, tuple(_scaled(op, size, geometry.block_size) for op in ops)
            yield smaller, tuple(_sampled(op, size, geometry.block_size) for op in ops)


def _wider_blocks(geometry: Geometry, ops: tuple[Operation, ...]) -> Iterator[Trace]:
    """Blocks of two tokens for those of one, if that saves a step: a block that is shared half full is a fault in itself."""
    if geometry.block_size == 1:
        wider = msgspec.structs.replace(geometry, block_size=2)
        yield from ((wider, ops[:index] + ops[index + 1 :]) for index in range(len(ops)))


def _scaled(op: Operation, size: int, old: int) -> Operation:
    if isinstance(op, Admit | Allocate | Append):
        full, rest = divmod(len(op.tokens), old)
        return _with_tokens(op, op.tokens[: max(1, full * size + min(rest, size - 1))])
    return op


def _sampled(op: Operation, size: int, old: int) -> Operation:
    """The first tokens of each block stand for the block: runs that met at a block's start still meet."""
    if isinstance(op, Admit | Allocate | Append):
        starts = range(0, len(op.tokens), old)
        return _with_tokens(op, tuple(token for start in starts for token in op.tokens[start : start + old][:size]))
    return op
