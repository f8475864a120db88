"""How much a target is tried in `pytest properties`, by its level, the profile and the device."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import settings

from properties.attention.budget import budget, on_device
from properties.cache.budget import budget as cache_budget
from properties.judging import NUM_SEEDS
from properties.machine import PROFILES
from properties.targets import Target

ON_DEVICES = ("attention", "cache")
"""Levels whose targets compute: `--device` is about them."""


class Effort(NamedTuple):
    """`target` on its device, the settings of the Hypothesis machine, and the number of seeded traces after it."""

    target: Target
    profile: settings
    num_seeds: int


def effort_for(target: Target, profile_name: str, device: str) -> Effort:
    """Raises `Unavailable` where the target does not run on that device."""
    profile = PROFILES[profile_name]
    if target.level not in ON_DEVICES:
        return Effort(target, profile, NUM_SEEDS[profile_name])
    target = on_device(target, device)
    if target.level == "attention":
        return Effort(target, *budget(profile_name, profile, device))
    return Effort(target, *cache_budget(profile_name, profile, target.make().capabilities))
