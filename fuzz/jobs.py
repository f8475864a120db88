"""Single jobs of a child process: replay, confirm, minimise. The target is used in forks only, so that each is fresh."""

from __future__ import annotations

import time
from collections.abc import Sequence

from fuzz import messages
from fuzz.case_in_fork import MADE_WRONG, call_limit, fails_with, joined_case, replay, run_in_fork
from fuzz.check import check
from fuzz.isolate import BEAT, Emit, Ended, in_fork
from fuzz.kept import Behind
from fuzz.making import signs_of_life
from fuzz.own_error import OwnError
from fuzz.shrinking import Minimiser
from properties.blame import clean, last_lines, said
from properties.case import Case, decode, encode
from properties.contract import UsageError
from properties.levels import LevelSpec
from properties.specs import spec_of
from properties.targets import Target
from properties.wording import unreturned

TRIES = 4
"""How often a case is tried alone before it counts as one that does not fail by itself."""
LEAK_SECONDS = 30.0
"""After so long no earlier cases are tried any more: whose cases are slow, or fail by chance, would wait for minutes."""
LEAK_TRIES = 6
"""How often it must fail behind others and pass alone: by chance, at one time in five, that happens once in 60,000 cases."""


def perform(target: Target, command: messages.Command) -> messages.Message:
    """Do one job. Raises `UsageError`."""
    try:
        return _perform(target, command)
    except OwnError as error:
        return messages.Unusable(why="internal", message=str(error))


def _perform(target: Target, command: messages.Command) -> messages.Message:
    if isinstance(command, messages.Replay):
        return replay(target, _case(target, command.case), call_limit(spec_of(target.level), command.limit_s))
    if isinstance(command, messages.Confirm):
        return confirm(target, _case(target, command.case), command)
    if isinstance(command, messages.Minimise):
        return Minimiser(target, _case(target, command.case), command).run()
    if isinstance(command, messages.Make):
        return make(target, command.limit_s)
    if isinstance(command, messages.CheckTarget):
        return check(target, command)
    raise UsageError(f"a child for single jobs does not do {type(command).__name__}")


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
        return messages.Made(problem=f"{MADE_WRONG}: {ended.died or unreturned(limit_s)}")
    return messages.Made(problem=ended.frames[-1].decode(errors="replace").strip())


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
    stop = time.monotonic() + LEAK_SECONDS
    for count in (1, 20, len(command.preceding)):
        before = command.preceding[-count:]
        if len(before) == count and _leaks(spec, target, case, limit_s, before, stop):
            joined = joined_case(spec, target, case, limit_s, before) if spec.joins else None
            if joined is not None and fails_with(run_in_fork(spec, target, joined, limit_s), case.property):
                return messages.Confirmed(how="failed", case=encode(joined).decode())
            detail = f"alone it passes, behind {len(before)} earlier case{'s' * (count != 1)} it fails"
            told = Behind(spec, target, case, limit_s).explained(before)
            return messages.Confirmed(how="leaks", detail=f"{detail}: {told}" if told else detail)
    return messages.Confirmed(how="gone", detail=f"it passed in {TRIES} fresh processes")


def _leaks(
    spec: LevelSpec, target: Target, case: Case, limit_s: float, before: Sequence[tuple[int, int]], stop: float
) -> bool:
    """Whether a case fails behind others and only there, time after time: a target that fails by chance is not blamed."""
    for _ in range(LEAK_TRIES):
        if time.monotonic() > stop:
            return False
        if not fails_with(run_in_fork(spec, target, case, limit_s, before), case.property):
            return False
        if fails_with(run_in_fork(spec, target, case, limit_s), case.property):
            return False
    return bool(before)


def _confirmed(run: Ended) -> messages.Confirmed:
    return messages.Confirmed(how="failed", died=run.failed, signal=run.signal)
