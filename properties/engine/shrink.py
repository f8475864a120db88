"""Smaller versions of an engine trace, the boldest first. Each is a guess; the minimiser tries whether it still fails."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from properties.blocks.operations import Operation
from properties.blocks.shrink import rename_in_order
from properties.engine.operations import DriveToIdle, EngineGeometry, Finish, ForkRequest, Launch, Submit

Trace = tuple[EngineGeometry, tuple[Operation, ...]]
_replace = msgspec.structs.replace
MOST_UNROLLED = 24
"""Steps that may stand for a closing drive to idle; a longer one is left as it is."""


def shrink(geometry: EngineGeometry, operations: Sequence[Operation]) -> Iterator[Trace]:
    """Propose smaller `(geometry, operations)`."""
    ops = tuple(operations)
    yield from ((geometry, smaller) for smaller in _unrolled(ops))
    yield from ((geometry, smaller) for smaller in _fewer(ops))
    yield from ((geometry, smaller) for smaller in _shorter(ops, geometry.block_size))
    yield from ((smaller, ops) for smaller in _simpler_geometry(geometry))
    yield from ((geometry, smaller) for smaller in _plainer(ops))
    yield from _smaller_blocks(geometry, ops)


def _unrolled(ops: tuple[Operation, ...]) -> Iterator[tuple[Operation, ...]]:
    """Steps in the place of the drive to idle, as few as do it."""
    if ops and isinstance(ops[-1], DriveToIdle):
        for count in range(MOST_UNROLLED + 1):
            yield (*ops[:-1], *(Launch() for _ in range(count)))


def _fewer(ops: tuple[Operation, ...]) -> Iterator[tuple[Operation, ...]]:
    """Without a chunk, without a request's whole life, without one operation, without two."""
    count = len(ops)
    size = count // 2
    while size > 2:
        for start in range(0, count, size):
            yield ops[:start] + ops[start + size :]
        size //= 2
    for name in sorted(
        {op.name for op in ops if isinstance(op, Submit)} | {op.child for op in ops if isinstance(op, ForkRequest)}
    ):
        yield tuple(op for op in ops if name not in (getattr(op, "name", None), getattr(op, "child", None)))
    for index in reversed(range(count)):
        yield ops[:index] + ops[index + 1 :]
    if count <= 16:
        for first in range(count):
            for second in range(first + 1, count):
                yield ops[:first] + ops[first + 1 : second] + ops[second + 1 :]
    for index, op in enumerate(ops):
        if isinstance(op, Launch) and op.hold:
            yield (*ops[:index], Launch(), *ops[index + 1 :])
        if isinstance(op, Finish) and op.index:
            yield (*ops[:index], Finish(), *ops[index + 1 :])
        if isinstance(op, Submit) and index and not isinstance(ops[index - 1], Submit):
            yield (*ops[: index - 1], op, ops[index - 1], *ops[index + 1 :])  # submissions first, steps after them


def _shorter(ops: tuple[Operation, ...], size: int) -> Iterator[tuple[Operation, ...]]:
    """One request with a shorter prompt or reply: half, a block less, one less from either end."""
    for index, op in enumerate(ops):
        for field in ("reply", "tokens"):
            tokens: tuple[int, ...] = getattr(op, field, ())
            count = len(tokens)
            for keep in sorted({1, count // 2, count - size, count - 1}):
                if 0 < keep < count:
                    for cut in (tokens[:keep], tokens[count - keep :]):
                        yield (*ops[:index], _replace(op, **{field: cut}), *ops[index + 1 :])


def _simpler_geometry(geometry: EngineGeometry) -> Iterator[EngineGeometry]:
    if geometry.window is not None:
        yield _replace(geometry, window=None, num_sinks=0)
    if geometry.num_sinks:
        yield _replace(geometry, num_sinks=0)
    if geometry.hash_bits is not None:
        yield _replace(geometry, hash_bits=None)
    if geometry.num_host_blocks:
        yield _replace(geometry, num_host_blocks=0)
        yield _replace(geometry, num_host_blocks=geometry.num_host_blocks - 1)
    if geometry.max_in_flight > 1:
        yield _replace(geometry, max_in_flight=geometry.max_in_flight - 1)
    for num_blocks in (geometry.num_blocks // 2, geometry.num_blocks - 1):
        if 0 < num_blocks < geometry.num_blocks:
            yield _replace(geometry, num_blocks=num_blocks)
    if geometry.max_rows > 1:
        yield _replace(geometry, max_rows=geometry.max_rows - 1)
    for budget in (64, 32, 16, geometry.max_tokens_per_step - 1):
        if geometry.max_rows <= budget < geometry.max_tokens_per_step:
            yield _replace(geometry, max_tokens_per_step=budget)


def _plainer(ops: tuple[Operation, ...]) -> Iterator[tuple[Operation, ...]]:
    """Without salts, with smaller tokens, with names in order of appearance."""
    for index, op in enumerate(ops):
        if isinstance(op, ForkRequest) and any(op.reply):
            yield (*ops[:index], _replace(op, reply=(0,) * len(op.reply)), *ops[index + 1 :])
        if not isinstance(op, Submit):
            continue
        if op.salt is not None:
            yield (*ops[:index], _replace(op, salt=None), *ops[index + 1 :])
        for field in ("tokens", "reply"):
            tokens: tuple[int, ...] = getattr(op, field)
            if any(tokens):
                yield (*ops[:index], _replace(op, **{field: (0,) * len(tokens)}), *ops[index + 1 :])
            for position, token in enumerate(tokens[:64]):
                if token:
                    plain = (*tokens[:position], 0, *tokens[position + 1 :])
                    yield (*ops[:index], _replace(op, **{field: plain}), *ops[index + 1 :])
    renamed = rename_in_order(ops)
    if renamed != ops:
        yield renamed


def _smaller_blocks(geometry: EngineGeometry, ops: tuple[Operation, ...]) -> Iterator[Trace]:
    """The same trace with smaller blocks, its prompts and replies cut in proportion."""
    for size in (1, 2, 3, 4):
        if size < geometry.block_size:
            smaller = _replace(geometry, block_size=size)
            yield smaller, ops
            yield smaller, tuple(_scaled(op, size, geometry.block_size) for op in ops)


def _scaled(op: Operation, size: int, old: int) -> Operation:
    """Prompt and reply with the first `size` tokens of each of their blocks: blocks that were equal stay equal."""
    if not isinstance(op, Submit):
        return op
    run = op.tokens + op.reply
    kept = [position for position in range(len(run)) if position % old < size]
    prompt = sum(position < len(op.tokens) for position in kept)
    if prompt == len(kept):  # something must be left to sample
        kept.append(len(run) - 1)
    return _replace(op, tokens=tuple(run[p] for p in kept[:prompt]), reply=tuple(run[p] for p in kept[prompt:]))
