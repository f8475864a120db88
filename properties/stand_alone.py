"""One trace as a test of its own: what the files of `pagefault show --as-test` call."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

from properties.contract import VIOLATIONS, Level, UsageError, clause
from properties.specs import spec_of
from properties.targets import Target, load
from properties.trial import EVERYTHING, run_trace


def check_trace(property: str, *, target: str, level: Level, geometry: Any, operations: Sequence[Any]) -> None:
    """Apply the operations to a fresh target and judge them, on a CPU.

    Raises the exception class of `property` (an `AssertionError`, see `properties.contract.VIOLATIONS`) with the
    explanation where that clause does not hold, `AdapterError` where the adapter breaks its own protocol, and `UsageError`
    where the target is not there, is of another level, or behaves so differently that a step has no meaning any more.
    """
    clause(property)
    found = _loaded(target, level)
    verdict = run_trace(spec_of(level), found.make, geometry, operations, tolerate=EVERYTHING)
    if verdict.broke(property):
        raise VIOLATIONS[property](verdict.message(property))
    if verdict.adapter is not None:
        raise verdict.adapter
    if verdict.illegal:
        raise UsageError(
            f"{verdict.illegal} of {len(operations)} steps have no meaning on {target} any more: it behaves otherwise now. "
            f"Run the properties on it, and remove this test if they hold"
        )


def _loaded(name: str, level: Level) -> Target:
    if level in ("attention", "cache") and "triton" not in sys.modules:
        os.environ.setdefault("TRITON_INTERPRET", "1")  # it counts from Triton's import on
    target = load(name)
    if target.level != level:
        raise UsageError(f"target {name} is of level {target.level}, the trace of level {level}: name a {level} target")
    if level not in ("attention", "cache"):
        return target
    from properties.attention.budget import on_device

    return on_device(target, "cpu")
