"""How much a cache target is tried in `pytest properties`: every step computes, compares and poisons tensors."""

from __future__ import annotations

from hypothesis import settings

from properties.cache.protocol import CacheCapabilities

_NUM_SEEDS = {"pagefault-dev": 40, "pagefault-ci": 120, "pagefault-night": 10_000}
_LEAST_SEEDS = 12
"""With so many traces every state is reached, whatever a target accepts of what ours accepts."""
_EXAMPLES = {"pagefault-dev": 6, "pagefault-ci": 20, "pagefault-night": 1000}


def budget(profile_name: str, profile: settings, capabilities: CacheCapabilities) -> tuple[settings, int]:
    """(Hypothesis settings, number of seeded traces) for a cache target under one of our profiles."""
    effort = capabilities.effort
    examples = max(1, round(_EXAMPLES[profile_name] * effort))
    return settings(profile, max_examples=examples), max(_LEAST_SEEDS, round(_NUM_SEEDS[profile_name] * effort))
