"""A step of the model over a paged cache: positions of sequences, and the index tensors that follow from the block tables."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paged_impl.block_manager import Copy

Name = Hashable
NO_BLOCK = -1
NO_SLOT = -1
TABLE_WIDTH_MULTIPLE = 16  # rows of the table start on 64 bytes, so that kernels may fetch ids 16 bytes at a time


class Row(NamedTuple):
    """Positions `[start, stop)` of one sequence; attention of each reads every position up to itself."""

    name: Name
    start: int
    stop: int


class Located(NamedTuple):
    """A row, the tokens of its positions, and the block table of its sequence (-1 = released by the window)."""

    row: Row
    tokens: Sequence[int]
    table: Sequence[int]


@dataclass(frozen=True)
class Step:
    """One forward pass, from `PagedKVCache.plan` or `plan_query`. `T` tokens of all rows one after the other, then padding.

    `input_ids[T + pad]`, `positions[T + pad]`, `slot_mapping[T + pad]` (-1 = padding) int64; `cu_seqlens_q[R + 1]`,
    `context_lens[R]` int32; `block_table[R, W]` int32, filled up with a block of the row's own. All on the device of the
    cache. `writes`: the rows are computed now, and not only read. `version` is that of the tables it was made from.
    `layers_written` grows with each `PagedKVCache.write`.
    """

    rows: tuple[Row, ...]
    num_tokens: int
    num_padding: int
    writes: bool
    version: int
    input_ids: Tensor
    positions: Tensor
    slot_mapping: Tensor
    cu_seqlens_q: Tensor
    context_lens: Tensor
    block_table: Tensor
    max_query_len: int
    max_context_len: int
    layers_written: set[int] = field(default_factory=set)

    @property
    def last_tokens(self) -> Tensor:
        """int64 `[R]`: the place of each row's last token among the tokens, where its next token is sampled."""
        return self.cu_seqlens_q[1:].long() - 1


def build(
    located: Sequence[Located], block_size: int, num_padding: int, *, writes: bool, version: int, device: torch.device
) -> Step:
    """The step over these rows. Every position of a row must have a block."""
    rows = tuple(item.row for item in located)
    counts = [row.stop - row.start for row in rows]
    positions = [np.arange(row.start, row.stop, dtype=np.int64) for row in rows]
    tables = [np.asarray(item.table, dtype=np.int64) for item in located]
    slots = [t[p // block_size] * block_size + p % block_size for t, p in zip(tables, positions, strict=True)]
    width = max([len(table) for table in tables], default=1)
    block_table = np.empty((len(rows), -(-width // TABLE_WIDTH_MULTIPLE) * TABLE_WIDTH_MULTIPLE), np.int32)
    for index, table in enumerate(tables):
        block_table[index] = own = int(table.max())  # released and absent blocks: one of its own, whatever reads it
        block_table[index, : len(table)] = np.where(table == NO_BLOCK, own, table)

    def on_device(values: Sequence[NDArray[np.int64]], fill: int) -> Tensor:
        padded = np.concatenate([*values, np.full(num_padding, fill, np.int64)])
        return torch.from_numpy(padded).to(device, non_blocking=True)

    def int32(values: Sequence[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int32).to(device, non_blocking=True)

    return Step(
        rows=rows,
        num_tokens=sum(counts),
        num_padding=num_padding,
        writes=writes,
        version=version,
        input_ids=on_device([np.asarray(item.tokens, dtype=np.int64) for item in located], 0),
        positions=on_device(positions, 0),
        slot_mapping=on_device(slots, NO_SLOT),
        cu_seqlens_q=int32(np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]).tolist()),
        context_lens=int32([row.stop for row in rows]),
        block_table=torch.from_numpy(block_table).to(device, non_blocking=True),
        max_query_len=max(counts, default=0),
        max_context_len=max([row.stop for row in rows], default=0),
    )


def independent(copies: Sequence[Copy]) -> Iterator[list[Copy]]:
    """Cut copies that run one after another into groups that may each run at once, in order.

    A group has one pair of memory spaces, reads nothing that it writes, and writes nothing twice.
    """
    group: list[Copy] = []
    written: set[tuple[str, int]] = set()
    for copy in copies:
        clash = (copy.src_space, copy.src_block) in written or (copy.dst_space, copy.dst_block) in written
        if group and (clash or copy[2:] != group[0][2:]):
            yield group
            group, written = [], set()
        group.append(copy)
        written.add((copy.dst_space, copy.dst_block))
    if group:
        yield group
