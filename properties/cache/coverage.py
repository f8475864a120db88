"""What a run of a cache target must have reached: clauses that apply to it, and states that it must have seen."""

from __future__ import annotations

from properties.blocks import coverage as blocks
from properties.cache.protocol import CacheCapabilities


def applicable(capabilities: CacheCapabilities, offers: frozenset[str]) -> frozenset[str]:
    """Ids of the clauses that can be judged on a target with these capabilities and optional methods."""
    found = set(blocks.applicable(capabilities, offers)) | {"READ-1", "READ-5", "READ-6", "PREEMPT-1"}
    if capabilities.strided:
        found.add("READ-7")
    if capabilities.pads:
        found.add("BATCH-3")
    if "pools" in offers:
        found.add("STORE-1")
        if capabilities.withstands:
            found.add("READ-2")
        if capabilities.pads:
            found.add("SLOT-3")
        if {"fork", "copies"} <= offers:
            found.add("COW-2")
    return frozenset(found)


def marks(capabilities: CacheCapabilities, offers: frozenset[str]) -> frozenset[str]:
    """States that a run must have reached at least once, or its clean verdict says nothing."""
    found = set(blocks.marks(capabilities, offers)) | {"decode", "prefill", "prefill behind earlier tokens"}
    if capabilities.max_sequences is None or capabilities.max_sequences > 1:
        found |= {"a batch of several sequences", "a ragged batch"}
    if capabilities.pads:
        found.add("a padded batch")
    return frozenset(found)
