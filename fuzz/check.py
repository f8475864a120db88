"""Is an adapter sound? Found out by using it as campaigns do, in forks, before its answers are believed."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import msgspec
import xxhash

from fuzz import messages
from fuzz.check_static import Problem, static_problems
from fuzz.isolate import BEAT, Emit, in_fork
from fuzz.seeds import case_seed
from properties.contract import CLAUSES, UsageError
from properties.drive import drive
from properties.levels import LevelSpec
from properties.specs import spec_of
from properties.targets import Target
from properties.trial import EVERYTHING

NUM_REPEATED = 40
"""Traces that are run three times; what depends on time, chance or hash order shows in the first few."""
SLOW_PER_S = 50.0
"""Judged operations a second below which a campaign is worth little."""
_OPENS = "build a new implementation in open(), and reset its class-level globals there"


def check(target: Target, command: messages.CheckTarget) -> messages.Checked:
    """Check an adapter. What is wrong with the implementation behind it is left to `pagefault run`."""
    spec = spec_of(target.level)
    static = _in_fork(lambda emit: _static(target, spec, emit), command.limit_s, "making the adapter")
    if static.problems:
        return static
    target.make()  # what it imports is there in every fork: seconds each for torch or transformers
    use = _in_fork(lambda emit: _use(target, spec, command.seconds, emit), command.limit_s, "a call")
    if not use.notes:  # it did not come to its end: what follows would only say the same
        return messages.Checked(problems=use.problems, notes=static.notes)
    repeated = _repeat(target, spec, command.limit_s)
    problems = (*repeated.problems, *use.problems)  # an answer that changes explains the rest
    return messages.Checked(problems=problems, notes=(*static.notes, *use.notes, *repeated.notes))


def _in_fork(work: Callable[[Emit], None], limit_s: float, what: str) -> messages.Checked:
    ended = in_fork(work, limit_s=limit_s)
    if ended.hung:
        return _one(f"{what} did not return within {limit_s:g} s", "no call of an adapter may wait for anything")
    if ended.died:
        return _one(f"{what}: {ended.died}", "an adapter must not end the process; see its output below")
    return msgspec.json.decode(ended.frames[-1], type=messages.Checked)


def _one(problem: str, remedy: str) -> messages.Checked:
    return messages.Checked(problems=((problem, remedy),))


def _answer(emit: Emit, problems: list[Problem], notes: list[str] | None = None) -> None:
    emit(msgspec.json.encode(messages.Checked(problems=tuple(problems), notes=tuple(notes or ()))))


# ---- what can be seen without a call -------------------------------------------------------------------------------


def _static(target: Target, spec: LevelSpec, emit: Emit) -> None:
    try:
        adapter = target.make()
    except UsageError as error:
        _answer(emit, [(str(error), "install what is missing")])
        return
    except Exception as error:
        what = f"making the adapter raised {type(error).__name__}: {error}"
        _answer(emit, [(what, "its constructor takes no arguments and must not fail")])
        return
    problems = static_problems(adapter) if spec.level in ("blocks", "engine") else []
    offers = ", ".join(sorted(spec.offered(adapter))) or "none"
    _answer(emit, problems, [f"optional methods: {offers}"])


# ---- legal use -----------------------------------------------------------------------------------------------------


def _use(target: Target, spec: LevelSpec, seconds: float, emit: Emit) -> None:
    """Cases as a campaign draws them: protocol, refusals, promises, coverage, speed."""
    started, operations, number = time.monotonic(), 0, 0
    judged: dict[str, int] = {}
    marks: dict[str, int] = {}
    broken: dict[str, tuple[str, int]] = {}
    while time.monotonic() - started < seconds or number < 3:
        seed = case_seed(0, target.name, number)
        number += 1
        _, verdict = drive(spec, target.make, seed, tolerate=EVERYTHING, before=lambda op: emit(BEAT))
        for breach in verdict.breaches:
            broken.setdefault(breach.property, (breach.message, number))
        if verdict.adapter is not None and not verdict.breaches:
            _answer(emit, [(verdict.adapter.problem, verdict.adapter.remedy)])  # and no notes: it ends here
            return
        operations += len(verdict.applied)
        if verdict.state is not None:
            for counts, more in ((judged, verdict.state.judged), (marks, verdict.state.marks)):
                for key, count in more.items():
                    counts[key] = counts.get(key, 0) + count
    speed = operations / (time.monotonic() - started)
    adapter = target.make()
    problems = _declarations(spec, adapter, broken, judged, marks)
    notes = [
        f"{number} cases, {operations} operations, {speed:,.0f} judged operations a second",
        *_broken_notes(broken),
    ]
    if speed < SLOW_PER_S:
        notes.append(
            f"that is slow: below {SLOW_PER_S:g} a campaign reaches little; is something rebuilt in every call?"
        )
    _answer(emit, problems, notes)


def _declarations(
    spec: LevelSpec, adapter: Any, broken: dict[str, tuple[str, int]], judged: dict[str, int], marks: dict[str, int]
) -> list[Problem]:
    caps, problems = adapter.capabilities, []
    if "CRASH-1" in broken and not marks.get("a refusal"):
        problems.append(
            (
                f"nothing was ever refused, but a call raised: {broken['CRASH-1'][0]}",
                "if that means 'no room', list the exception in capabilities.refusals",
            )
        )
    elif not marks.get("a refusal") and "a refusal" in spec.marks(caps, spec.offered(adapter)):
        problems.append(
            (
                "pools of three blocks were filled and nothing was ever refused",
                "raise a declared refusal where there is no room",
            )
        )
    faulty = any(CLAUSES[id].rank == "safety" for id in broken)  # then a broken promise may follow from the fault
    for id in sorted(caps.promises & broken.keys() if not faulty else ()):
        problems.append(
            (
                f"it declares the promise {id} ({CLAUSES[id].text}), and breaks it: {broken[id][0]}",
                f"leave {id} out of capabilities.promises, or mend the implementation",
            )
        )
    applicable = spec.applicable(caps, spec.offered(adapter))
    for id in sorted(caps.promises - applicable):
        problems.append(
            (f"the promise {id} cannot be judged with what the adapter offers", "offer more, or leave it out")
        )
    return problems


def _broken_notes(broken: dict[str, tuple[str, int]]) -> list[str]:
    if not any(CLAUSES[id].rank == "safety" for id in broken):
        return []
    return [f"the implementation behind it breaks {', '.join(sorted(broken))}: `pagefault run` finds and explains them"]


# ---- twice the same ------------------------------------------------------------------------------------------------


def _repeat(target: Target, spec: LevelSpec, limit_s: float) -> messages.Checked:
    """The same traces twice, one behind the other on one adapter object, and each in a process of its own."""
    seeds = [case_seed(1, target.name, number) for number in range(NUM_REPEATED)]
    together = [_digests(target, spec, seeds, limit_s) for _ in range(2)]
    alone = [_digests(target, spec, [seed], limit_s) for seed in seeds]
    if None in (*together, *alone):
        return _one("a call ended or hung the process the second time", "an adapter must not end the process")
    pairs = zip(together[0] or [], together[1] or [], [digest for run in alone for digest in run or []], strict=True)
    problems: list[Problem] = []
    for number, (first, second, fresh) in enumerate(pairs, 1):
        if first != second:
            what = f"the same trace (number {number}) gave other answers in a second process"
            problems.append((what, "no clocks, no unseeded randomness, no order of a set or of hash()"))
            break
        if first != fresh:
            what = f"the same trace (number {number}) gave other answers on an adapter that was opened before"
            problems.append((what, _OPENS))
            break
    return messages.Checked(
        problems=tuple(problems), notes=(f"{len(seeds)} traces gave their answers three times over",)
    )


def _digests(target: Target, spec: LevelSpec, seeds: list[int], limit_s: float) -> list[str] | None:
    """A digest of the answers of each trace, run one behind the other in one fork; None where that died."""

    def work(emit: Emit) -> None:
        shared, found = target.make(), []
        for seed in seeds:
            watch = _Answers(spec)
            drive(watch.spec, lambda: shared, seed, tolerate=EVERYTHING, before=lambda op: emit(BEAT))
            found.append(watch.digest())
        emit(msgspec.json.encode(found))

    ended = in_fork(work, limit_s=limit_s)
    return None if ended.failed else msgspec.json.decode(ended.frames[-1], type=list[str])


class _Answers:
    """The spec with a referee whose view of the target is digested after every operation."""

    def __init__(self, spec: LevelSpec) -> None:
        self._plain, self._hash = spec, xxhash.xxh64()
        self.spec = dataclasses.replace(spec, referee=self._referee)

    def digest(self) -> str:
        """Sixteen hexadecimal digits."""
        return self._hash.hexdigest()

    def _referee(self, target: Any, geometry: Any) -> Any:
        referee: Any = self._plain.referee(target, geometry)
        apply, state = referee.apply, referee.state

        def watched(operation: Any) -> str:
            outcome: str = apply(operation)
            self._hash.update(repr((outcome, *_seen(state))).encode())
            return outcome

        referee.apply = watched
        return referee


def _seen(state: Any) -> list[object]:
    """What the referee has seen of the target, as far as its level keeps it: slots, free and cached blocks, breaches."""
    live = getattr(state, "live", None)
    sequences = live.values() if isinstance(live, dict) else ()
    slots = [(seq.name, tuple(seq.slots)) for seq in sequences if hasattr(seq, "slots")]
    pools = [sorted(blocks) for name in ("free", "cached") if (blocks := getattr(state, name, None)) is not None]
    return [slots, pools, [breach.property for breach in state.breaches]]
