"""What a run of a blocks target must have reached: clauses that apply to it, and states that it must have seen."""

from __future__ import annotations

from properties.blocks.reach import Reach, reach_of
from properties.contract import CLAUSES
from properties.protocol import Capabilities

_ALWAYS = ("ALLOC-2", "ALLOC-3", "ALLOC-5", "ALLOC-6", "SLOT-2", "CONTENT-1", "EVICT-1")
_NEEDS: dict[str, tuple[str, ...]] = {
    "ALLOC-1": ("free_blocks",),
    "REF-2": ("free_blocks",),
    "REF-1": ("ref_count",),
    "SLOT-1": ("table",),
    "ALLOC-4": ("can_admit",),
    "COW-1": ("fork",),
    "COW-4": ("fork", "can_append"),
    "TRIM-1": ("truncate",),
    "SWAP-1": ("swap_out", "swap_in", "copies"),
    "MEM-1": ("block_bytes",),
    "COW-3P": ("fork", "copies"),
    "EVICT-2P": ("cached_blocks",),
}
_HASH = ("HASH-1", "HASH-2", "HASH-4", "HASH-5", "TRIM-1", "HASH-3P", "EVICT-2P")


def applicable(capabilities: Capabilities, offers: frozenset[str]) -> frozenset[str]:
    """Ids of the clauses that can be judged on a target with these capabilities and optional methods."""
    found, reach = set(_ALWAYS), reach_of(capabilities)
    found |= {id for id, needs in _NEEDS.items() if all(need in offers for need in needs)}
    if "can_append" in offers and reach.appends:
        found.add("ALLOC-4")
    if "free_blocks" in offers and offers & {"predict_admit", "predict_append"}:
        found.add("ALLOC-4P")
    if capabilities.prefix_cache:
        found |= {"HASH-1", "HASH-2", "HASH-4", "HASH-5", "HASH-3P"}
    else:
        found -= set(_HASH)
    if capabilities.recomputes_hits:
        found.discard("HASH-4")
    if capabilities.copy_at_fork:
        found.discard("COW-4")
    if capabilities.unknown_free:
        found.add("REF-3")
    if capabilities.window:
        found |= {"WINDOW-1", "WINDOW-1P"}
    found |= capabilities.promises & {"ALLOC-2P"}
    found -= _out_of_reach(reach)
    return frozenset(id for id in found if CLAUSES[id].rank == "safety" or id in capabilities.promises)


def _out_of_reach(reach: Reach) -> set[str]:
    """Clauses that no legal trace can have judged, by the declared limits."""
    never: set[str] = set()
    if not reach.hits:
        never |= {"HASH-1", "HASH-2", "HASH-3P", "HASH-5", "TRIM-1"}
    if not reach.full:
        never.add("EVICT-2P")
    if not (reach.shares and reach.appends):
        never |= {"COW-1", "COW-3P", "COW-4"}
    if not reach.partial:
        never.add("COW-4")
    if not reach.copies:
        never.add("COW-3P")
    if not reach.fills:
        never |= {"ALLOC-3", "ALLOC-6"}
    return never


def marks(capabilities: Capabilities, offers: frozenset[str]) -> frozenset[str]:
    """States that a run must have reached at least once, or its clean verdict says nothing."""
    reach = reach_of(capabilities)
    found = {"a freed block was reused"}
    if reach.fills:
        found.add("a refusal")
    if capabilities.prefix_cache and reach.hits:
        found |= {"a prefix hit", "a full hit"}
    if capabilities.prefix_cache and reach.full and "cached_blocks" in offers:
        found.add("a cached block was evicted")
    if "fork" in offers and reach.shares:
        found.add("a fork")
        if "copies" in offers and reach.copies:
            found.add("a copy on write")
    if "truncate" in offers and reach.appends:
        found.add("a truncation")
    if {"swap_out", "swap_in", "copies"} <= offers:
        found.add("a swap to host memory")
    if "allocate" in offers and "computed" in offers:
        found |= {"allocated, not yet computed", "freed before it was computed"}
    if capabilities.unknown_free:
        found.add("a free of an unknown name")
    return frozenset(found | {"a preempted sequence came back"})
