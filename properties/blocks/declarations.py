"""Declared behaviour against what was seen: an adapter that declares what it does not do is at fault, not the cache.

A broken cache may look like a lie for a step or a trace; so a lie is told only where nothing else can explain it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from paged_ref.ownership import LiveSequence
from properties.blocks import access
from properties.blocks.state import State
from properties.contract import AdapterError

FREED = "a free of an unknown name"
OTHERWISE = "an unknown free that went otherwise than declared"
ENOUGH_FREES = 20
"""Unknown frees that went otherwise and changed nothing, after which a cache that believes them would have broken REF-3."""


HIT = "a hit of several tokens a block"
AS_BLOCKS = "a hit that counts blocks"
ENOUGH_HITS = 8
"""Hits that all fit a count of blocks, after which no count of tokens can be meant."""


def note_hit(state: State, seq: LiveSequence, cached: int) -> None:
    """Count the hits, and those whose number fits the blocks that were hit and not their tokens."""
    state.as_blocks.discard(seq.name)
    if not cached or state.block_size == 1 or state.geometry.window:
        return
    fits = access.counts_blocks(state, seq, cached)
    if fits:
        state.as_blocks.add(seq.name)
    if fits and cached % state.block_size == 0:
        return  # it may be either: what lies behind a hit can be right by chance
    state.marks[HIT] += 1
    state.marks[AS_BLOCKS] += fits


def note_unknown_free(state: State, *, refused: bool) -> None:
    """Count a free of a sequence that is not live, and whether it went as declared."""
    state.marks[FREED] += 1
    if refused != (state.capabilities.unknown_free == "refused"):
        state.marks[OTHERWISE] += 1


COUNTED = (FREED, OTHERWISE, HIT, AS_BLOCKS)
"""The marks by which `lie` tells."""


def lie(capabilities: Any, marks: Mapping[str, int], broken: Collection[str]) -> AdapterError | None:
    """The error for a declaration that many traces together have shown to be wrong; None where there is none."""
    hits = marks.get(AS_BLOCKS, 0)
    if hits >= ENOUGH_HITS and hits == marks.get(HIT, 0):
        what = f"admit (or allocate) returned the number of blocks that were hit, in {hits:,} hits of {hits:,}"
        return AdapterError(what, "return the number of tokens: blocks x block_size")
    otherwise = marks.get(OTHERWISE, 0)
    if otherwise < ENOUGH_FREES or "REF-3" in broken:
        return None
    declared = capabilities.unknown_free
    did, right = ("accepted", "ignored") if declared == "refused" else ("refused", "refused")
    total = marks.get(FREED, 0)
    remedy = f"declare unknown_free={right!r}" if otherwise == total else "declare unknown_free=None: it does either"
    return AdapterError(
        f"unknown_free={declared!r} is declared, but {otherwise:,} of {total:,} frees of sequences that are not live were "
        f"{did}",
        f"{remedy}, or mend free",
    )


def check_copy_at_fork(state: State, parent: LiveSequence, child: LiveSequence) -> None:
    """A fork copied what it did not declare to copy. Raises `AdapterError`.

    What a refused fork needed is judged by this declaration. A fork that shares what it declares to copy is left to COW-1,
    since a broken cache does that.
    """
    if state.capabilities.copy_at_fork:
        return
    for position in range(len(parent.tokens)):
        ours, theirs = parent.slots[position], child.slots[position]
        if ours != theirs and min(ours, theirs) >= 0:
            raise AdapterError(
                f"fork({parent.name}, {child.name}) copied: position {position} is in slot {ours} of the parent and slot "
                f"{theirs} of the child, and copy_at_fork=False is declared",
                "declare copy_at_fork=True",
            )
