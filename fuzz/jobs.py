"""Single jobs of a child process: replay, confirm, minimise. The target is used in forks only, so that each is fresh."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import msgspec

from fuzz import messages
from fuzz.isolate import BEAT, Emit, Ended, in_fork
from fuzz.making import signs_of_life
from properties.blame import clean, last_lines, said
from properties.case import Case, decode
from properties.contract import UsageError
from properties.drive import drive
from properties.levels import LevelSpec
from properties.specs import spec_of
from properties.targets import Target
from properties.trial import EVERYTHING, MUST_RETURN, Verdict, run_trace

CRASH = "CRASH-2"
"""The clause that a death or a hang of the process breaks."""
MADE_WRONG = "making the adapter"
"""How a problem begins that is the adapter's own, and not that of a machine where something is missing."""
NO_LIMIT_S = 30 * 24 * 3600.0
"""The time limit within the process, which could not stop native code: here a process outside watches each call."""
TRIES = 4
"""How often a case is tried alone before it counts as one that does not fail by itself."""
LEAK_TRIES = 6
"""How often it must fail behind others and pass alone: by chance, at one time in five, that happens once in 60,000 cases."""


def perform(target: Target, command: messages.Command) -> messages.Message:
    """Do one job. Raises `UsageError`."""
    if isinstance(command, messages.Replay):
        return replay(target, _case(target, command.case), call_limit(spec_of(target.level), command.limit_s))
    if isinstance(command, messages.Confirm):
        return confirm(target, _case(target, command.case), command)
    if isinstance(command, messages.Minimise):
        from fuzz.shrinking import Minimiser

        return Minimiser(target, _case(target, command.case), command).run()
    if isinstance(command, messages.Make):
        return make(target, command.limit_s)
    if isinstance(command, messages.CheckTarget):
        from fuzz.check import check

        return check(target, command)
    raise UsageError(f"a child for single jobs does not do {type(command).__name__}")


def call_limit(spec: LevelSpec, limit_s: float) -> float:
    """Seconds that one call may take: as asked for, but no less than a level of slow calls needs."""
    return max(limit_s, spec.limit_s or 0.0)


def _case(target: Target, text: str) -> Case:
    """The case of a command. Raises `UsageError` where it is of another level than the target."""
    case = decode(text.encode())
    if case.level != target.level:
        raise UsageError(
            f"the case is of level {case.level}, and {target.name} is a target of level {target.level}: name a "
            f"{case.level} target with --target"
        )
    return case


def make(target: Target, limit_s: float) -> messages.Made:
    """Make the adapter once, in a fork."""

    def work(emit: Emit) -> None:
        try:
            with signs_of_life(lambda: emit(BEAT)):
                target.make()
            emit(b" ")
        except UsageError as error:
            emit(clean(str(error), 2000).encode())
        except BaseException as error:
            emit(f"{MADE_WRONG} raised {said(error)} ({last_lines(error)})".encode())

    ended = in_fork(work, limit_s=limit_s)
    if ended.failed:
        return messages.Made(problem=f"{MADE_WRONG}: {ended.died or f'it did not return within {limit_s:g} s'}")
    return messages.Made(problem=ended.frames[-1].decode(errors="replace").strip())


# ---- replay --------------------------------------------------------------------------------------------------------


def replay(target: Target, case: Case, limit_s: float) -> messages.Judged:
    """Judge a case in a fork. No operation may take longer than `limit_s`."""
    spec = spec_of(target.level)
    ended = in_fork(lambda emit: _replay(spec, target, case, emit), limit_s=limit_s)
    step = min(ended.beats, len(case.operations))
    if ended.failed:
        how = ended.died or f"it did not return within {limit_s:g} s"
        if not step:
            return messages.Judged(adapter=f"before the first operation: {how}. Remedy: {MUST_RETURN}")
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
        limit_s=NO_LIMIT_S,
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
    limit_s = call_limit(spec, command.limit_s)
    runs = [run_in_fork(spec, target, case, limit_s)]
    if fails_with(runs[0], case.property):
        return _confirmed(runs[0])
    while len(runs) < TRIES:
        runs.append(run_in_fork(spec, target, case, limit_s))
    failed = sum(fails_with(run, case.property) for run in runs)
    if failed:
        detail = f"it failed in {failed} of {TRIES} fresh processes: the target is not deterministic"
        return messages.Confirmed(how="flaky", detail=detail)
    for count in (1, 20, len(command.preceding)):
        before = command.preceding[-count:]
        if len(before) == count and _leaks(spec, target, case, limit_s, before):
            detail = f"alone it passes, behind {len(before)} earlier case{'s' * (count != 1)} it fails"
            return messages.Confirmed(how="leaks", detail=detail)
    return messages.Confirmed(how="gone", detail=f"it passed in {TRIES} fresh processes")


def _leaks(spec: LevelSpec, target: Target, case: Case, limit_s: float, before: Sequence[tuple[int, int]]) -> bool:
    """Whether a case fails behind others and only there, time after time: a target that fails by chance is not blamed."""
    for _ in range(LEAK_TRIES):
        if not fails_with(run_in_fork(spec, target, case, limit_s, before), case.property):
            return False
        if fails_with(run_in_fork(spec, target, case, limit_s), case.property):
            return False
    return bool(before)


def _confirmed(run: Ended) -> messages.Confirmed:
    return messages.Confirmed(how="failed", died=run.failed, signal=run.signal)


def run_in_fork(
    spec: LevelSpec, target: Target, case: Case, limit_s: float, preceding: Sequence[tuple[int, int]] = ()
) -> Ended:
    def work(emit: Emit) -> None:
        for seed, steps in preceding:
            drive(
                spec,
                target.make,
                seed,
                num_steps=steps,
                tolerate=EVERYTHING,
                before=lambda op: emit(BEAT),
                limit_s=NO_LIMIT_S,
            )
        _emit_broken(spec, target, case.geometry, case.operations, emit)

    return in_fork(work, limit_s=limit_s)


def _emit_broken(spec: LevelSpec, target: Target, geometry: Any, operations: Sequence[Any], emit: Emit) -> None:
    if not spec.accepts(target.make().capabilities, geometry):
        emit(b"[]")  # a candidate of the minimiser that this target does not take
        return
    verdict = run_trace(
        spec,
        target.make,
        geometry,
        operations,
        tolerate=EVERYTHING,
        before=lambda op: emit(BEAT),
        limit_s=NO_LIMIT_S,
    )
    emit(msgspec.json.encode([breach.property for breach in verdict.breaches]))


def fails_with(run: Ended, property: str) -> bool:
    if run.failed or not run.frames:
        return property == CRASH and run.failed
    return property in msgspec.json.decode(run.frames[-1])


def crash_message(operations: Sequence[Any], how: str) -> str:
    """The explanation of CRASH-2 for a trace whose last operation was begun and never ended."""
    if not operations:
        return f"open: {how}"
    return f"{operations[-1].kind} of {getattr(operations[-1], 'name', 'everything')}: {how}"
