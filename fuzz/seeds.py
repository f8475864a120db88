"""Every case of a campaign follows from three things: the campaign's seed, the target's name, and the case's index."""

from __future__ import annotations

import xxhash

from properties.drive import NUM_STEPS
from properties.ledger import without_folder
from properties.targets import WITH_PATH

LONG_EVERY = 16
"""One case in so many is four times as long: some faults need a pool that has been through more."""


def case_seed(seed: int, target: str, index: int) -> int:
    """The seed of one case: 63 bits, the same on every machine and Python, and in whatever folder the target lies."""
    family = target.partition(":")[0]  # of a checkout: each of its revisions gets the same cases
    name = family if family in WITH_PATH else without_folder(target)
    return xxhash.xxh64_intdigest(f"{seed}/{name}/{index}".encode()) >> 1


def num_steps(case: int) -> int:
    """How many operations the case of that seed has at most."""
    return NUM_STEPS * 4 if case % LONG_EVERY == 0 else NUM_STEPS
