"""A target that must have no finding, over seeded traces of its level."""

from collections.abc import Callable
from typing import Any

from properties.drive import drive
from properties.levels import LevelSpec


def reads_judged_clean(spec: LevelSpec, make: Callable[[], Any], num_traces: int) -> int:
    """Drives so many traces, asserts that nothing is wrong with target or adapter, and counts the judged reads."""
    judged = 0
    for seed in range(num_traces):
        _, verdict = drive(spec, make, seed)
        assert verdict.adapter is None, verdict.adapter
        assert verdict.breaches == [], verdict.breaches[0].message
        judged += verdict.state.judged["READ-1"]
    return judged
