"""The words in which the guard says whose slot a kernel touched, and what is probably wrong."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from properties.attention.guarding.ownership import Owner, Rights
from properties.attention.guarding.places import NOWHERE, Addresses, Indices
from properties.attention.guarding.protection import Protected
from properties.attention.guarding.tables import Program
from properties.wording import counted


def accuse(kind: str, memory: Protected, program: Program, touched: tuple[Addresses, Indices, Indices]) -> str:
    """What an access did that must not be: `touched` are the address, the block and the offset in it of each bad lane,
    block and offset NOWHERE between the slots.
    """
    address, block, offset = (int(numbers[0]) for numbers in touched)
    rights = memory.readable if kind == "load" else memory.writable
    elements = counted(len(touched[0]), "element")
    touches = f"a {kind} touches {elements} of {memory.cache_at(address)} that this call must not touch"
    if block == NOWHERE or rights is None:
        return f"{touches} (memory between its slots), the first at byte {address - memory.start} of its memory"
    slot = f"the first in block {block}, offset {offset} (slot {block * rights.block_size + offset})"
    if kind == "store":
        return f"{touches} (slots that are not listed), {slot}"
    owners = rights.owners_of(block, offset)
    if not owners:
        read = f"; {_read(rights, program)}" if program.owners else ""
        return f"{touches} (slots that no sequence owns), {slot}{_unowned(rights, program, block, offset)}{read}"
    whose = _listed([rights.owners[i].name for i in owners])
    return (
        f"{touches} (slots of another sequence), {slot}, which belongs to {whose}; {_read(rights, program)} alone by then. "
        f"{_reason(rights, program, block)}"
    )


def _read(rights: Rights, program: Program) -> str:
    """What the program has read of block tables."""
    rows = _listed([_told(rights, rights.owners[i]) for i in sorted(program.owners)])
    return f"program {program.index} has read the block table of {rows}"


def _reason(rights: Rights, program: Program, block: int) -> str:
    for owner in sorted(program.owners):
        behind = _entry_behind(rights, program, owner, block)
        if behind is not None:
            return (
                f"Entry {behind} of the block table of {rights.owners[owner].name} names that block, behind its last one, "
                "where entries mean nothing: mask the load with position < context length"
            )
        if program.entries_read(owner, block):
            return "The block is its own, the offset in it is not: mask the load with position < context length"
    return "No entry that it has read names the block: the address is computed wrongly"


def _entry_behind(rights: Rights, program: Program, owner: int, block: int) -> int | None:
    """The first entry behind the last block of a sequence that was read in its row of a table and names a block."""
    needed = -(-len(rights.owners[owner].slots) // rights.block_size)
    return min((column for column in program.entries_read(owner, block) if column >= needed), default=None)


def _unowned(rights: Rights, program: Program, block: int, offset: int) -> str:
    """Behind the slot: near whose slots it is."""
    size = rights.block_size
    for owner in rights.owners:
        positions = _positions_of(owner, block, size)
        if len(positions) and positions[-1] < owner.first_kept:
            return f", a block wholly before the window of {owner.name}, which keeps its positions from {owner.first_kept} on"
        if len(positions) and block == owner.slots[-1] // size and offset > owner.slots[-1] % size:
            return f", behind the last token of {owner.name} ({owner.told(size)})"
    for index in sorted(program.owners):
        behind = _entry_behind(rights, program, index, block)
        if behind is not None:
            told = _told(rights, rights.owners[index])
            return f", which entry {behind} of the block table of {told} names, behind its last block"
    return ""


def _positions_of(owner: Owner, block: int, block_size: int) -> npt.NDArray[np.int64]:
    return np.flatnonzero((owner.slots >= 0) & (owner.slots // block_size == block))


def _told(rights: Rights, owner: Owner) -> str:
    return f"{owner.name} ({owner.told(rights.block_size)})"


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
