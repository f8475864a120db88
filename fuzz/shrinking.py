"""Smaller cases of one finding, in a child for single jobs: the minimiser of `properties`, in forks."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec

from fuzz import messages, versions
from fuzz.case_in_fork import (
    CRASH,
    call_limit,
    crash_message,
    fails_with,
    replay,
    run_in_fork,
    second_call_in_fork,
)
from fuzz.isolate import BEAT, Emit, in_fork
from properties.case import Case, encode
from properties.contract import Breach
from properties.minimise import REPEATS, minimise, step_broken
from properties.specs import spec_of
from properties.targets import Target
from properties.trial import EVERYTHING, run_trace
from properties.wording import UNREPEATED, is_unreturned

KEPT = (
    "Alone in a fresh process the {} call is right: what an earlier one left behind reaches it (scratch memory that is not "
    "written anew, a plan or a table that is kept)."
)


class Minimiser:
    """Smaller cases of one finding: all candidates in one fork, or each in its own where that is needed."""

    def __init__(self, target: Target, case: Case, command: messages.Minimise) -> None:
        self.target, self.case = target, case
        self.spec = spec_of(target.level)
        self.limit_s = call_limit(self.spec, command.limit_s)
        self.isolated = command.isolated or case.property == CRASH
        self.deadline = time.monotonic() + command.seconds

    def run(self) -> messages.Message:
        """The smallest case found that fails each time in forks of its own; the case itself where none does."""
        best = self._isolated() if self.isolated else self._together()
        missed = 0
        for candidate in (best, self.case):
            finished = self._finish(candidate)
            missed = REPEATS - 1 if finished is None else self._missed(finished)
            if finished is not None and not missed:
                return messages.Smaller(case=encode(finished).decode(), held=candidate is best)
        return messages.Smaller(case=encode(self.case).decode(), held=False, missed=missed)

    def _missed(self, case: Case) -> int:
        """How many of REPEATS - 1 runs do not fail at the step where it failed. A hang is taken as it is: each one costs its
        whole limit."""
        if case.property == CRASH and is_unreturned(case.message):
            return 0
        return sum(self._step_broken(case) != step_broken(case, case.property) for _ in range(REPEATS - 1))

    def _step_broken(self, case: Case) -> int:
        judged = replay(self.target, case, self.limit_s)
        if judged.died:
            return judged.step if case.property == CRASH else 0
        return next((step for id, _, step in judged.breaches if id == case.property), 0)

    def _together(self) -> Case:
        best = [self.case]

        def keep(frame: bytes) -> None:
            geometry, operations = self._decode(frame)
            best[0] = self._with(geometry, operations)

        in_fork(self._search, limit_s=self.limit_s, deadline=self.deadline + self.limit_s, on_frame=keep)
        return best[0]

    def _search(self, emit: Emit) -> None:
        caps = self.target.make().capabilities

        def fails(geometry: Any, operations: Sequence[Any]) -> bool:
            verdict = run_trace(
                self.spec, self.target.make, geometry, operations, tolerate=EVERYTHING, before=lambda op: emit(BEAT)
            )
            if not verdict.broke(self.case.property):
                return False
            emit(msgspec.json.encode((geometry, operations)))
            return True

        self._minimise(fails, lambda geometry: self.spec.accepts(caps, geometry))

    def _isolated(self) -> Case:
        limit_s = self._quick_limit()
        self.case = self._without_refused(limit_s)

        def fails(geometry: Any, operations: Sequence[Any]) -> bool:
            candidate = self._with(geometry, operations)
            return fails_with(run_in_fork(self.spec, self.target, candidate, limit_s), self.case.property)

        return self._with(*self._minimise(fails, lambda geometry: True))  # each fork asks whether it is accepted

    def _without_refused(self, limit_s: float) -> Case:
        """The case without its refused steps, if it fails so: where each candidate has its own process, few can be tried."""
        if self.case.property == CRASH:
            return self.case
        outcomes = replay(self.target, self.case, self.limit_s).outcomes
        kept = [op for i, op in enumerate(self.case.operations, 1) if not outcomes.get(i, "").startswith("refused")]
        shorter = self._with(self.case.geometry, kept)
        run = run_in_fork(self.spec, self.target, shorter, limit_s)
        return shorter if kept and fails_with(run, self.case.property) else self.case

    def _minimise(
        self, fails: Callable[[Any, Sequence[Any]], bool], accepts: Callable[[Any], bool]
    ) -> tuple[Any, tuple[Any, ...]]:
        return minimise(
            self.spec,
            (self.case.geometry, tuple(self.case.operations)),
            fails,
            accepts=accepts,
            time_limit_s=max(0.0, self.deadline - time.monotonic()),
            clock=time.monotonic,
        )

    def _quick_limit(self) -> float:
        """For a hang: how long the steps before it take, twenty times over, but no less than half a second."""
        before = self._with(self.case.geometry, tuple(self.case.operations)[:-1])
        started = time.monotonic()
        run = run_in_fork(self.spec, self.target, before, self.limit_s)
        taken = time.monotonic() - started
        return self.limit_s if run.failed else min(self.limit_s, max(0.5, 20 * taken))

    def _with(self, geometry: Any, operations: Sequence[Any]) -> Case:
        fields = msgspec.structs.asdict(self.case)
        return Case(**{**fields, "geometry": geometry, "operations": tuple(operations)})

    def _decode(self, frame: bytes) -> tuple[Any, tuple[Any, ...]]:
        kind = tuple[self.spec.geometry, tuple[self.spec.operation, ...]]  # type: ignore[name-defined]
        found: tuple[Any, tuple[Any, ...]] = msgspec.json.decode(frame, type=kind)
        return found

    def _finish(self, candidate: Case) -> Case | None:
        """The candidate cut behind the step that fails, without steps that have no meaning, and its message."""
        judged = replay(self.target, candidate, self.limit_s)
        if judged.died:
            return self._crashed(candidate, judged) if self.case.property == CRASH else None
        step = next((step for id, _, step in judged.breaches if id == self.case.property), None)
        if step is None:
            return None
        kept = [op for i, op in enumerate(candidate.operations[:step]) if i not in judged.skipped]
        cut = self._with(candidate.geometry, kept)
        again = replay(self.target, cut, self.limit_s)
        for chosen, result in ((cut, again), (candidate, judged)):
            for id, message, _ in result.breaches:
                if id == self.case.property:
                    return self._described(chosen, message, result.breaches, result.outcomes)
        return None

    def _crashed(self, candidate: Case, judged: messages.Judged) -> Case:
        cut = self._with(candidate.geometry, candidate.operations[: judged.step] or candidate.operations)
        message = crash_message(cut.operations, judged.died)  # what was broken before, nobody lived to tell
        return self._described(cut, message, [(CRASH, message, len(cut.operations))])

    def _what_is_kept(self, case: Case) -> str:
        """Where the call that goes wrong is right in a process of its own: that something is kept, in words."""
        if len(case.operations) > 1 and self.spec.joins:
            last = self._with(case.geometry, case.operations[-1:])
            which, run = "last", run_in_fork(self.spec, self.target, last, self.limit_s)
        elif len(case.operations) == 1 and self.spec.second_call is not None:
            which, run = "second", second_call_in_fork(self.spec, self.target, case, self.limit_s)
        else:
            return ""
        right = not run.failed and bool(run.frames) and msgspec.json.decode(run.frames[-1]) == []
        return f"\n{KEPT.format(which)}" if right else ""

    def _described(
        self,
        case: Case,
        message: str,
        breaches: Sequence[tuple[str, str, int]],
        outcomes: Mapping[int, str] = MappingProxyType({}),
    ) -> Case:
        now = {**case.versions, **versions.versions_of(self.target.name)}
        message += "" if UNREPEATED in message else self._what_is_kept(case)
        order = tuple(Breach(*breach) for breach in breaches)
        new = {"message": message, "versions": now, "flaky": False, "breaches": order, "outcomes": dict(outcomes)}
        return Case(**{**msgspec.structs.asdict(case), **new})
