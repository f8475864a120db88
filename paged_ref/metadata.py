"""Batch metadata, one token at a time: what a step tells the store and the attention kernels.

A *row* is the part of one sequence that a step computes: positions `[start, stop)`, behind `[0, start)` whose KV is
written already (a cached prefix, or earlier chunks). Decode is a row of one position; a prompt in chunks is several rows
of several steps. Everything is plain integers, so that it can be read and compared with any implementation's arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

NO_BLOCK = -1
"""Block table entry of a logical block that has no physical one."""
NO_SLOT = -1
"""Slot of a padding token: nothing is written."""


@dataclass(frozen=True)
class BatchRow:
    """One row: the sequence's known `tokens`, the positions `[start, stop)` computed now, and its block `table`.

    Raises `ValueError` where the range is backward, reaches behind the tokens, or has a position without a block.
    """

    tokens: Sequence[int]
    start: int
    stop: int
    table: Sequence[int]

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.stop <= len(self.tokens):
            raise ValueError(
                f"row [{self.start}, {self.stop}) does not lie in the {len(self.tokens)} tokens of its sequence"
            )


@dataclass(frozen=True)
class BatchMetadata:
    """The metadata of one step. `T` tokens are computed for `R` rows; padding stands behind the real entries.

    `input_ids[T]`, `positions[T]`, `slot_mapping[T]` (-1 = padding); `cu_seqlens_q[R + 1]` and `cu_seqlens_k[R + 1]` are
    running sums of the tokens computed, and of the tokens read, row by row; `context_lens[R]` is how far each row reads,
    `[0, context)`; `block_tables[R]` are rows of one width, filled up with -1.
    """

    input_ids: tuple[int, ...]
    positions: tuple[int, ...]
    slot_mapping: tuple[int, ...]
    cu_seqlens_q: tuple[int, ...]
    cu_seqlens_k: tuple[int, ...]
    max_seqlen_q: int
    max_seqlen_k: int
    context_lens: tuple[int, ...]
    block_tables: tuple[tuple[int, ...], ...]


def slot_of(position: int, table: Sequence[int], block_size: int) -> int:
    """The physical slot of one position. Raises `ValueError` where the table has no block for it.

    >>> slot_of(5, [7, 2], 4)
    9
    """
    logical = position // block_size
    if logical >= len(table) or table[logical] == NO_BLOCK:
        raise ValueError(
            f"position {position} needs logical block {logical}, which the table {list(table)} does not have"
        )
    return table[logical] * block_size + position % block_size


def batch_metadata(rows: Sequence[BatchRow], block_size: int, *, num_padding_tokens: int = 0) -> BatchMetadata:
    """The metadata of one step over `rows`, in their order.

    `num_padding_tokens` are added to the per-token lists, as an engine with fixed batch shapes does: token 0, position 0,
    slot -1. They belong to no row.

    >>> rows = [BatchRow([5, 6, 7, 8], 2, 4, [9]), BatchRow([5, 6, 7, 8, 4], 4, 5, [9, 1])]
    >>> meta = batch_metadata(rows, 4)
    >>> meta.slot_mapping, meta.cu_seqlens_q, meta.cu_seqlens_k, meta.block_tables
    ((38, 39, 4), (0, 2, 3), (0, 4, 9), ((9, -1), (9, 1)))
    """
    input_ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    cu_q, cu_k = [0], [0]
    for row in rows:
        for position in range(row.start, row.stop):
            input_ids.append(row.tokens[position])
            positions.append(position)
            slots.append(slot_of(position, row.table, block_size))
        cu_q.append(cu_q[-1] + row.stop - row.start)
        cu_k.append(cu_k[-1] + row.stop)
    padding = range(num_padding_tokens)
    return BatchMetadata(
        input_ids=(*input_ids, *(0 for _ in padding)),
        positions=(*positions, *(0 for _ in padding)),
        slot_mapping=(*slots, *(NO_SLOT for _ in padding)),
        cu_seqlens_q=tuple(cu_q),
        cu_seqlens_k=tuple(cu_k),
        max_seqlen_q=max((row.stop - row.start for row in rows), default=0),
        max_seqlen_k=max((row.stop for row in rows), default=0),
        context_lens=tuple(row.stop for row in rows),
        block_tables=padded_tables([row.table for row in rows]),
    )


def padded_tables(tables: Sequence[Sequence[int]], width: int | None = None) -> tuple[tuple[int, ...], ...]:
    """Block tables of one width, the longest unless `width` is given, filled up with -1. Raises `ValueError` if too narrow.

    >>> padded_tables([[3], [1, 2]])
    ((3, -1), (1, 2))
    """
    longest = max((len(table) for table in tables), default=0)
    if width is None:
        width = longest
    if width < longest:
        raise ValueError(f"width={width} is below the longest table, {longest} blocks: give at least that")
    return tuple((*table, *(NO_BLOCK for _ in range(width - len(table)))) for table in tables)
