"""Batch preparation: the index arrays of a step, vectorised, from tables that persist between steps.

Every live request has a *lane*: a row of persistent arrays that hold its tokens and its block table. A step only writes what
is new in a lane, and builds its arrays by indexing. Shapes: `T` tokens computed, `R` rows, `W` blocks of the widest table.
"""

from collections.abc import Hashable, Sequence
from itertools import chain
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from paged_impl.scheduler import ScheduledRow

Name = Hashable
Ints = NDArray[np.int32]
_Int = TypeVar("_Int", np.int32, np.int64)
NO_BLOCK = -1
NO_SLOT = -1


class Batch(NamedTuple):
    """The index arrays of one step; valid until the next `prepare`, which may reuse their memory.

    `input_ids[T]` int64, `positions[T]`, `slot_mapping[T]` (-1 = padding, not written); `cu_seqlens_q[R + 1]`,
    `cu_seqlens_k[R + 1]` running sums; `context_lens[R]`: row r reads positions `[0, context_lens[r])`;
    `block_tables[R, W]`, -1 behind the blocks of a request. All but `input_ids` are int32.
    """

    input_ids: NDArray[np.int64]
    positions: Ints
    slot_mapping: Ints
    cu_seqlens_q: Ints
    cu_seqlens_k: Ints
    max_seqlen_q: int
    max_seqlen_k: int
    context_lens: Ints
    block_tables: Ints


class Lacking(NamedTuple):
    """What a step needs and the lanes do not have: rows whose tokens, and `(name, blocks known)` of tables that grew.

    `lanes[i]` and `num_blocks[i]` are those of `blocks[i]`, as arrays.
    """

    tokens: list[ScheduledRow]
    blocks: list[tuple[Name, int]]
    lanes: NDArray[np.intp]
    num_blocks: Ints


class BatchPreparer:
    """Persistent lanes for requests of up to `max_tokens` tokens each: `num_lanes` of them, and more when they run out."""

    def __init__(self, num_lanes: int, max_tokens: int, block_size: int) -> None:
        for name, value in (("num_lanes", num_lanes), ("max_tokens", max_tokens), ("block_size", block_size)):
            if value < 1:
                raise ValueError(f"{name}={value} is too small: give at least 1")
        self.block_size = block_size
        max_blocks = -(-max_tokens // block_size)
        self._tokens: NDArray[np.int64] = np.zeros((num_lanes, max_tokens), np.int64)
        self._tables: Ints = np.full((num_lanes, max_blocks), NO_BLOCK, np.int32)
        self._gathered: Ints = np.full((num_lanes, max_blocks), NO_BLOCK, np.int32)
        self._num_tokens: Ints = np.zeros(num_lanes, np.int32)
        self._num_blocks: Ints = np.zeros(num_lanes, np.int32)
        self._lane_of: dict[Name, int] = {}
        self._free_lanes = list(range(num_lanes - 1, -1, -1))
        self._ranges = _Ranges.of((), {})

    # ---- what a request has

    def add(self, name: Name) -> None:
        """Give a request a lane. Raises `ValueError` for a name that has one."""
        if name in self._lane_of:
            raise ValueError(f"request {name!r} has a lane already: remove it first")
        if not self._free_lanes:
            self._double()
        self._lane_of[name] = self._free_lanes.pop()

    def has(self, name: Name) -> bool:
        """Whether a request has a lane."""
        return name in self._lane_of

    def num_tokens(self, name: Name) -> int:
        """How many tokens of a request are stored."""
        return int(self._num_tokens[self._lane_of[name]])

    def remove(self, name: Name) -> None:
        """Take the lane back, and clear its table: the next request must not see it."""
        lane = self._lane_of.pop(name)
        self._set_blocks(lane, 0, ())
        self._num_tokens[lane] = 0
        self._free_lanes.append(lane)

    def add_tokens(self, name: Name, tokens: Sequence[int]) -> None:
        """More tokens at the end of a request. Raises `ValueError` beyond `max_tokens`."""
        lane = self._lane_of[name]
        first = int(self._num_tokens[lane])
        stop = first + len(tokens)
        if stop > self._tokens.shape[1]:
            raise ValueError(f"request {name!r} has {stop} tokens, the most is max_tokens={self._tokens.shape[1]}")
        self._tokens[lane, first:stop] = tokens
        self._num_tokens[lane] = stop

    def add_sampled(self, sampled: Sequence[tuple[Name, int]]) -> None:
        """One more token at the end of each of these requests, all at once. Raises `ValueError` beyond `max_tokens`."""
        lane_of = self._lane_of
        lanes = np.fromiter([lane_of[name] for name, _ in sampled], np.intp, len(sampled))
        positions = self._num_tokens[lanes]
        if positions.max(initial=0) >= self._tokens.shape[1]:
            raise ValueError(f"a request has more than max_tokens={self._tokens.shape[1]} tokens")
        self._tokens[lanes, positions] = [token for _, token in sampled]
        self._num_tokens[lanes] = positions + 1

    def num_blocks(self, name: Name) -> int:
        """Length of the block table that is stored for a request."""
        return int(self._num_blocks[self._lane_of[name]])

    def set_table(self, name: Name, table: Sequence[int]) -> None:
        """Replace the whole block table: after an admission or a swap."""
        self._set_blocks(self._lane_of[name], 0, table)

    def add_blocks(self, lacking: Lacking, blocks: Sequence[Sequence[int]]) -> None:
        """The tables of `lacking.blocks` grew at their ends, each by the blocks at its place in `blocks`, all at once.

        Raises `ValueError` beyond `max_tokens`, before anything is changed.
        """
        lanes, firsts = lacking.lanes, lacking.num_blocks
        counts = np.fromiter(map(len, blocks), np.int32, len(lanes))
        stops = firsts + counts
        if stops.max(initial=0) > self._tables.shape[1]:
            raise ValueError(f"a table of {stops.max()} blocks; max_tokens allows {self._tables.shape[1]}")
        flat = np.fromiter(chain.from_iterable(blocks), np.int32, int(counts.sum()))
        if len(flat) == len(lanes) and counts.min(initial=1) == 1:  # decode: one block each
            self._tables[lanes, firsts] = flat
        else:
            starts = np.repeat(_running_sum(counts)[:-1] - firsts, counts)
            self._tables[np.repeat(lanes, counts), np.arange(len(flat), dtype=np.int32) - starts] = flat
        self._num_blocks[lanes] = stops

    def _set_blocks(self, lane: int, first: int, blocks: Sequence[int]) -> None:
        stop = first + len(blocks)
        if stop > self._tables.shape[1]:
            raise ValueError(f"a table of {stop} blocks; max_tokens allows {self._tables.shape[1]}")
        self._tables[lane, first:stop] = blocks
        self._tables[lane, stop : max(stop, int(self._num_blocks[lane]))] = NO_BLOCK
        self._num_blocks[lane] = stop

    def _double(self) -> None:
        old = len(self._num_tokens)
        self._tokens = np.concatenate([self._tokens, np.zeros_like(self._tokens)])
        self._tables = np.concatenate([self._tables, np.full_like(self._tables, NO_BLOCK)])
        self._gathered = np.concatenate([self._gathered, np.full_like(self._gathered, NO_BLOCK)])
        self._num_tokens = np.concatenate([self._num_tokens, np.zeros_like(self._num_tokens)])
        self._num_blocks = np.concatenate([self._num_blocks, np.zeros_like(self._num_blocks)])
        self._free_lanes += range(2 * old - 1, old - 1, -1)

    # ---- a step

    def behind(self, rows: Sequence[ScheduledRow]) -> Lacking:
        """What the lanes lack for what the step computes: to be added before `prepare`."""
        ranges = self._ranges = _Ranges.of(rows, self._lane_of)
        num_blocks = self._num_blocks[ranges.lanes]
        lacks_tokens = np.flatnonzero(ranges.stops > self._num_tokens[ranges.lanes]).tolist()
        lacks_blocks = np.flatnonzero(ranges.stops > num_blocks * self.block_size)
        known = num_blocks[lacks_blocks]
        names = [rows[index].name for index in lacks_blocks.tolist()]
        return Lacking(
            [rows[index] for index in lacks_tokens],
            list(zip(names, known.tolist(), strict=True)),
            ranges.lanes[lacks_blocks],
            known,
        )

    def prepare(self, rows: Sequence[ScheduledRow], num_padding_tokens: int = 0) -> Batch:
        """The arrays of a step, rows in order; padding tokens stand at the end of the per-token arrays.

        Every row's tokens and table must be there; O(T + R * W) array work, no loop over tokens or blocks.
        """
        if self._ranges.rows is not rows:
            self._ranges = _Ranges.of(rows, self._lane_of)
        num_rows, lanes, starts, stops = len(rows), self._ranges.lanes, self._ranges.starts, self._ranges.stops
        counts = stops - starts
        cu_q, cu_k = _running_sum(counts), _running_sum(stops)
        most = int(counts.max(initial=0))
        if most == 1 and int(cu_q[-1]) == num_rows:  # decode: one position a row
            token_lanes, positions = lanes, starts
        else:
            token_lanes = np.repeat(lanes, counts)
            positions = np.arange(cu_q[-1], dtype=np.int32) - np.repeat(cu_q[:-1] - starts, counts)
        logical, offset = np.divmod(positions, self.block_size)
        slots = self._tables[token_lanes, logical] * self.block_size + offset
        return Batch(
            input_ids=_padded(self._tokens[token_lanes, positions], num_padding_tokens, 0),
            positions=_padded(positions, num_padding_tokens, 0),
            slot_mapping=_padded(slots, num_padding_tokens, NO_SLOT),
            cu_seqlens_q=cu_q,
            cu_seqlens_k=cu_k,
            max_seqlen_q=most,
            max_seqlen_k=int(stops.max(initial=0)),
            context_lens=stops,
            block_tables=self._tables_of(lanes),
        )

    def _tables_of(self, lanes: NDArray[np.intp]) -> Ints:
        """The tables of the rows, as wide as the longest, in memory that is reused."""
        width = int(self._num_blocks[lanes].max(initial=0))
        out = self._gathered[: len(lanes)]
        np.take(self._tables, lanes, axis=0, out=out, mode="clip")  # "clip": no buffering; lanes are valid
        return out[:, :width]


class _Ranges(NamedTuple):
    """The rows of a step as arrays: `lanes[R]`, `starts[R]`, `stops[R]`."""

    rows: Sequence[ScheduledRow]
    lanes: NDArray[np.intp]
    starts: Ints
    stops: Ints

    @classmethod
    def of(cls, rows: Sequence[ScheduledRow], lane_of: dict[Name, int]) -> "_Ranges":
        num_rows = len(rows)
        names, starts, stops, _ = zip(*rows, strict=True) if rows else ((), (), (), ())
        return cls(
            rows,
            np.fromiter(map(lane_of.__getitem__, names), np.intp, num_rows),
            np.fromiter(starts, np.int32, num_rows),
            np.fromiter(stops, np.int32, num_rows),
        )


def _running_sum(values: Ints) -> Ints:
    """0, and the sums of the first 1, 2, ... values."""
    sums = np.zeros(len(values) + 1, np.int32)
    np.cumsum(values, out=sums[1:])
    return sums


def _padded(values: NDArray[_Int], num_padding: int, value: int) -> NDArray[_Int]:
    return values if not num_padding else np.concatenate([values, np.full(num_padding, value, values.dtype)])
