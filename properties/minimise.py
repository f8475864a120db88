"""The minimiser: works on traces, after (or instead of) Hypothesis, whose shrinker stops above the shortest trace.

Greedy: take the first smaller trace that still breaks the clause, start again from it, stop when none does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from properties.case import Case
from properties.levels import LevelSpec
from properties.trial import EVERYTHING, Verdict, run_trace

Trace = tuple[Any, tuple[Any, ...]]
REPEATS = 4
"""How often a case breaks its clause, each time at the same step, before it is called certain: by chance, a target that is
wrong in one look of hundreds breaks a long case in every second run."""


def minimise(
    spec: LevelSpec,
    trace: Trace,
    fails: Callable[[Any, Sequence[Any]], bool],
    *,
    accepts: Callable[[Any], bool] = lambda geometry: True,
    time_limit_s: float = 30.0,
    clock: Callable[[], float] = time.process_time,
) -> Trace:
    """The smallest trace found that still `fails(geometry, operations)`; `accepts(geometry)` bounds the search.

    Deterministic but for `time_limit_s` by `clock`, after which the best so far is returned. The processor time of this
    process does not depend on what else the machine does; where `fails` waits for other processes, use `time.monotonic`.
    """
    deadline = clock() + time_limit_s
    tried: set[bytes] = set()
    geometry, operations = trace[0], tuple(trace[1])
    progress = True
    while progress:
        progress = False
        for smaller_geometry, smaller in spec.shrink(geometry, operations):
            if clock() > deadline:
                return geometry, operations
            if not smaller or not accepts(smaller_geometry):
                continue
            key = msgspec.msgpack.encode((smaller_geometry, smaller))
            if key in tried:
                continue
            tried.add(key)
            if fails(smaller_geometry, smaller):
                geometry, operations, progress = smaller_geometry, smaller, True
                break
    return geometry, operations


def breaks(spec: LevelSpec, make: Callable[[], Any], property: str) -> Callable[[Any, Sequence[Any]], bool]:
    """`fails` for a clause, judged in this process: the trace breaks it, whatever else it breaks before."""

    def fails(geometry: Any, operations: Sequence[Any]) -> bool:
        return judge(spec, make, geometry, operations).broke(property)

    return fails


def judge(spec: LevelSpec, make: Callable[[], Any], geometry: Any, operations: Sequence[Any]) -> Verdict:
    """The whole trace, whatever it breaks on the way."""
    return run_trace(spec, make, geometry, operations, tolerate=EVERYTHING)


def step_broken(broken: Verdict | Case, property: str) -> int | None:
    """The step at which a trace, or a case, breaks a clause, if it does."""
    return next((breach.step for breach in broken.breaches if breach.property == property), None)


def trimmed(spec: LevelSpec, make: Callable[[], Any], trace: Trace, property: str) -> Trace:
    """The trace without operations that have no meaning, cut after the step that breaks the clause."""
    verdict = judge(spec, make, *trace)
    cut = judge(spec, make, trace[0], trace[1][: step_broken(verdict, property)])
    return (trace[0], tuple(cut.applied)) if cut.broke(property) else trace


__all__ = ["REPEATS", "Trace", "breaks", "judge", "minimise", "step_broken", "trimmed"]
