"""Single jobs of a child process: replay, confirm, minimise. The target is used in forks only, so that each is fresh."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from fuzz import messages, versions
from fuzz.isolate import BEAT, Emit, Ended, in_fork
from properties.case import Case, decode, encode
from properties.contract import UsageError
from properties.drive import drive
from properties.levels import LevelSpec, spec_of
from properties.minimise import minimise
from properties.targets import Target
from properties.trial import EVERYTHING, Verdict, run_trace

Say = Callable[[messages.Message], None]
CRASH = "CRASH-2"
"""The clause that a death or a hang of the process breaks."""
MADE_WRONG = "making the adapter"
"""How a problem begins that is the adapter's own, and not that of a machine where something is missing."""
TRIES = 4
"""How often a case is tried alone before it counts as one that does not fail by itself."""


def perform(target: Target, command: messages.Command, say: Say) -> messages.Message:
    """Do one job; `say` takes what is worth telling before its end. Raises `UsageError`."""
    if isinstance(command, messages.Replay):
        return replay(target, _case(command.case), command.limit_s)
    if isinstance(command, messages.Confirm):
        return confirm(target, _case(command.case), command)
    if isinstance(command, messages.Minimise):
        return _Minimiser(target, _case(command.case), command, say).run()
    if isinstance(command, messages.Make):
        return make(target, command.limit_s)
    if isinstance(command, messages.CheckTarget):
        from fuzz.check import check

        return check(target, command)
    raise UsageError(f"a child for single jobs does not do {type(command).__name__}")


def _case(text: str) -> Case:
    return decode(text.encode())


def make(target: Target, limit_s: float) -> messages.Made:
    """Make the adapter once, in a fork."""

    def work(emit: Emit) -> None:
        try:
            target.make()
            emit(b" ")
        except Exception as error:
            plain = isinstance(error, UsageError)
            emit((str(error) if plain else f"{MADE_WRONG} raised {type(error).__name__}: {error}").encode())

    ended = in_fork(work, limit_s=limit_s)
    if ended.failed:
        return messages.Made(problem=f"{MADE_WRONG}: {ended.died or f'it did not end within {limit_s:g} s'}")
    return messages.Made(problem=ended.frames[-1].decode(errors="replace").strip())


# ---- replay --------------------------------------------------------------------------------------------------------


def replay(target: Target, case: Case, limit_s: float) -> messages.Judged:
    """Judge a case in a fork. No operation may take longer than `limit_s`."""
    spec = spec_of(target.level)
    ended = in_fork(lambda emit: _replay(spec, target, case, emit), limit_s=limit_s)
    step = min(ended.beats, len(case.operations))
    if ended.failed:
        how = ended.died or f"it did not return within {limit_s:g} s"
        return messages.Judged(died=how, step=step)
    return msgspec.json.decode(ended.frames[-1], type=messages.Judged)


def _replay(spec: LevelSpec, target: Target, case: Case, emit: Emit) -> None:
    watch = _Watch(spec)
    verdict = run_trace(
        watch.spec,
        target.make,
        case.geometry,
        case.operations,
        tolerate=EVERYTHING,
        before=lambda operation: emit(BEAT),
    )
    emit(msgspec.json.encode(_judged(verdict, watch)))


def _judged(verdict: Verdict, watch: _Watch) -> messages.Judged:
    return messages.Judged(
        breaches=tuple((b.property, b.message, b.step) for b in verdict.breaches),
        illegal=watch.illegal,
        skipped=tuple(watch.skipped),
        adapter=str(verdict.adapter or ""),
        step=len(verdict.applied),
    )


class _Watch:
    """The spec with a referee that says why an operation has no meaning.

    An operation on a sequence whose earlier operation was refused is no mistake of the case: the target behaves
    otherwise now than when the case was written.
    """

    def __init__(self, spec: LevelSpec) -> None:
        self.illegal = ""
        self.skipped: list[int] = []
        self.spec = dataclasses.replace(spec, referee=self._referee)
        self._plain = spec
        self._refused: set[str] = set()

    def _referee(self, target: Any, geometry: Any) -> Any:
        referee: Any = self._plain.referee(target, geometry)
        apply, why = referee.apply, self._plain.why_illegal

        def watched(operation: Any) -> str:
            reason = why(referee.state, operation) if why is not None else None
            outcome: str = apply(operation)
            if outcome == "illegal":
                self.skipped.append(referee.state.step - 1)
            names = {name for field in ("name", "child") if (name := getattr(operation, field, None))}
            if outcome == "refused" or (outcome == "illegal" and names & self._refused):
                self._refused |= names
            elif outcome == "illegal" and not self.illegal:
                self.illegal = f"step {referee.state.step} ({operation.kind}) has no meaning: {reason or 'unknown'}"
            return outcome

        referee.apply = watched
        return referee


# ---- confirm -------------------------------------------------------------------------------------------------------


def confirm(target: Target, case: Case, command: messages.Confirm) -> messages.Confirmed:
    """Does the case fail again: alone, sometimes, or only behind the cases that ran before it?"""
    spec = spec_of(target.level)
    runs = [_run(spec, target, case, command.limit_s)]
    if _fails(runs[0], case.property):
        return _confirmed(runs[0])
    while len(runs) < TRIES:
        runs.append(_run(spec, target, case, command.limit_s))
    failed = sum(_fails(run, case.property) for run in runs)
    if failed:
        detail = f"it failed in {failed} of {TRIES} fresh processes: the target is not deterministic"
        return messages.Confirmed(how="flaky", detail=detail)
    for count in sorted({1, 20, len(command.preceding)}):
        before = command.preceding[-count:]
        if (
            count <= len(command.preceding)
            and before
            and _fails(_run(spec, target, case, command.limit_s, before), case.property)
        ):
            detail = f"alone it passes, behind {len(before)} earlier cases it fails"
            return messages.Confirmed(how="leaks", detail=detail)
    return messages.Confirmed(how="gone", detail=f"it passed in {TRIES} fresh processes")


def _confirmed(run: Ended) -> messages.Confirmed:
    return messages.Confirmed(how="failed", died=run.failed, signal=run.signal)


def _run(
    spec: LevelSpec, target: Target, case: Case, limit_s: float, preceding: Sequence[tuple[int, int]] = ()
) -> Ended:
    def work(emit: Emit) -> None:
        for seed, steps in preceding:
            drive(spec, target.make, seed, num_steps=steps, tolerate=EVERYTHING, before=lambda op: emit(BEAT))
        _emit_broken(spec, target, case.geometry, case.operations, emit)

    return in_fork(work, limit_s=limit_s)


def _emit_broken(spec: LevelSpec, target: Target, geometry: Any, operations: Sequence[Any], emit: Emit) -> None:
    verdict = run_trace(spec, target.make, geometry, operations, tolerate=EVERYTHING, before=lambda op: emit(BEAT))
    emit(msgspec.json.encode([breach.property for breach in verdict.breaches]))


def _fails(run: Ended, property: str) -> bool:
    if property == CRASH:
        return run.failed
    if run.failed or not run.frames:
        return False
    return property in msgspec.json.decode(run.frames[-1])


# ---- minimise ------------------------------------------------------------------------------------------------------


class _Minimiser:
    """Smaller cases of one finding: all candidates in one fork, or each in its own where that is needed."""

    def __init__(self, target: Target, case: Case, command: messages.Minimise, say: Say) -> None:
        self.target, self.case, self.say = target, case, say
        self.spec = spec_of(target.level)
        self.limit_s = command.limit_s
        self.isolated = command.isolated or case.property == CRASH
        self.deadline = time.monotonic() + command.seconds

    def run(self) -> messages.Message:
        """The smallest case found, judged once more in a fork of its own; the case itself where none held."""
        best = self._isolated() if self.isolated else self._together()
        finished = self._finish(best)
        if finished is not None:
            return messages.Smaller(case=encode(finished).decode(), held=True)
        return messages.Smaller(case=encode(self._finish(self.case) or self.case).decode(), held=False)

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

        self._minimise(fails, caps)

    def _isolated(self) -> Case:
        caps = self.target.make().capabilities
        limit_s = self._quick_limit()

        def fails(geometry: Any, operations: Sequence[Any]) -> bool:
            candidate = self._with(geometry, operations)
            return _fails(_run(self.spec, self.target, candidate, limit_s), self.case.property)

        return self._with(*self._minimise(fails, caps))

    def _minimise(self, fails: Callable[[Any, Sequence[Any]], bool], caps: Any) -> tuple[Any, tuple[Any, ...]]:
        return minimise(
            self.spec,
            (self.case.geometry, tuple(self.case.operations)),
            fails,
            accepts=lambda geometry: self.spec.accepts(caps, geometry),
            time_limit_s=max(0.0, self.deadline - time.monotonic()),
        )

    def _quick_limit(self) -> float:
        """For a hang: how long the steps before it take, twenty times over, but no less than half a second."""
        before = self._with(self.case.geometry, tuple(self.case.operations)[:-1])
        started = time.monotonic()
        run = _run(self.spec, self.target, before, self.limit_s)
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
        if self.case.property == CRASH:
            return None if not judged.died else self._crashed(candidate, judged)
        step = next((step for id, _, step in judged.breaches if id == self.case.property), None)
        if step is None:
            return None
        kept = [op for i, op in enumerate(candidate.operations[:step]) if i not in judged.skipped]
        cut = self._with(candidate.geometry, kept)
        again = replay(self.target, cut, self.limit_s)
        for chosen, result in ((cut, again), (candidate, judged)):
            for id, message, _ in result.breaches:
                if id == self.case.property:
                    return self._described(chosen, message)
        return None

    def _crashed(self, candidate: Case, judged: messages.Judged) -> Case:
        cut = self._with(candidate.geometry, candidate.operations[: judged.step] or candidate.operations)
        return self._described(cut, crash_message(cut.operations, judged.died))

    def _described(self, case: Case, message: str) -> Case:
        now = {**case.versions, **versions.versions_of(self.target.name)}
        return Case(**{**msgspec.structs.asdict(case), "message": message, "versions": now, "flaky": False})


def crash_message(operations: Sequence[Any], how: str) -> str:
    """The explanation of CRASH-2 for a trace whose last operation was begun and never ended."""
    if not operations:
        return f"open: {how}"
    return f"{operations[-1].kind} of {getattr(operations[-1], 'name', 'everything')}: {how}"
