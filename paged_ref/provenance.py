"""Provenance: a shadow memory in which every slot holds which token run was written there, by whom and when.

It needs no floating point, catches silent wrong KV exactly, and can explain it. "Step" counts operations from 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from paged_ref.trie import TokenRuns

EMPTY = -1
"""Content of a slot that nothing was ever written to."""
RELEASED = -2
"""Content of slot -1: a position that a sliding window released; nothing may read it."""


class Write(NamedTuple):
    """Who put the value into a slot: sequence, position in it, step; `copied_from` is the source slot of a copy."""

    name: str
    position: int
    step: int
    copied_from: int | None = None


class ShadowMemory:
    """What each slot of one memory space holds.

    `run[slot]` is the interned token run (`EMPTY` if never written); `run[-1]` is `RELEASED`, so that slot -1 reads as
    that. `writes[slot]` is the last `Write`. `events[block]` lists `(step, sentence)`: what happened to the block.
    """

    def __init__(self, num_blocks: int, block_size: int, space: str = "device") -> None:
        self.space = space
        self.block_size = block_size
        self.num_slots = num_blocks * block_size
        self.run: list[int] = [EMPTY] * self.num_slots + [RELEASED]
        self.writes: list[Write | None] = [None] * self.num_slots
        self.events: list[list[tuple[int, str]]] = [[] for _ in range(num_blocks)]

    def write(self, name: str, position: int, slots: Sequence[int], runs: Sequence[int], step: int) -> None:
        """Sequence `name` computes `runs`, from `position` on, into `slots`. Modifies the shadow."""
        for slot, run in zip(slots, runs, strict=True):
            self.run[slot] = run
            self.writes[slot] = Write(name, position, step)
            position += 1

    def copy_slot(self, source: ShadowMemory, src: int, dst: int, step: int) -> None:
        """Slot `dst` takes over what `src` of `source` holds, its origin included. Modifies the shadow."""
        self.run[dst] = source.run[src]
        origin = source.writes[src]
        self.writes[dst] = None if origin is None else Write(origin.name, origin.position, step, src)

    def event(self, block: int, step: int, sentence: str) -> None:
        """Note something in the history of a block. Modifies the shadow."""
        self.events[block].append((step, sentence))

    def describe_slot(self, slot: int, runs: TokenRuns) -> str:
        """What a slot holds, in words."""
        where = f"slot {slot} (block {slot // self.block_size}, offset {slot % self.block_size})"
        write = self.writes[slot]
        if write is None:
            return f"{where}, which nothing ever wrote"
        how = f" (copied from slot {write.copied_from} at step {write.step})" if write.copied_from is not None else ""
        when = "" if how else f" at step {write.step}"
        return (
            f"{where}, which holds the value written by sequence {write.name} for its position "
            f"{write.position}{when}{how}: the KV of {runs.describe(self.run[slot])}"
        )

    def history(self, block: int, last: int = 8) -> str:
        """The last events of a block, oldest first, in one sentence."""
        events = self.events[block][-last:]
        if not events:
            return f"{self.space} block {block}: never handed out"
        return f"{self.space} block {block}: " + "; ".join(f"{what} at step {step}" for step, what in events)
