"""Apply a trace to a target and judge it: the one function behind machines, `repro`, minimiser, explorer and fuzzer."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from properties import declared
from properties.blame import last_lines, passes, said, strayed
from properties.contract import AdapterError, PagefaultError
from properties.levels import LevelSpec
from properties.protocol import Capabilities
from properties.timelimit import TRACE_LIMIT_S, TimedOut, time_limit
from properties.wording import unreturned

MAKE_LIMIT_S = 60.0
"""Seconds that an adapter may take to be made where no other limit is set: it may import a big engine."""
MUST_RETURN = "the class or function is called without arguments; it and open() must return and not end the process"
"""What an adapter is told that does not come to its first operation."""
EVERYTHING: frozenset[str] = frozenset({"*"})
"""As `tolerate`: no clause ends the trace, so that what lies behind an early fault is judged too."""


@dataclass
class Verdict:
    """What came of a trace.

    `breaches` are the clauses broken, each once, in order. `applied` are the operations that had a meaning, `illegal` the
    number of those that had none. `adapter` is set where the adapter broke its own protocol: then there is no finding.
    """

    breaches: list[Any] = field(default_factory=list)
    applied: list[Any] = field(default_factory=list)
    illegal: int = 0
    adapter: AdapterError | None = None
    state: Any = None
    outcomes: Counter[str] = field(default_factory=Counter)

    def broke(self, property: str) -> bool:
        """Whether that clause was broken."""
        return any(breach.property == property for breach in self.breaches)

    def message(self, property: str) -> str:
        """The explanation of the breach of that clause."""
        return str(next(breach.message for breach in self.breaches if breach.property == property))


def new_target(make: Callable[[], Any]) -> Any:
    """A fresh adapter with declared capabilities. Raises `AdapterError` where it has none or cannot be made.

    `UsageError` (a target that is unavailable here) passes through.
    """
    started = time.monotonic()
    try:
        with time_limit(MAKE_LIMIT_S):
            target = make()
        capabilities = getattr(target, "capabilities", None)
    except PagefaultError:
        raise
    except BaseException as error:
        if isinstance(error, TimedOut) and time.monotonic() - started >= MAKE_LIMIT_S:
            raise hung_outside_a_step("making the adapter", MAKE_LIMIT_S) from None
        passes(error)
        raise AdapterError(
            f"making the adapter raised {said(error)} ({last_lines(error)})",
            "the class or function is called without arguments, and must not fail",
        ) from error
    if capabilities is None:
        raise AdapterError(
            f"{type(target).__name__} declares no capabilities",
            "set `capabilities = Capabilities(...)` from properties.protocol on the class",
        )
    if capabilities is not _sound[0]:
        wrong = [declared.level_problem(target), declared.name_problem(target)]
        wrong += declared.problems(target) if isinstance(capabilities, Capabilities) else []
        for found in filter(None, wrong):
            raise AdapterError(*found)
        _sound[0] = capabilities
    return target


_sound: list[Any] = [None]
"""The declarations that were looked at last: usually one object, of a class of which thousands of adapters are made."""


@contextmanager
def undisturbed() -> Iterator[None]:
    """What a target does to the interpreter behind our back is its adapter's fault. Raises `AdapterError`.

    Its own exceptions outside of any call (from a signal handler), and a recursion limit that is too low for us.
    """
    limit = sys.getrecursionlimit()
    try:
        yield
    except PagefaultError:
        raise
    except Exception as error:
        now = sys.getrecursionlimit()
        sys.setrecursionlimit(max(now, limit))
        if isinstance(error, RecursionError) and now < limit:
            what = f"the target lowered Python's recursion limit from {limit} to {now}"
            raise AdapterError(what, "leave sys.setrecursionlimit alone, or give back what was there") from error
        if strayed(error):
            what = f"the target raised {said(error)} outside of any call ({last_lines(error)})"
            raise AdapterError(
                what, "set no signal handlers and no timers, or end them before a call returns"
            ) from error
        raise
    finally:
        sys.setrecursionlimit(limit)


def run_trace(
    spec: LevelSpec,
    make: Callable[[], Any],
    geometry: Any,
    operations: Iterable[Any],
    *,
    tolerate: Collection[str] = (),
    before: Callable[[Any], None] | None = None,
    limit_s: float = TRACE_LIMIT_S,
) -> Verdict:
    """Judge a trace on a fresh target.

    It ends at the first step that breaks a clause outside `tolerate`; every clause broken at that step is recorded. A crash
    always ends it, and so does a target that takes longer than `limit_s`. `before` is called with each operation before
    it is applied (the journal).
    """
    verdict = Verdict()
    referee = made = None
    try:
        with time_limit(spec.limit_s or limit_s), undisturbed():
            made = new_target(make)
            referee = spec.referee(made, geometry)
            verdict.state = referee.state
            _apply_all(referee, operations, tolerate, before, verdict)
    except AdapterError as error:
        verdict.adapter = led(error, geometry, verdict.applied)
    except TimedOut:
        call = "making the adapter" if made is None else f"open({geometry})"
        verdict.adapter = hung_outside_a_step(call, spec.limit_s or limit_s)
    finally:
        if referee is not None:
            verdict.breaches = list(referee.state.breaches)
    if referee is not None and verdict.adapter is None:
        _close(referee, geometry, verdict)
    return verdict


def opened(spec: LevelSpec, make: Callable[[], Any], geometry: Any, limit_s: float) -> Any:
    """A referee with a fresh target that was opened. Raises `AdapterError`, also where that takes too long."""
    limit_s = spec.limit_s or limit_s
    try:
        with time_limit(limit_s), undisturbed():
            return spec.referee(new_target(make), geometry)
    except TimedOut:
        raise hung_outside_a_step(f"making the adapter, or open({geometry})", limit_s) from None


def _apply_all(
    referee: Any,
    operations: Iterable[Any],
    tolerate: Collection[str],
    before: Callable[[Any], None] | None,
    verdict: Verdict,
) -> None:
    breaches = referee.state.breaches
    for operation in operations:
        if before is not None:
            before(operation)
        seen = len(breaches)
        verdict.applied.append(operation)
        outcome = referee.apply(operation)
        verdict.outcomes[outcome] += 1
        if outcome == "illegal":
            verdict.illegal += 1
            verdict.applied.pop()
            continue
        if outcome == "crashed" or ends(breaches[seen:], tolerate):
            return


def led(error: AdapterError, geometry: Any, operations: Sequence[Any]) -> AdapterError:
    """The error, which knows now what led to it. Modifies `error`."""
    error.trace = (geometry, tuple(operations)) if operations else None
    return error


def hung_outside_a_step(call: str, limit_s: float) -> AdapterError:
    """Making or opening a target took too long: that is the adapter's, since no operation was under way."""
    return AdapterError(f"{call}: {unreturned(limit_s)}", MUST_RETURN)


def ends(breaches: Iterable[Any], tolerate: Collection[str]) -> bool:
    """Whether a step with these breaches ends a trace."""
    return "*" not in tolerate and any(breach.property not in tolerate for breach in breaches)


def _close(referee: Any, geometry: Any, verdict: Verdict) -> None:
    try:
        referee.close()
    except AdapterError as error:
        verdict.adapter = led(error, geometry, verdict.applied)
    except BaseException as error:
        passes(error)
        failed = AdapterError(f"close raised {said(error)}", "close() must not fail")
        verdict.adapter = led(failed, geometry, verdict.applied)
