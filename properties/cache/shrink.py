"""Smaller versions of a cache trace: those of the blocks level, batches with fewer rows, and plainer tensors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from properties.blocks.operations import Admit, Allocate, Append, Operation
from properties.blocks.shrink import shrink as shrink_blocks
from properties.cache.operations import BatchStep, CacheGeometry

Trace = tuple[CacheGeometry, tuple[Operation, ...]]
_PLAIN: dict[str, object] = {
    "strided": False,
    "num_layers": 1,
    "ratio": 1,
    "num_kv_heads": 1,
    "head_size": 16,
    "dtype": "float32",
    "poison_k": "zero",
    "poison_v": "zero",
    "seed": 0,
}


def shrink(geometry: CacheGeometry, operations: Sequence[Operation]) -> Iterator[Trace]:
    """Propose smaller `(geometry, operations)`: plainer tensors first, which make every later try cheaper."""
    ops = tuple(operations)
    for index, op in enumerate(ops):
        if isinstance(op, BatchStep):
            for smaller in _smaller_batches(op):
                yield geometry, (*ops[:index], smaller, *ops[index + 1 :])
    yield from ((geometry, smaller) for smaller in _admitted(ops))
    for field, value in _PLAIN.items():
        if getattr(geometry, field) != value:
            yield replace(geometry, **{field: value}), ops
    yield from shrink_blocks(geometry, ops)  # type: ignore[misc]


def _admitted(ops: tuple[Operation, ...]) -> Iterator[tuple[Operation, ...]]:
    """An admission in place of an allocation and the batch that computes it alone."""
    for index, op in enumerate(ops):
        if isinstance(op, BatchStep) and len(op.names) == 1:
            for before, first in enumerate(ops[:index]):
                if isinstance(first, Allocate) and first.name == op.names[0]:
                    admit = Admit(first.name, first.tokens, first.salt)
                    yield (*ops[:before], admit, *ops[before + 1 : index], *ops[index + 1 :])


def _smaller_batches(op: BatchStep) -> Iterator[Operation]:
    """An append in its place, one row less, no padding, one token a row."""
    if len(op.names) == 1:
        yield Append(op.names[0], op.runs[0])
    for index in range(len(op.names)):
        if len(op.names) > 1:
            yield replace(
                op, names=op.names[:index] + op.names[index + 1 :], runs=op.runs[:index] + op.runs[index + 1 :]
            )
    if op.padding:
        yield replace(op, padding=0)
        yield replace(op, padding=op.padding - 1)
    if any(len(run) > 1 for run in op.runs):
        yield replace(op, runs=tuple(run[:1] for run in op.runs))
    if any(any(run) for run in op.runs):
        yield replace(op, runs=tuple((0,) * len(run) for run in op.runs))
