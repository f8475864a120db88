"""The steps that lead to the verdict ADAPTER, as few as were found: told behind its remedy."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from typing import Any

from properties.contract import FILL_IN, AdapterError
from properties.levels import LevelSpec
from properties.minimise import judge, minimise
from properties.report import geometry_in_words, operation_in_words
from properties.trial import new_target

MOST_STEPS = 8
"""Of a longer trace only the number of its steps is told."""
LIMIT_S = 5.0
"""Seconds that are spent on finding a shorter one."""


def with_steps(spec: LevelSpec, make: Callable[[], Any], error: AdapterError) -> AdapterError:
    """The same verdict, with the steps that lead to it; the error as it is where there are none, or they do not again."""
    if error.trace is None or error.remedy == FILL_IN:
        return error

    def leads(geometry: Any, operations: Sequence[Any]) -> bool:
        verdict = judge(spec, make, geometry, operations)
        return verdict.adapter is not None and not verdict.breaches and _kind(verdict.adapter) == _kind(error)

    if not leads(*error.trace):
        return error
    capabilities = new_target(make).capabilities
    geometry, operations = minimise(
        spec,
        error.trace,
        leads,
        accepts=lambda geometry: spec.accepts(capabilities, geometry),
        time_limit_s=LIMIT_S,
        clock=time.monotonic,
    )
    shortest = judge(spec, make, geometry, operations).adapter or error
    return AdapterError(shortest.problem, f"{shortest.remedy}. {_told(geometry, operations)}")


def _kind(error: AdapterError) -> str:
    """The problem without names, numbers and lists, which are others in a smaller trace."""
    return re.sub(r"\[[^\]]*\]|'[^']*'|\b[A-Z]\b|\d+", "#", error.problem)


def _told(geometry: Any, operations: Sequence[Any]) -> str:
    words = geometry_in_words(geometry)
    steps = [operation_in_words(operation) for operation in operations]
    if len(steps) > MOST_STEPS:
        return f"It takes {len(steps)} steps ({words})"
    return f"The steps{f' ({words})' if words else ''}: {'; '.join(steps)}"
