"""Is an adapter sound? Found out by using it as campaigns do, in forks, before its answers are believed."""

from __future__ import annotations

import contextlib
import importlib
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from fuzz import messages
from fuzz.case_in_fork import MADE_WRONG, NO_LIMIT_S, call_limit
from fuzz.check_repeat import repeat
from fuzz.check_static import static_problems
from fuzz.check_where import Stopped, Whereabouts, driven, require_alive
from fuzz.isolate import BEAT, Emit
from fuzz.making import signs_of_life
from fuzz.own_error import in_guarded_fork
from fuzz.seeds import case_seed
from properties import remedies
from properties.blame import last_lines, passes, said
from properties.blocks import declarations
from properties.contract import CLAUSES
from properties.declared import Problem
from properties.leading import with_steps
from properties.levels import LevelSpec
from properties.specs import spec_of
from properties.targets import Target
from properties.trial import EVERYTHING, run_trace
from properties.wording import counted

SLOW_PER_S = 50.0
"""Judged operations a second below which a campaign is worth little, where there are no tensors."""
LEAST_REPEAT_S = 1.0
TENSORS = ("attention", "cache")
"""Levels of which a single operation may take a tenth of a second."""


def check(target: Target, command: messages.CheckTarget) -> messages.Checked:
    """Check an adapter. What is wrong with the implementation behind it is left to `pagefault run`."""
    spec = spec_of(target.level)
    where, limit_s = Whereabouts(command.progress), call_limit(spec, command.limit_s)
    seen: list[messages.Checked] = []
    try:
        return _check(target, spec, command.seconds, limit_s, where, seen)
    except Stopped as stopped:
        seen.append(stopped.checked)
        notes = tuple(note for part in seen for note in part.notes)
        return messages.Checked(problems=tuple(problem for part in seen for problem in part.problems), notes=notes)


def _check(
    target: Target, spec: LevelSpec, seconds: float, limit_s: float, where: Whereabouts, seen: list[messages.Checked]
) -> messages.Checked:
    """The three parts of a check; `seen` grows with them. Raises `Stopped`."""
    imported: list[str] = []
    static = _in_fork(lambda emit: _static(target, spec, emit), limit_s, where, imported)
    if static.problems:
        return static
    seen.append(static)
    _import(imported)
    use = _in_fork(lambda emit: _use(target, spec, _for(seconds, spec), where, emit), limit_s, where)
    if not use.notes:  # it did not come to its end: what follows would only say the same
        return messages.Checked(problems=use.problems, notes=static.notes)
    seen.append(use)
    repeated = repeat(target, spec, limit_s, where, max(LEAST_REPEAT_S, seconds / 3))
    problems = (*repeated.problems, *use.problems)  # an answer that changes explains the rest
    return messages.Checked(problems=problems, notes=(*static.notes, *use.notes, *repeated.notes))


def _in_fork(
    work: Callable[[Emit], None], limit_s: float, where: Whereabouts, imported: list[str] | None = None
) -> messages.Checked:
    ended = in_guarded_fork(work, limit_s=limit_s)
    require_alive(ended, limit_s, where)
    if imported is not None:
        imported += msgspec.json.decode(ended.frames[0], type=list[str])
    return msgspec.json.decode(ended.frames[-1], type=messages.Checked)


def _import(names: list[str]) -> None:
    """What making the adapter imports is there in every fork then: seconds each for torch or transformers."""
    for name in names:
        with contextlib.suppress(Exception, SystemExit):  # a module that cannot be had by its name, or not twice
            importlib.import_module(name)


def _answer(emit: Emit, problems: list[Problem], notes: list[str] | None = None) -> None:
    emit(msgspec.json.encode(messages.Checked(problems=tuple(problems), notes=tuple(notes or ()))))


# ---- what can be seen without a call -------------------------------------------------------------------------------


def _static(target: Target, spec: LevelSpec, emit: Emit) -> None:
    before = set(sys.modules)
    with signs_of_life(lambda: emit(BEAT)):
        adapter = target.make()  # which was seen to work
    emit(msgspec.json.encode([name for name in sys.modules if name not in before]))
    try:
        problems = static_problems(adapter, spec.level)
        offers = ", ".join(sorted(spec.offered(adapter))) or "none"
    except BaseException as error:
        passes(error)
        what = f"looking at its attributes raised {said(error)} ({last_lines(error)})"
        problems, offers = [(what, "capabilities and methods must be there to be read")], "unknown"
    _answer(emit, problems, [f"optional methods: {offers}"])


# ---- legal use -----------------------------------------------------------------------------------------------------


def _for(seconds: float, spec: LevelSpec) -> Callable[[int], bool]:
    """Whether to go on after so many cases: until the time from now is up, and for a few at least."""
    stop, least = time.monotonic() + seconds, 1 if spec.level in TENSORS else 3
    return lambda number: number < least or time.monotonic() < stop


def _use(target: Target, spec: LevelSpec, go_on: Callable[[int], bool], where: Whereabouts, emit: Emit) -> None:
    """Cases as a campaign draws them: protocol, refusals, promises, coverage, speed."""
    problem = _at_the_bounds(target, spec, where, emit)
    if problem is not None:
        _answer(emit, [problem])
        return
    started, operations, number = time.monotonic(), 0, 0
    judged: dict[str, int] = {}
    marks: dict[str, int] = {}
    broken: dict[str, tuple[str, int]] = {}
    while go_on(number):
        seed = case_seed(0, target.name, number)
        number += 1
        where.begin(f"case {number}")
        _, verdict = driven(spec, target.make, seed, where, emit)
        for breach in verdict.breaches:
            broken.setdefault(breach.property, (breach.message, number))
        if verdict.adapter is not None and not verdict.breaches:
            error = with_steps(spec, target.make, verdict.adapter)
            _answer(emit, [(error.problem, error.remedy)])  # and no notes: it ends here
            return
        operations += len(verdict.applied)
        if verdict.state is not None:
            for counts, more in ((judged, verdict.state.judged), (marks, verdict.state.marks)):
                for key, count in more.items():
                    counts[key] = counts.get(key, 0) + count
    speed = operations / (time.monotonic() - started)
    adapter = target.make()
    unseen, untried = _never(spec, adapter, marks, number)
    problems = [*_declarations(spec, adapter, broken, judged, marks), *unseen]
    notes = [
        f"{counted(number, 'case')}, {operations} operations, {speed:,.0f} judged operations a second",
        *_broken_notes(broken),
        *untried,
        *(_useless(adapter, spec, marks) if number >= ENOUGH_CASES and spec.level != "attention" else []),
        *(_half_offered(spec.offered(adapter)) if spec.level == "blocks" else []),
    ]
    if speed < SLOW_PER_S and spec.level not in TENSORS:
        notes.append(
            f"that is slow: below {SLOW_PER_S:g} a campaign reaches little; is something rebuilt in every call?"
        )
    _answer(emit, problems, notes)


MOST_TOKENS = 1 << 17
"""Tokens of the largest pool that is opened and filled once to see that it is accepted; larger ones are believed."""


def _at_the_bounds(target: Target, spec: LevelSpec, where: Whereabouts, emit: Emit) -> Problem | None:
    """The smallest and the largest pool of each declared block size: opened, filled, emptied."""
    if spec.level not in ("blocks", "engine"):
        return None  # tensors have more bounds than two, and cases at random among them
    where.say(MADE_WRONG)
    adapter = target.make()
    caps = adapter.capabilities
    drawn, opened = spec.choose_geometry(lambda n: 0, caps, spec.offered(adapter)), False
    for size in sorted(caps.block_sizes):
        for num_blocks in sorted({drawn.num_blocks, caps.num_blocks[1]}):
            if num_blocks * size > MOST_TOKENS:
                continue
            budget = {"max_tokens_per_step": num_blocks * size + size} if spec.level == "engine" else {}
            geometry = msgspec.structs.replace(drawn, block_size=size, num_blocks=num_blocks, **budget)
            make = partial(_made, target, where, f"open({geometry}), or filling its pool", emit)
            verdict = run_trace(spec, make, geometry, [spec.closing], tolerate=EVERYTHING, limit_s=NO_LIMIT_S)
            if verdict.adapter is not None:
                of_these = f"with blocks of {size} and a pool of {num_blocks}: " if opened else ""
                return f"{of_these}{verdict.adapter.problem}", verdict.adapter.remedy
            opened = True
    return None


def _made(target: Target, where: Whereabouts, next_call: str, emit: Emit) -> Any:
    where.say(MADE_WRONG)
    emit(BEAT)
    adapter = target.make()
    where.say(next_call)
    return adapter


ENOUGH_CASES = 100
"""Cases after which every state was seen on sound managers of many designs; fewer say nothing."""


def _never(spec: LevelSpec, adapter: Any, marks: dict[str, int], number: int) -> tuple[list[Problem], list[str]]:
    """States that its declarations and methods promise, and that were never seen: problems after enough cases."""
    said = {"a refusal"} | ({"a full hit"} if not marks.get("a prefix hit") else set())  # by other words
    wanted = spec.marks(adapter.capabilities, spec.offered(adapter))
    never = sorted(mark for mark in wanted - said if not marks.get(mark))
    if number < ENOUGH_CASES or spec.level not in ("blocks", "engine"):
        notes = [f"not seen in {counted(number, 'case')}, look longer with --time: {', '.join(never)}"] if never else []
        return [], notes
    more = "look longer with --time"
    return [(f"in {number} cases there was never {mark}", remedies.of_mark(mark) or more) for mark in never], []


def _useless(adapter: Any, spec: LevelSpec, marks: dict[str, int]) -> list[str]:
    """Declarations that make the judges more lenient than this target, which keeps blocks, was seen to need."""
    caps, offers, notes = adapter.capabilities, spec.offered(adapter), []
    recomputed = marks.get("a hit of a whole prompt") or marks.get("a shared slot was written once more")
    if getattr(caps, "recomputes_hits", False) and not recomputed:
        notes.append("recomputes_hits=True is declared, and no hit covered a whole prompt: without it HASH-4 is judged")
    if getattr(caps, "window", False) and not marks.get("a window released a block"):
        notes.append(
            "window=True is declared, and slots() never said -1: what a window released is not seen, or nothing was"
        )
    if getattr(caps, "eviction", None) and "EVICT-2P" not in caps.promises and "cached_blocks" in offers:
        notes.append(f"eviction={caps.eviction!r} is declared, and judged only with the promise EVICT-2P")
    return notes


_TOGETHER = (("swap_out", "swap_in", "copies"), ("allocate", "computed"))
"""Optional methods that are driven only together."""


def _half_offered(offers: frozenset[str]) -> list[str]:
    found = []
    if "fork" in offers and "copies" not in offers:
        found.append(
            "fork is offered without copies(): if the first write into a shared block copies it, copies() must report that, "
            "or what was copied counts as never written"
        )
    for group in _TOGETHER:
        there, lacking = [name for name in group if name in offers], [name for name in group if name not in offers]
        if group[0] in offers and lacking:
            found.append(f"{', '.join(there)} without {', '.join(lacking)}: {group[0]} is never called")
    return found


def _declarations(
    spec: LevelSpec, adapter: Any, broken: dict[str, tuple[str, int]], judged: dict[str, int], marks: dict[str, int]
) -> list[Problem]:
    caps, problems = adapter.capabilities, []
    refuses = "a refusal" in spec.marks(caps, spec.offered(adapter))  # what has no pool of its own never must
    crash = broken["CRASH-1"][0] if "CRASH-1" in broken else ""
    if crash and refuses and not marks.get("a refusal") and remedies.may_mean_no_room(spec.level, crash):
        problems.append(
            (
                f"nothing was ever refused, but a call raised: {crash}",
                "if that means 'no room', list the exception in capabilities.refusals",
            )
        )
    elif not marks.get("a refusal") and refuses:
        problems.append(
            (
                "pools of three blocks were filled and nothing was ever refused",
                "raise a declared refusal where there is no room",
            )
        )
    lied = declarations.lie(caps, marks, broken)
    if lied is not None:
        problems.append((lied.problem, lied.remedy))
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
