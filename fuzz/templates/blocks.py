"""An adapter of a block manager, to be filled in. It lets pagefault drive your implementation.

    pagefault check-target THIS_FILE.py:Target      is the adapter itself sound?
    pagefault run -t THIS_FILE.py:Target            find faults behind it
    pagefault test -t THIS_FILE.py:Target           the whole contract, under pytest

Every `raise NotImplementedError` below wants a line or two of yours. The names of sequences are strings that pagefault
chooses; tokens are small whole numbers, in tuples (`list(tokens)` where you need a list). What your implementation lacks,
leave out; what it does differently, declare. `pagefault targets --properties` lists the clauses; `properties/protocol.py`
describes every method.
"""

from collections.abc import Sequence
from typing import Any

from properties.blocks.operations import Geometry
from properties.protocol import Capabilities, slots_from_table


class OutOfBlocks(Exception):
    """Stands for the exception that your implementation raises when there is no room. Import yours instead."""


class Target:
    """One system under test. Made without arguments; `open` comes before everything else."""

    level = "blocks"
    capabilities = Capabilities(
        refusals=(OutOfBlocks,),  # what "no room" raises; a refused call must change nothing
        block_sizes=(1, 2, 4, 16),  # tokens per block that it accepts; small ones find most
        prefix_cache=True,  # False if no sequence ever reuses the blocks of an earlier one
        unknown_free="refused",  # a free of an unknown name raises; "ignored", or None = undefined
        # cached_overlaps_free=True,  # a block may be in cached_blocks() and in free_blocks() at once
        # promises=frozenset({"ALLOC-2P"}),  # clauses that you vouch for besides the safety ones
    )

    def open(self, config: Geometry) -> None:
        """A fresh system. Reset class-level globals too: this is called before every case."""
        self.block_size = config.block_size
        self.manager: Any = None  # YourManager(config.num_blocks, config.block_size)
        raise NotImplementedError("open: build your manager")

    def admit(self, name: str, tokens: Sequence[int]) -> int:
        """Allocate blocks for a new sequence, pretend that its KV is computed, publish what is full."""
        raise NotImplementedError("admit: return how many leading tokens the prefix cache had (or 0)")

    def append(self, name: str, tokens: Sequence[int]) -> None:
        """More tokens at the end of a sequence; a decode step has one."""
        raise NotImplementedError("append: take another block where one is needed")

    def free(self, name: str) -> None:
        """The sequence ends."""
        raise NotImplementedError("free: release its blocks")

    def slots(self, name: str) -> Sequence[int]:
        """The physical slot of each position. From a block table this is one line."""
        return slots_from_table(self.table(name), self.block_size)

    # ---- optional: each of these makes more clauses judgeable; delete what you do not have --------------------------

    def table(self, name: str) -> Sequence[int]:
        """Physical block of each logical block, first to last."""
        raise NotImplementedError("table: return the block table of the sequence")

    def free_blocks(self) -> Sequence[int]:
        """Every block that is free. With it, leaks and double use are found at once."""
        raise NotImplementedError("free_blocks: return the ids on your free list")

    # def ref_count(self, block): ...      how many sequences hold a block, by your own count
    # def cached_blocks(self): ...         every block that a prefix lookup can find
    # def can_admit(self, tokens): ...     would admit succeed now?
    # def fork(self, parent, child): ...   child continues from everything that parent holds; with copies()
