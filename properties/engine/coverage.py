"""What a run of an engine target must have reached: clauses that apply to it, and states that it must have seen."""

from __future__ import annotations

from properties.contract import CLAUSES
from properties.engine.protocol import EngineCapabilities
from properties.engine.reach import reach_of

_ALWAYS = ("ALLOC-2", "ALLOC-5", "SLOT-2", "EVICT-1", "CONTENT-1", "BATCH-4", "PREEMPT-1", "LIVE-1")
_NEEDS = {"ALLOC-1": "free_blocks", "REF-2": "free_blocks", "REF-1": "ref_count", "SLOT-1": "table"}
_BATCH = ("BATCH-1", "BATCH-2", "BATCH-3", "SLOT-3")
_HASH = ("HASH-1", "HASH-2", "HASH-4", "HASH-5")


def applicable(capabilities: EngineCapabilities, offers: frozenset[str]) -> frozenset[str]:
    """Ids of the clauses that can be judged on a target with these capabilities and optional methods.

    Of the `batch` method it is assumed that it gives everything; a target that gives less reaches less.
    """
    found = set(_ALWAYS)
    found |= {id for id, need in _NEEDS.items() if need in offers}
    if "batch" in offers:
        found |= set(_BATCH)
    if capabilities.prefix_cache:
        found |= set(_HASH)
    if capabilities.swaps:
        found.add("SWAP-1")
    if capabilities.window:
        found.add("WINDOW-1")
    if "fork" in offers:
        found.add("COW-1")
    reach = reach_of(capabilities)
    found -= set(() if reach.hits else ("HASH-1", "HASH-2", "HASH-5"))
    found -= set(() if reach.preempts else ("PREEMPT-1", "SWAP-1"))
    found -= set(() if reach.partial else ("COW-1",))
    return frozenset(id for id in found if CLAUSES[id].rank == "safety")


def marks(capabilities: EngineCapabilities, offers: frozenset[str]) -> frozenset[str]:
    """States that a run must have reached at least once, or its clean verdict says nothing."""
    found, reach = {"a freed block was reused"}, reach_of(capabilities)
    if reach.preempts:
        found.add("a preempted request came back")
    if capabilities.prefix_cache and reach.hits:
        found.add("a prefix hit")
    if capabilities.chunked_prefill and reach.chunks:
        found.add("a chunked prefill")
    if "cancel" in offers:
        found.add("a cancel")
    if capabilities.oversized:
        found.add("a refusal")
    if capabilities.duplicates:
        found.add("a duplicate was refused")
    if capabilities.max_in_flight > 1:
        found.add("several steps in flight")
    if capabilities.any_finish_order and reach.several:
        found.add("a step finished out of order")
    if capabilities.swaps and reach.preempts:
        found |= {"a swap to host memory", "a request came back from host memory"}
    if capabilities.window and reach.slides:
        found.add("a window released a block")
    if "fork" in offers and reach.several:
        found.add("a fork")  # whether it copies is its own affair: one may compute everything again
    return frozenset(found)
