"""Whether a program was told where a sequence's tokens lie in another way than by the sequence's row of a block table: by a
list of pages or slots, by a table of pointers, by a copy that another program made.

What it loaded must be the block in some spelling (its id, its first slot, its offset, its address), or the slot itself; and
the tensor that it came from must hold the whole sequence in that spelling, or the block beside the one before or behind it:
a small number that happens to be a block id is no licence.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
from torch import Tensor

from properties.attention.guarding.extents import extent_of
from properties.attention.guarding.ownership import UNKNOWN, Chosen, Owner, Rights
from properties.attention.guarding.places import Addresses, Indices
from properties.attention.guarding.protection import Protected
from properties.attention.guarding.tables import Program, holds_integers

Numbers = npt.NDArray[np.int64]


def told_otherwise(
    program: Program, given: Sequence[Tensor], rights: Rights, memory: Protected, touched: tuple[Indices, Indices]
) -> Chosen:
    """For each (block, offset in it): whether somebody owns the slot, and the program was told of it elsewhere. `given`: the
    tensors of the launch.
    """
    blocks, tokens = touched
    owned, loads = rights.allowed(blocks, tokens), program.told_elsewhere()
    result: Chosen = np.zeros(blocks.shape, dtype=np.bool_)
    if not loads:
        return result
    slots = blocks * rights.block_size + tokens
    for slot in np.unique(slots[owned]).tolist():
        block, token = divmod(slot, rights.block_size)
        owners = [rights.owners[i] for i in rights.owners_of(block, token)]
        spelt = [pair for owner in owners for pair in _spellings(owner, rights, memory, block, token)]
        if any(_is_told(loads, given, number, numbers) for number, numbers in spelt):
            result[slots == slot] = True
    return result


def _spellings(
    owner: Owner, rights: Rights, memory: Protected, block: int, token: int
) -> Iterator[tuple[int, Numbers]]:
    """What may stand for a slot, each with what would stand for all that its owner has."""
    size, table = rights.block_size, owner.entries(rights.block_size)
    yield block * size + token, owner.slots[owner.slots >= 0]
    if table is not None:
        known = table[table != UNKNOWN]
        for factor, offset in ((1, 0), (size, 0), *memory.spellings()):
            yield block * factor + offset, known * factor + offset


def _is_told(loads: list[tuple[Addresses, Numbers]], given: Sequence[Tensor], number: int, numbers: Numbers) -> bool:
    hits = (addresses[values == number] for addresses, values in loads)
    return any(_carries(_tensor_at(int(hit[0]), given), number, numbers) for hit in hits if hit.size)


def _tensor_at(address: int, given: Sequence[Tensor]) -> Tensor | None:
    extents = ((tensor, extent_of(tensor)) for tensor in given)
    return next((tensor for tensor, extent in extents if extent and extent[0] <= address < extent[1]), None)


def _carries(tensor: Tensor | None, number: int, numbers: Numbers) -> bool:
    """Whether a tensor can be where a program learns all of these numbers; one that cannot be looked into may be."""
    if tensor is None or not holds_integers(tensor):
        return True
    content = tensor.numpy().reshape(-1).astype(np.int64)
    if np.isin(numbers, content).all():
        return True
    place = int(np.flatnonzero(numbers == number)[0]) if (numbers == number).any() else 0
    pairs = (numbers[i : i + 2] for i in (place - 1, place) if 0 <= i < len(numbers) - 1)
    return any(bool(((content[:-1] == pair[0]) & (content[1:] == pair[1])).any()) for pair in pairs)
