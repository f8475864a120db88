"""Every case of a campaign follows from three things: the campaign's seed, the target's name, and the case's index."""

from __future__ import annotations

from pathlib import PurePath

import xxhash

from properties.drive import NUM_STEPS
from properties.targets import WITH_PATH

LONG_EVERY = 16
"""One case in so many is four times as long: some faults need a pool that has been through more."""


def case_seed(seed: int, target: str, index: int) -> int:
    """The seed of one case: 63 bits, the same on every machine and Python, and in whatever folder the target lies."""
    return xxhash.xxh64_intdigest(f"{seed}/{_without_folder(target)}/{index}".encode()) >> 1


def _without_folder(target: str) -> str:
    where, colon, what = target.partition(":")
    return where if where in WITH_PATH else f"{PurePath(where).name}{colon}{what}"


def num_steps(case: int) -> int:
    """How many operations the case of that seed has at most."""
    return NUM_STEPS * 4 if case % LONG_EVERY == 0 else NUM_STEPS
