"""One case in a fork of its own: what it breaks, where, and how the process ended if it did not live to tell."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import msgspec

from fuzz import messages
from fuzz.isolate import BEAT, Emit, Ended
from fuzz.own_error import in_guarded_fork
from fuzz.values import DEFAULT_LIMIT_S
from properties.case import Case, decode, encode
from properties.drive import drive
from properties.levels import LevelSpec
from properties.minimise import Trace
from properties.report import operation_in_words
from properties.specs import spec_of
from properties.targets import Target
from properties.trial import EVERYTHING, MUST_RETURN, Verdict, run_trace
from properties.wording import unreturned

CRASH = "CRASH-2"
"""The clause that a death or a hang of the process breaks."""
MADE_WRONG = "making the adapter"
"""How a problem begins that is the adapter's own, and not that of a machine where something is missing."""
NO_LIMIT_S = 30 * 24 * 3600.0
"""The time limit within the process, which could not stop native code: here a process outside watches each call."""


def call_limit(spec: LevelSpec, limit_s: float) -> float:
    """Seconds that one call may take: as asked for; if nothing was, no less than a level of slow calls needs."""
    return limit_s if limit_s != DEFAULT_LIMIT_S else max(limit_s, spec.limit_s or 0.0)


def replay(target: Target, case: Case, limit_s: float) -> messages.Judged:
    """Judge a case in a fork. No operation may take longer than `limit_s`. Raises `OwnError` and `UsageError`."""
    spec = spec_of(target.level)
    ended = in_guarded_fork(lambda emit: _replay(spec, target, case, emit), limit_s=limit_s)
    step = min(ended.beats, len(case.operations))
    if ended.failed:
        how = ended.died or unreturned(limit_s)
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
        outcomes=getattr(verdict.state, "outcomes", {}),
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
                self.illegal = f"step {referee.state.step} ({kind_of(operation)}) has no meaning: {reason or 'unknown'}"
            return outcome

        referee.apply = watched
        return referee


def run_in_fork(
    spec: LevelSpec, target: Target, case: Case, limit_s: float, preceding: Sequence[tuple[int, int]] = ()
) -> Ended:
    """The clauses that a case breaks, as JSON in the last frame; behind the traces of `preceding` (seed, steps) if given."""

    def work(emit: Emit) -> None:
        drive_again(spec, target, preceding, emit)
        _emit_broken(spec, target, case.geometry, case.operations, emit)

    return in_guarded_fork(work, limit_s=limit_s)


def second_call_in_fork(spec: LevelSpec, target: Target, case: Case, limit_s: float) -> Ended:
    """As `run_in_fork`, of the second call of the case's only operation by itself; "null" where it makes none."""

    def work(emit: Emit) -> None:
        first = case.operations[0]
        second = None if spec.second_call is None else spec.second_call(first, target.make().capabilities)
        if second is None or second == first:
            emit(b"null")
        else:
            _emit_broken(spec, target, case.geometry, (second,), emit)

    return in_guarded_fork(work, limit_s=limit_s)


def joined_case(
    spec: LevelSpec, target: Target, case: Case, limit_s: float, preceding: Sequence[tuple[int, int]]
) -> Case | None:
    """The operations of earlier traces with those of the case behind them, as one case: what one of them leaves behind
    is then within it. None where the traces did not come to their end."""

    def work(emit: Emit) -> None:
        traces = drive_again(spec, target, preceding, emit)
        before = [op for _, operations in traces for op in operations if op != spec.closing]
        emit(encode(Case(**{**msgspec.structs.asdict(case), "operations": (*before, *case.operations)})))

    ended = in_guarded_fork(work, limit_s=limit_s)
    return None if ended.failed or not ended.frames else decode(ended.frames[-1])


def drive_again(spec: LevelSpec, target: Target, preceding: Sequence[tuple[int, int]], emit: Emit) -> list[Trace]:
    """Drives the traces (seed, steps) one after the other; of each its geometry and the operations that were applied."""
    traces: list[Trace] = []
    for seed, steps in preceding:
        geometry, verdict = drive(
            spec,
            target.make,
            seed,
            num_steps=steps,
            tolerate=EVERYTHING,
            before=lambda op: emit(BEAT),
            limit_s=NO_LIMIT_S,
        )
        traces.append((geometry, tuple(verdict.applied)))
    return traces


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
    """Whether a run of `run_in_fork` broke a clause."""
    if run.failed or not run.frames:
        return property == CRASH and run.failed
    return property in msgspec.json.decode(run.frames[-1])


def crash_message(operations: Sequence[Any], how: str) -> str:
    """The explanation of CRASH-2 for a trace whose last operation was begun and never ended."""
    if not operations:
        return f"open: {how}"
    return f"{call_in_words(operations[-1])}: {how}"


def kind_of(operation: Any) -> str:
    """The kind of an operation, of whatever level: "append", "read"."""
    return str(operation.__struct_config__.tag)


def call_in_words(operation: Any) -> str:
    """An operation in a few words: `append of A`; one without a name, of tensors, whole."""
    kind = kind_of(operation)
    if kind in ("read", "store", "copy_blocks"):
        return operation_in_words(operation)
    return f"{kind} of {getattr(operation, 'name', 'everything')}"
