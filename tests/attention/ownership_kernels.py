"""Small Triton kernels that sum the keys of each sequence: right ones of many designs, and wrong ones whose result is right.

Each launcher gets a `Batch` and gives the sums, one a sequence. What is wrong in a wrong one is loaded and not used.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

SIZE = 4
"""Tokens of a block. A key is one number."""


@dataclass(frozen=True)
class Batch:
    """keys, values (which nobody reads): [blocks, SIZE]; tables: int32 [rows, width]; lens: int32 [rows]."""

    keys: Tensor
    values: Tensor
    tables: Tensor
    lens: Tensor

    def csr(self) -> tuple[Tensor, Tensor]:
        """Where the pages of each row begin, and all pages one after the other."""
        counts = [-(-n // SIZE) for n in self.lens.tolist()]
        pages = [block for row, count in zip(self.tables.tolist(), counts, strict=True) for block in row[:count]]
        return torch.tensor([0, *counts]).cumsum(0).int(), torch.tensor(pages, dtype=torch.int32)


@triton.jit
def sum_of(keys, stride_block, table, stride_entry, length, TILE: tl.constexpr, SIZE: tl.constexpr):
    total = tl.zeros((), tl.float32)
    for start in range(0, length, TILE):
        token = start + tl.arange(0, TILE)
        own = token < length
        block = tl.load(table + token // SIZE * stride_entry, mask=own, other=0).to(tl.int64)
        total += tl.sum(tl.load(keys + block * stride_block + token % SIZE, mask=own, other=0.0), 0)
    return total


@triton.jit
def one_row_kernel(
    out, keys, tables, lens, stride_block, stride_row, stride_entry, TILE: tl.constexpr, SIZE: tl.constexpr
):
    row = tl.program_id(0)
    table = tables + row * stride_row
    tl.store(out + row, sum_of(keys, stride_block, table, stride_entry, tl.load(lens + row), TILE, SIZE))


@triton.jit
def persistent_kernel(
    out, keys, tables, lens, num_rows, stride_block, stride_row, TILE: tl.constexpr, SIZE: tl.constexpr
):
    for row in range(tl.program_id(0), num_rows, tl.num_programs(0)):
        table = tables + row * stride_row
        tl.store(out + row, sum_of(keys, stride_block, table, 1, tl.load(lens + row), TILE, SIZE))


@triton.jit
def many_rows_kernel(
    out, keys, tables, lens, num_rows, longest, stride_block, stride_row, ROWS: tl.constexpr, SIZE: tl.constexpr
):
    """A tile of rows at once, token after token."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    length = tl.load(lens + row, mask=row < num_rows, other=0)
    total = tl.zeros((ROWS,), tl.float32)
    for token in range(longest):
        own = token < length
        block = tl.load(tables + row * stride_row + token // SIZE, mask=own, other=0).to(tl.int64)
        total += tl.load(keys + block * stride_block + token % SIZE, mask=own, other=0.0)
    tl.store(out + row, total, mask=row < num_rows)


@triton.jit
def prefetching_kernel(
    out, keys, tables, lens, num_rows, stride_block, stride_row, WIDTH: tl.constexpr, SIZE: tl.constexpr
):
    """The table of the next row is loaded while this one is summed; a block at a time."""
    column, offset = tl.arange(0, WIDTH), tl.arange(0, SIZE)
    block = tl.load(tables + column)
    for row in range(num_rows):
        upcoming = tl.load(tables + (row + 1) * stride_row + column, mask=row + 1 < num_rows, other=0)
        token = column[:, None] * SIZE + offset[None, :]
        place = block.to(tl.int64)[:, None] * stride_block + offset[None, :]
        tile = tl.load(keys + place, mask=token < tl.load(lens + row), other=0.0)
        tl.store(out + row, tl.sum(tl.sum(tile, 1), 0))
        block = upcoming


@triton.jit
def csr_kernel(out, keys, starts, pages, lens, stride_block, TILE: tl.constexpr, SIZE: tl.constexpr):
    row = tl.program_id(0)
    tl.store(out + row, sum_of(keys, stride_block, pages + tl.load(starts + row), 1, tl.load(lens + row), TILE, SIZE))


@triton.jit
def slots_kernel(out, keys, slots, starts, stride_block, TILE: tl.constexpr, SIZE: tl.constexpr):
    """Told the slot of every token."""
    row = tl.program_id(0)
    begin, end = tl.load(starts + row), tl.load(starts + row + 1)
    total = tl.zeros((), tl.float32)
    for start in range(begin, end, TILE):
        place = start + tl.arange(0, TILE)
        slot = tl.load(slots + place, mask=place < end, other=0)
        total += tl.sum(tl.load(keys + slot // SIZE * stride_block + slot % SIZE, mask=place < end, other=0.0), 0)
    tl.store(out + row, total)


@triton.jit
def shared_prefix_kernel(out, keys, tables, lens, prefix, num_rows, stride_block, stride_row, ROWS: tl.constexpr, TILE: tl.constexpr, SIZE: tl.constexpr):  # fmt: skip # noqa: E501
    """The common beginning once, through the table of the first row, for all rows; the rest through their own."""
    common = sum_of(keys, stride_block, tables, 1, prefix, TILE, SIZE)
    for row in range(num_rows):
        rest = sum_of(
            keys, stride_block, tables + row * stride_row + prefix // SIZE, 1, tl.load(lens + row) - prefix, TILE, SIZE
        )
        tl.store(out + row, common + rest)


@triton.jit
def queue_kernel(out, keys, tables, lens, queue_pages, queue_starts, num_rows, stride_block, stride_row, TILE: tl.constexpr, SIZE: tl.constexpr):  # fmt: skip # noqa: E501
    """The first row by its table; what is left over by a list of pages, in the same program."""
    tl.store(out, sum_of(keys, stride_block, tables, 1, tl.load(lens), TILE, SIZE))
    for row in range(1, num_rows):
        pages = queue_pages + tl.load(queue_starts + row)
        tl.store(out + row, sum_of(keys, stride_block, pages, 1, tl.load(lens + row), TILE, SIZE))


@triton.jit
def handing_on_kernel(out, keys, tables, lens, scratch, num_rows, stride_block, stride_row, WIDTH: tl.constexpr, TILE: tl.constexpr, SIZE: tl.constexpr):  # fmt: skip # noqa: E501
    """The first program copies all tables to scratch; the others read them there, and one entry of the first row's."""
    program, column = tl.program_id(0), tl.arange(0, WIDTH)
    if program == 0:
        for row in range(num_rows):
            tl.store(scratch + row * WIDTH + column, tl.load(tables + row * stride_row + column))
    else:
        row = program - 1
        warm = tl.load(tables)
        total = sum_of(keys, stride_block, scratch + row * WIDTH, 1, tl.load(lens + row), TILE, SIZE)
        tl.store(out + row, total + warm * 0)


@triton.jit
def tile_kernel(out, keys, tables, lens, stride_block, WIDTH: tl.constexpr, SIZE: tl.constexpr):
    """The table by a descriptor, the entries of one row in one tile."""
    row, column, offset = tl.program_id(0), tl.arange(0, WIDTH), tl.arange(0, SIZE)
    block = tables.load([row, 0]).reshape(WIDTH).to(tl.int64)
    token = column[:, None] * SIZE + offset[None, :]
    tile = tl.load(keys + block[:, None] * stride_block + offset[None, :], mask=token < tl.load(lens + row), other=0.0)
    tl.store(out + row, tl.sum(tl.sum(tile, 1), 0))


@triton.jit
def work_kernel(out, keys, items, lens, stride_block, stride_item, BY_BLOCK: tl.constexpr, SIZE: tl.constexpr):
    """A program for each item (row, which of its blocks, the block); or for each block of the pool: the item of that block
    says whose it is.
    """
    item = items + tl.program_id(0) * stride_item
    row, index = tl.load(item), tl.load(item + 1)
    if row >= 0:
        block = tl.program_id(0) if BY_BLOCK else tl.load(item + 2)
        token = index * SIZE + tl.arange(0, SIZE)
        tile = tl.load(keys + block * stride_block + token % SIZE, mask=token < tl.load(lens + row), other=0.0)
        tl.atomic_add(out + row, tl.sum(tile, 0))


@triton.jit
def slot_rows_kernel(out, keys, slots, row_of, lens, width, TILE: tl.constexpr):
    """A row of slots, somewhere in a larger pool of rows. The blocks lie without gaps."""
    row, total = tl.program_id(0), tl.zeros((), tl.float32)
    length = tl.load(lens + row)
    for start in range(0, length, TILE):
        token = start + tl.arange(0, TILE)
        slot = tl.load(slots + tl.load(row_of + row) * width + token, mask=token < length, other=0)
        total += tl.sum(tl.load(keys + slot, mask=token < length, other=0.0), 0)
    tl.store(out + row, total)


@triton.jit
def peeking_kernel(out, keys, tables, lens, row_of, column_of, shift, stride_block, stride_row, TILE: tl.constexpr, SIZE: tl.constexpr):  # fmt: skip # noqa: E501
    """Right, but for one key that is loaded and not used."""
    row = tl.program_id(0)
    total = sum_of(keys, stride_block, tables + row * stride_row, 1, tl.load(lens + row), TILE, SIZE)
    other, column = tl.load(row_of + row), tl.load(column_of + row)
    block = tl.load(tables + other * stride_row + column).to(tl.int64) + shift
    unused = tl.load(keys + block * stride_block)  # the foreign key
    tl.store(out + row, total + tl.where(row < 0, unused, 0.0))


@triton.jit
def greedy_kernel(out, keys, tables, lens, stride_block, stride_row, WIDTH: tl.constexpr, SIZE: tl.constexpr):
    """All entries of a row and all their keys are loaded; those behind the length are masked out afterwards."""
    row, column, offset = tl.program_id(0), tl.arange(0, WIDTH), tl.arange(0, SIZE)
    block = tl.load(tables + row * stride_row + column).to(tl.int64)
    token = column[:, None] * SIZE + offset[None, :]
    tile = tl.load(keys + block[:, None] * stride_block + offset[None, :])  # the unmasked load
    tl.store(out + row, tl.sum(tl.sum(tl.where(token < tl.load(lens + row), tile, 0.0), 1), 0))


@triton.jit
def told_kernel(
    out,
    keys,
    tables,
    told,
    count,
    POINTERS: tl.constexpr,
    FACTOR: tl.constexpr,
    PAIRS: tl.constexpr,
    BY_ADDRESS: tl.constexpr,
):
    """The first row's table, of which nothing comes; then the keys at a list of places."""
    total = tl.load(tables) * 0.0
    if BY_ADDRESS:
        told = told.to(tl.pointer_type(tl.int64))
    for i in range(count):
        if PAIRS:
            both = tl.load(told.to(tl.pointer_type(tl.int64)) + i // 2)
            place = (both >> (i % 2 * 32)) & 0xFFFFFFFF
        else:
            place = tl.load(told + i)
        if POINTERS:
            total += tl.load(place.to(tl.pointer_type(tl.float32)))
        else:
            total += tl.load(keys + place * FACTOR)
    tl.store(out, total)


def by_rows(batch: Batch, tables: Tensor | None = None) -> Tensor:
    tables = batch.tables if tables is None else tables
    out, (stride_row, stride_entry) = torch.zeros(len(batch.lens)), tables.stride()[-2:]
    strides = batch.keys.stride(0), stride_row, stride_entry
    one_row_kernel[(len(out),)](out, batch.keys, tables, batch.lens, *strides, 8, SIZE)
    return out


def padded(tables: Tensor) -> Tensor:
    """A view of a larger table with canaries around it."""
    larger = torch.full((tables.shape[0] + 2, tables.shape[1] + 3), 2**31 - 1, dtype=tables.dtype)
    larger[1:-1, 2:-1] = tables
    return larger[1:-1, 2:-1]


def persistent(batch: Batch) -> Tensor:
    out = torch.zeros(len(batch.lens))
    strides = batch.keys.stride(0), batch.tables.stride(0)
    persistent_kernel[(2,)](out, batch.keys, batch.tables, batch.lens, len(out), *strides, 8, SIZE)
    return out


def many_rows(batch: Batch) -> Tensor:
    out = torch.zeros(len(batch.lens))
    strides = batch.keys.stride(0), batch.tables.stride(0)
    arguments = batch.keys, batch.tables, batch.lens, len(out), int(batch.lens.max())
    many_rows_kernel[(triton.cdiv(len(out), 2),)](out, *arguments, *strides, 2, SIZE)
    return out


def prefetching(batch: Batch) -> Tensor:
    out = torch.zeros(len(batch.lens))
    arguments = batch.keys, batch.tables, batch.lens, len(out), batch.keys.stride(0), batch.tables.stride(0)
    prefetching_kernel[(1,)](out, *arguments, batch.tables.shape[1], SIZE)
    return out


def by_csr(batch: Batch) -> Tensor:
    out = torch.zeros(len(batch.lens))
    csr_kernel[(len(out),)](out, batch.keys, *batch.csr(), batch.lens, batch.keys.stride(0), 8, SIZE)
    return out


def by_slots(batch: Batch) -> Tensor:
    out, lens = torch.zeros(len(batch.lens)), batch.lens.tolist()
    slots = [int(row[p // SIZE]) * SIZE + p % SIZE for row, n in zip(batch.tables, lens, strict=True) for p in range(n)]
    starts = torch.tensor([0, *lens]).cumsum(0)
    slots_kernel[(len(out),)](out, batch.keys, torch.tensor(slots), starts, batch.keys.stride(0), 8, SIZE)
    return out


def shared_prefix(batch: Batch, prefix: int = SIZE) -> Tensor:
    """All rows must begin with the same `prefix` tokens."""
    out = torch.zeros(len(batch.lens))
    arguments = batch.keys, batch.tables, batch.lens, prefix, len(out), batch.keys.stride(0), batch.tables.stride(0)
    shared_prefix_kernel[(1,)](out, *arguments, 4, 8, SIZE)
    return out


def by_queue(batch: Batch) -> Tensor:
    out, (starts, pages) = torch.zeros(len(batch.lens)), batch.csr()
    strides = batch.keys.stride(0), batch.tables.stride(0)
    queue_kernel[(1,)](out, batch.keys, batch.tables, batch.lens, pages, starts, len(out), *strides, 8, SIZE)
    return out


def handing_on(batch: Batch) -> Tensor:
    out, scratch = torch.zeros(len(batch.lens)), torch.full_like(batch.tables, -1)
    strides = batch.keys.stride(0), batch.tables.stride(0)
    arguments = batch.keys, batch.tables, batch.lens, scratch, len(out), *strides, batch.tables.shape[1]
    handing_on_kernel[(1 + len(out),)](out, *arguments, 8, SIZE)
    return out


def by_descriptor(batch: Batch) -> Tensor:
    out, width = torch.zeros(len(batch.lens)), batch.tables.shape[1]
    tables = TensorDescriptor(batch.tables, list(batch.tables.shape), [width, 1], [1, width])
    tile_kernel[(len(out),)](out, batch.keys, tables, batch.lens, batch.keys.stride(0), width, SIZE)
    return out


def by_transposed(batch: Batch) -> Tensor:
    """The table as [width, rows], dense."""
    out, tables = torch.zeros(len(batch.lens)), batch.tables.t().contiguous()
    one_row_kernel[(len(out),)](out, batch.keys, tables, batch.lens, batch.keys.stride(0), 1, tables.stride(0), 8, SIZE)
    return out


def by_work(batch: Batch, *, by_block: bool = False) -> Tensor:
    """`by_block`: no two rows may share a block."""
    out, items = torch.zeros(len(batch.lens)), []
    for row, (table, length) in enumerate(zip(batch.tables.tolist(), batch.lens.tolist(), strict=True)):
        items += [(row, index, table[index]) for index in range(-(-length // SIZE))]
    if by_block:
        items = [next((i for i in items if i[2] == block), (-1, -1, -1)) for block in range(len(batch.keys))]
    stored = torch.tensor(items, dtype=torch.int32).reshape(-1, 3)
    work_kernel[(len(items),)](out, batch.keys, stored, batch.lens, batch.keys.stride(0), 3, by_block, SIZE)
    return out


def by_slot_rows(batch: Batch, stale: Tensor) -> Tensor:
    """`stale`: rows of requests that have ended, before those of the batch."""
    out, width = torch.zeros(len(batch.lens)), stale.shape[1]
    tokens = torch.arange(width)
    rows = batch.tables[:, (tokens // SIZE).clamp(max=batch.tables.shape[1] - 1)] * SIZE + tokens % SIZE
    slots, row_of = torch.cat([stale, rows.int()]), torch.arange(len(out)) + len(stale)
    slot_rows_kernel[(len(out),)](out, batch.keys, slots, row_of, batch.lens, width, 8)
    return out


def row_after_row(batch: Batch) -> Tensor:
    """A launch for each row, which gets its own row of the table."""
    out = torch.zeros(len(batch.lens))
    for i, row in enumerate(batch.tables):
        strides = batch.keys.stride(0), 0, row.stride(0)
        one_row_kernel[(1,)](out[i:], batch.keys, row, batch.lens[i:], *strides, 8, SIZE)
    return out


def peeking(
    batch: Batch, row_of: list[int], column_of: list[int], shift: int = 0, tables: Tensor | None = None
) -> Tensor:
    tables, out = batch.tables if tables is None else tables, torch.zeros(len(batch.lens))
    where = (torch.tensor(numbers, dtype=torch.int32) for numbers in (row_of, column_of))
    strides = batch.keys.stride(0), tables.stride(0)
    peeking_kernel[(len(out),)](out, batch.keys, tables, batch.lens, *where, shift, *strides, 8, SIZE)
    return out


def greedy(batch: Batch) -> Tensor:
    out = torch.zeros(len(batch.lens))
    strides = batch.keys.stride(0), batch.tables.stride(0)
    greedy_kernel[(len(out),)](out, batch.keys, batch.tables, batch.lens, *strides, batch.tables.shape[1], SIZE)
    return out


RIGHT: dict[str, Callable[[Batch], Tensor]] = {
    "a program for each row": by_rows,
    "a table in 64 bits": lambda batch: by_rows(batch, batch.tables.long()),
    "a table that is a view of a larger one": lambda batch: by_rows(batch, padded(batch.tables)),
    "a table whose columns are dense": lambda batch: by_rows(batch, batch.tables.t().contiguous().t()),
    "a table with an axis more": lambda batch: by_rows(batch, batch.tables[:, None]),
    "a table for more rows": lambda batch: by_rows(batch, torch.cat([batch.tables, batch.tables.flip(0)])),
    "a program for several rows, one after the other": persistent,
    "a program for several rows at once": many_rows,
    "the next row is prefetched": prefetching,
    "a list of pages": by_csr,
    "a list of slots": by_slots,
    "a list of pages beside the table": by_queue,
    "a copy made by the first program": handing_on,
    "a table read by a descriptor": by_descriptor,
    "a launch for each row": row_after_row,
    "a table with a row for each column": by_transposed,
    "a list of work": by_work,
    "rows of slots": lambda batch: by_slot_rows(batch, torch.zeros(2, 16, dtype=torch.int32)),
}
