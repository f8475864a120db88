"""What a target keeps between cases, made plain: the shortest earlier trace found behind which another one breaks, and both."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import msgspec

from fuzz.case_in_fork import NO_LIMIT_S, drive_again
from fuzz.isolate import BEAT, Emit
from fuzz.own_error import in_guarded_fork
from properties.case import Case
from properties.levels import LevelSpec
from properties.minimise import Trace, minimise
from properties.report import geometry_in_words, steps_in_words
from properties.targets import Target
from properties.trial import EVERYTHING, run_trace

SECONDS = 8.0
"""For making both traces smaller: the campaign of this target is over, and its user waits for this."""
MOST_SHOWN = 3
"""More earlier traces than this explain nothing."""


class _Seen(msgspec.Struct):
    """What the last trace broke: the explanation, the step, and what its steps came to."""

    message: str
    step: int
    outcomes: dict[int, str] = {}


class Behind:
    """A case that breaks its clause behind earlier traces, each on a system of its own, in one process; never alone."""

    def __init__(self, spec: LevelSpec, target: Target, case: Case, limit_s: float) -> None:
        self.spec, self.target, self.case, self.limit_s = spec, target, case, limit_s
        self.deadline = time.monotonic() + SECONDS

    def explained(self, preceding: Sequence[tuple[int, int]]) -> str:
        """In words: what it breaks, and below in lines of their own the steps of all traces; "" where that is not found."""
        earlier = self._fewer(self._drawn(preceding))
        if not earlier or len(earlier) > MOST_SHOWN:
            seen = self._seen(earlier, self._own())
            return seen.message if seen else ""
        for index in range(len(earlier)):
            rest = earlier[:index], earlier[index + 1 :]
            earlier[index] = self._smaller(earlier[index], lambda trace, rest=rest: [*rest[0], trace, *rest[1]])
        own = minimise(self.spec, self._own(), lambda *trace: self._seen(earlier, trace) is not None, **self._within())
        seen = self._seen(earlier, own)
        return "" if seen is None else "\n".join([seen.message, *_told(earlier, own, self.case.property, seen)])

    def _own(self) -> Trace:
        return self.case.geometry, tuple(self.case.operations)

    def _within(self) -> dict[str, Any]:
        return {"time_limit_s": max(0.0, self.deadline - time.monotonic()), "clock": time.monotonic}

    def _drawn(self, preceding: Sequence[tuple[int, int]]) -> list[Trace]:
        """The earlier traces, drawn again one behind the other in a fork."""

        def work(emit: Emit) -> None:
            for trace in drive_again(self.spec, self.target, preceding, emit):
                emit(msgspec.json.encode(trace))

        ended = in_guarded_fork(work, limit_s=self.limit_s)
        kind = tuple[self.spec.geometry, tuple[self.spec.operation, ...]]  # type: ignore[name-defined]
        return [msgspec.json.decode(frame, type=kind) for frame in ended.frames if not ended.failed]

    def _fewer(self, earlier: list[Trace]) -> list[Trace]:
        """Without the traces that are not needed: halves first, then one by one."""
        size = len(earlier) // 2
        while size and time.monotonic() < self.deadline:
            start = 0
            while start < len(earlier) and time.monotonic() < self.deadline:
                without = earlier[:start] + earlier[start + size :]
                if without and self._seen(without, self._own()):
                    earlier = without
                else:
                    start += size
            size //= 2
        return earlier

    def _smaller(self, trace: Trace, among: Any) -> Trace:
        """One of the earlier traces made smaller; `among` puts it back among the others."""
        own = self._own()
        return minimise(
            self.spec, trace, lambda *smaller: self._seen(among(smaller), own) is not None, **self._within()
        )

    def _seen(self, earlier: Sequence[Trace], last: Trace) -> _Seen | None:
        """What the last trace breaks behind the others, in a fork of its own; None where it does not break the clause."""

        def work(emit: Emit) -> None:
            make = self.target.make
            if not all(self.spec.accepts(make().capabilities, geometry) for geometry, _ in (*earlier, last)):
                return
            options: dict[str, Any] = {"tolerate": EVERYTHING, "before": lambda op: emit(BEAT), "limit_s": NO_LIMIT_S}
            for trace in earlier:
                run_trace(self.spec, make, *trace, **options)
            verdict = run_trace(self.spec, make, *last, **options)
            outcomes = getattr(verdict.state, "outcomes", {})
            for breach in verdict.breaches:
                if breach.property == self.case.property:
                    emit(msgspec.json.encode(_Seen(breach.message, breach.step, outcomes)))
                    return

        ended = in_guarded_fork(work, limit_s=self.limit_s)
        return None if ended.failed or not ended.frames else msgspec.json.decode(ended.frames[-1], type=_Seen)


def _told(earlier: Sequence[Trace], own: Trace, property_id: str, seen: _Seen) -> list[str]:
    lines = []
    for geometry, operations in earlier:
        lines += [f"an earlier system ({geometry_in_words(geometry)}):", *steps_in_words(operations)]
    lines.append(f"then a new one ({geometry_in_words(own[0])}):")
    return lines + steps_in_words(own[1], seen.step, property_id, seen.outcomes)
