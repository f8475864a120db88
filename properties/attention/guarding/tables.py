"""The block tables among the tensors of a launch, and what one program has learnt from them.

A kernel learns where a sequence's tokens lie from its block table alone, so that a program (one index of the grid) may touch
slots of those sequences alone whose rows it has read by then. A tensor is a block table if it holds, row by row, the blocks
of every sequence of the call, whatever its type, strides and width, and whatever other rows it has: a copy counts as the
original does. A program that has read no such row may touch what any sequence of the call owns: it was told the blocks in
another form. One that has may be told of others beside (see `hearsay`).

Small numbers may hold the blocks of every sequence by chance: the rows of a work list, (sequence, block), do so where each
sequence has one block. What could be such a list, a map from blocks to sequences or a table of slots is taken for no table.

Letters: S sequences, R rows of a table, W its width.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from properties.attention.guarding.extents import Extent, extent_of
from properties.attention.guarding.ownership import UNKNOWN, Chosen, Rights, Slots
from properties.attention.guarding.places import NOWHERE, Addresses, Places, places_of

# Larger tensors of integers are no table of a batch: they are not searched.
MOST_ENTRIES = 2**20
MOST_SHARED_ENTRIES = 2**14
"""Of a table whose rows share memory: it is searched entry by entry."""
FEW = 8
"""Numbers below may be sequences, heads or parts in a work list."""
FEWEST = 2
"""Sequences that have blocks: those of one alone stand in many a list."""


@dataclass(frozen=True, eq=False)
class Table:
    """A block table of a launch.

    `ids`: [R, W]; `owners`: [R, S], of which sequences a row may be; `owners_of_columns`: [W, S], of which a column may be,
    if the columns hold the blocks of every sequence too. `places`: where it lies; None where its rows share memory, and then
    `addresses` are those of its entries, [R, W].
    """

    ids: npt.NDArray[np.int64]
    owners: Chosen
    owners_of_columns: Chosen
    start: int
    end: int
    element_size: int
    places: Places | None
    shape: tuple[int, ...]
    addresses: Addresses | None = None

    def entries_at(self, addresses: Addresses, width: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """(rows, columns) of entries in which some of the `width` bytes at the addresses lie, in any order, NOWHERE among
        them: outside, or between the entries.
        """
        ends = np.concatenate([addresses, addresses + width - 1]) if width > self.element_size else addresses
        if self.places is None:
            assert self.addresses is not None
            hit = (ends >= self.addresses[..., None]) & (ends < self.addresses[..., None] + self.element_size)
            rows, columns = np.nonzero(hit.any(2))
            return rows, columns
        *axes, columns = self.places.locate(ends)
        rows = np.zeros(ends.shape, dtype=np.int64)
        for index, size in zip(axes, self.shape, strict=True):
            rows = rows * size + index
        return np.where(columns == NOWHERE, NOWHERE, rows), columns

    def owners_read(self, addresses: Addresses, width: int) -> set[int]:
        """The sequences whose rows, or whose columns, entries at these addresses are in."""
        rows, columns = (np.unique(indices[indices != NOWHERE]) for indices in self.entries_at(addresses, width))
        owners = self.owners[rows].any(0) | self.owners_of_columns[columns].any(0)
        return set(np.flatnonzero(owners).tolist())

    def told_here(self, addresses: Addresses, width: int) -> Chosen:
        """At which addresses an entry is read whose row is a sequence's, or what lies between the entries."""
        near: Chosen = (addresses + width > self.start) & (addresses < self.end)
        if self.places is None or not near.any():
            return near
        rows, _ = self.entries_at(addresses, self.element_size)
        told: Chosen = near & ((rows == NOWHERE) | np.any(self.owners, axis=1)[rows])
        return told

    def columns_at(self, addresses: Addresses, owner: int, block: int) -> set[int]:
        """The columns of entries at these addresses that name a block in a row of an owner."""
        rows, columns = self.entries_at(addresses, self.element_size)
        named = (rows != NOWHERE) & self.owners[rows, owner] & (self.ids[rows, columns] == block)
        return set(columns[named].tolist())


def tables_among(tensors: Iterable[Tensor], rights: Rights) -> tuple[Table, ...]:
    """The block tables of the owners among the tensors."""
    entries = [owner.entries(rights.block_size) for owner in rights.owners]
    known = [table for table in entries if table is not None]
    if len(known) < len(entries) or sum(bool((table != UNKNOWN).any()) for table in known) < FEWEST:
        return ()
    slots = [[o.slots for o in rights.owners], [np.where(t == UNKNOWN, UNKNOWN, t * rights.block_size) for t in known]]
    units = slots if rights.block_size > 1 else []
    integers = (tensor for tensor in tensors if tensor.dim() >= 2 and holds_integers(tensor))
    found = (_table(tensor, rights.num_blocks, known, units) for tensor in integers)
    return tuple(table for table in found if table is not None)


def holds_integers(tensor: Tensor) -> bool:
    """Whether it can be looked into for block ids."""
    other = tensor.is_floating_point() or tensor.is_complex() or tensor.dtype is torch.bool
    return not other and 0 < tensor.numel() <= MOST_ENTRIES and tensor.device.type == "cpu"


def _table(
    tensor: Tensor, num_blocks: int, entries: Sequence[Slots], others: Iterable[Sequence[Slots]]
) -> Table | None:
    """`others`: what rows of tables that name no blocks hold."""
    ids = tensor.numpy().reshape(-1, tensor.shape[-1])
    owners = _owners(ids, entries)
    if owners is None or any(_owners(ids, unit) is not None for unit in others):
        return None
    told = [i for i, table in enumerate(entries) if (table != UNKNOWN).any()]
    in_order = len(ids) >= len(entries) and bool(all(owners[i, i] for i in told))
    few = max(FEW, len(entries))
    # A narrow tensor with a row for each block of the pool may say of each what is to be known of it.
    of_blocks = len(ids) >= num_blocks and ids.shape[1] <= FEW
    evident = in_order and not of_blocks and any(len(entries[i]) > 1 for i in told)
    if not evident and all(entries[i][0] < few for i in told):
        return None
    for i in range(len(entries) if in_order else 0):  # so the rows of the empty ones are known too
        owners[i, i] = True
    places = places_of(tensor, range(tensor.dim()))
    if places is None and tensor.numel() > MOST_SHARED_ENTRIES:
        return None
    addresses = None if places is not None else _addresses_of(tensor).reshape(ids.shape)
    columns = _owners(ids.T, entries)
    by_column = np.zeros((ids.shape[1], len(entries)), dtype=np.bool_) if columns is None else columns
    extent, shape, size = extent_of(tensor), tuple(tensor.shape[:-1]), tensor.element_size()
    assert extent is not None, "an empty tensor holds no blocks"
    return Table(ids.astype(np.int64), owners, by_column, *extent, size, places, shape, addresses)


def _owners(ids: npt.NDArray[np.int64], entries: Sequence[Slots]) -> Chosen | None:
    """[R, S], which rows begin with the entries of which sequence; None unless there is one for each that has some."""
    owners: Chosen = np.stack([_holds(ids, table) for table in entries], axis=1)
    needed = np.array([(table >= 0).any() for table in entries])
    return owners if bool((owners.any(0) | ~needed).all()) else None


def _holds(ids: npt.NDArray[np.int64], entries: Slots) -> Chosen:
    """Which rows begin with these entries. No row holds none."""
    known = np.flatnonzero(entries >= 0)
    if not len(known) or ids.shape[1] < len(entries):
        return np.zeros(len(ids), dtype=np.bool_)
    return np.asarray((ids[:, known] == entries[known]).all(1))


def _addresses_of(tensor: Tensor) -> Addresses:
    offsets = np.zeros(tensor.shape, dtype=np.int64)
    for axis, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        shape = [1] * tensor.dim()
        shape[axis] = size
        offsets += (np.arange(size) * stride * tensor.element_size()).reshape(shape)
    return offsets + tensor.data_ptr()


def lengths_among(tensors: Iterable[Tensor], rights: Rights) -> tuple[Extent, ...]:
    """The extents of tensors that hold nothing but the lengths of the sequences, or their sums: they name no block, unless
    all blocks are among them.
    """
    owners = rights.owners
    lengths = [np.array([len(o.slots) for o in owners]), np.array([o.query_len for o in owners])]
    known = [*lengths, *(np.concatenate([[0], np.cumsum(numbers)]) for numbers in lengths)]
    blocks = np.unique(np.concatenate([o.slots[o.slots >= 0] for o in owners])) // rights.block_size
    integers = (tensor for tensor in tensors if holds_integers(tensor) and tensor.dim() == 1)
    found = (
        extent_of(t)
        for t in integers
        if any(np.array_equal(t.numpy(), numbers) for numbers in known) and not np.isin(blocks, t.numpy()).all()
    )
    return tuple(extent for extent in found if extent is not None)


def _parts(
    addresses: Addresses, width: int, values: npt.NDArray[np.int64]
) -> Iterator[tuple[Addresses, npt.NDArray[np.int64]]]:
    """Integers of `width` bytes, and those of 4 and of 2 bytes that they are made of."""
    yield addresses, values
    for size in (4, 2):
        for offset in range(0, width if width > size else 0, size):
            yield addresses + offset, (values >> (8 * offset)) & (2 ** (8 * size) - 1)


@dataclass
class Program:
    """What one index of the grid has read by now: `owners`, the sequences of the rows of tables, and other integers.

    `tables` and `lengths` are what the launch was given.
    """

    index: tuple[int, int, int]
    tables: tuple[Table, ...] = ()
    lengths: tuple[Extent, ...] = ()
    owners: frozenset[int] = frozenset()
    told: list[tuple[Addresses, int, npt.NDArray[np.int64]]] = field(default_factory=list)

    def reads(self, addresses: Addresses, width: int, first: int, last: int) -> None:
        """Active lanes of a load, `first` and `last` of them the lowest and the highest address."""
        for table in self.tables:
            if first < table.end and last + width > table.start:
                self.owners = self.owners.union(table.owners_read(addresses, width))

    def learns(self, addresses: Addresses, width: int, values: npt.NDArray[np.int64]) -> None:
        """Integers that were loaded."""
        self.told.append((addresses, width, values))

    def told_elsewhere(self) -> list[tuple[Addresses, npt.NDArray[np.int64]]]:
        """The integers that came from no row of a sequence in a table, with their addresses; a pair for each load, and one for
        each part of larger integers, of which each may be an entry.
        """
        found: list[tuple[Addresses, npt.NDArray[np.int64]]] = []
        for addresses, width, values in self.told:
            here = np.zeros(addresses.shape, dtype=np.bool_)
            for table in self.tables:
                here |= table.told_here(addresses, width)
            for start, end in self.lengths:
                here |= (addresses >= start) & (addresses < end)
            if not here.all():
                found += _parts(addresses[~here], width, values[~here])
        return found

    def entries_read(self, owner: int, block: int) -> set[int]:
        """The columns of the rows of a sequence that it has read and that name a block."""
        loads = ((table, addresses) for table in self.tables for addresses, _, _ in self.told)
        return {column for table, addresses in loads for column in table.columns_at(addresses, owner, block)}
