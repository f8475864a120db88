"""Which slots of a pool the sequences of a call own, and so what a kernel may touch.

Letters: B blocks, P block size, N tokens of a sequence, S sequences of the call.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from properties.attention.guarding.places import Indices

Slots = npt.NDArray[np.int64]
Chosen = npt.NDArray[np.bool_]
UNKNOWN = -1
"""A block-table entry that may be anything: that of a block which the sequence gave back."""


@dataclass(frozen=True, eq=False)
class Owner:
    """A sequence of a call, by the name that its user knows.

    `slots`: the slot of each of its tokens in the cache, in order; negative where it has none any more. `first_kept`: the
    first position that it still owns. `query_len`: how many of its last tokens are queries.
    """

    name: str
    slots: Slots
    first_kept: int = 0
    query_len: int = 1

    def entries(self, block_size: int) -> Slots | None:
        """Its block table, up to the last block, with UNKNOWN for what it need not hold any more; None where its slots do
        not lie in blocks.
        """
        known: Chosen = self.slots >= 0
        count = -(-len(self.slots) // block_size)
        blocks = np.full(count * block_size, UNKNOWN, dtype=np.int64)
        blocks[: len(self.slots)] = np.where(known, self.slots // block_size, UNKNOWN)
        table: Slots = blocks.reshape(count, block_size).max(1)
        position = np.arange(len(self.slots))
        if (known & (table[position // block_size] * block_size + position % block_size != self.slots)).any():
            return None
        table[: self.first_kept // block_size] = UNKNOWN
        return table

    def told(self, block_size: int) -> str:
        """Its length and its blocks in words."""
        table = self.entries(block_size)
        blocks = "" if table is None else f" in blocks [{', '.join('-' if e == UNKNOWN else str(e) for e in table)}]"
        return f"{len(self.slots):,} token{'s' * (len(self.slots) != 1)}{blocks}"


class Rights:
    """The slots that a call may load, or store to: those of each of its owners, and of all of them together.

    Made once for a call; its size is that of the blocks that are owned, and 4 bytes a block of the pool.
    """

    def __init__(self, num_blocks: int, block_size: int, owners: Sequence[Owner]) -> None:
        self.num_blocks, self.block_size, self.owners = num_blocks, block_size, tuple(owners)
        kept = [owner.slots[owner.first_kept :] for owner in self.owners]
        blocks = np.unique(np.concatenate([np.zeros(0, dtype=np.int64), *(s[s >= 0] for s in kept)]) // block_size)
        # The last row is that of all other blocks, and the last entry that of no block: nothing is allowed there.
        self._row = np.full(num_blocks + 1, len(blocks), dtype=np.int32)
        self._row[blocks] = np.arange(len(blocks))
        self._all = self._marked(kept)
        self._of: dict[frozenset[int], Chosen] = {}

    def allowed(self, blocks: Indices, tokens: Indices, owners: frozenset[int] | None = None) -> Chosen:
        """For each (block, offset in it), NOWHERE for no slot: whether one of these owners may touch it; None = anyone's.

        A block that a sequence had before its window counts as its own while another sequence owns it: a kernel may read the
        common beginning of several sequences through the table of one.
        """
        marks = self._all if owners is None else self._marks(owners)
        return marks[self._row[blocks], tokens]

    def owners_of(self, block: int, token: int) -> list[int]:
        """Who owns a slot."""
        slot = block * self.block_size + token
        return [i for i, owner in enumerate(self.owners) if (owner.slots[owner.first_kept :] == slot).any()]

    @cached_property
    def differ(self) -> bool:
        """Whether it matters whose slots are touched."""
        return any((self._marks(frozenset([i])) != self._all).any() for i in range(len(self.owners)))

    def _marks(self, owners: frozenset[int]) -> Chosen:
        if owners not in self._of:
            self._of[owners] = self._marked(self.owners[i].slots for i in owners) & self._all
        return self._of[owners]

    def _marked(self, slots: Iterable[Slots]) -> Chosen:
        marks = np.zeros((int(self._row.max()) + 1, self.block_size), dtype=np.bool_)
        for some in slots:
            here = some[(some >= 0) & (some < self.num_blocks * self.block_size)]
            marks[self._row[here // self.block_size], here % self.block_size] = True
        return marks


def owner_of(name: str, slots: Sequence[int] | Slots, first_kept: int = 0, query_len: int = 1) -> Owner:
    """An owner of these slots."""
    return Owner(name, np.asarray(slots, dtype=np.int64).reshape(-1), first_kept, query_len)
