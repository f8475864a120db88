"""The ownership model: sequences are token lists, tables are opaque, holders are counted from the tables each time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class LiveSequence:
    """One sequence as the model sees it.

    `runs[p]` is the token run that position `p` must hold; positions below `computed` are written. `slots` is what the
    target last reported (-1 = released by a window), `blocks` the distinct blocks behind it in table order. `family`
    is the set of names related by `fork`, shared by reference between the relatives. `location` says where the KV is.
    """

    name: str
    salt: str | None
    tokens: list[int]
    runs: list[int]
    computed: int = 0
    slots: Sequence[int] = ()
    blocks: tuple[int, ...] = ()
    family: set[str] = field(default_factory=set)
    location: str = "device"

    def move(self, location: str) -> None:
        """The KV is somewhere else now; the target has not said where yet."""
        self.location, self.slots, self.blocks = location, (), ()


def blocks_of_slots(slots: Sequence[int], block_size: int) -> tuple[int, ...]:
    """The distinct blocks behind a list of slots, in first-use order; released slots (-1) are left out.

    >>> blocks_of_slots([28, 29, 30, 31, 8, 9], 4)
    (7, 2)
    """
    return tuple(dict.fromkeys(slot // block_size for slot in slots if slot >= 0))


def holders(tables: Iterable[Sequence[int]]) -> dict[int, int]:
    """How many sequences hold each block, from their distinct blocks.

    The count that a correct reference count equals: tables that hold the block, not positions in them
    (vllm-project/vllm#3347 counted positions).

    >>> holders([(7, 2), (7, 5)])
    {7: 2, 2: 1, 5: 1}
    """
    counts: dict[int, int] = {}
    for table in tables:
        for block in table:
            counts[block] = counts.get(block, 0) + 1
    return counts


def unowned_blocks(num_blocks: int, counts: Mapping[int, int], reserved: Iterable[int] = ()) -> set[int]:
    """The blocks that no live sequence holds: free, or evictable from the prefix cache."""
    return set(range(num_blocks)) - counts.keys() - set(reserved)
