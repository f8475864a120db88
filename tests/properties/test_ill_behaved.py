"""Adapters that meddle with the interpreter: harmless, or told so in words; never an error of pagefault's own."""

from __future__ import annotations

import contextlib
import io
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from properties.blocks.operations import Admit, Append, Drain, Free, Geometry
from properties.blocks.spec import SPEC
from properties.drive import drive
from properties.targets.ours import OurBlocks
from properties.trial import EVERYTHING, Verdict, opened, run_trace

GEOMETRY = Geometry(block_size=2, num_blocks=6)
TRACE = (Admit("A", (0, 1, 2)), Append("A", (1,)), Admit("B", (0, 1, 2)), Free("A"), Drain())


@pytest.fixture(autouse=True)
def _interpreter_as_it_was() -> Iterator[None]:
    """What the adapters below meddle with is put back, and nothing else."""
    folder, streams, limit = Path.cwd(), (sys.stdout, sys.stderr), sys.getrecursionlimit()
    handler, state = signal.getsignal(signal.SIGALRM), random.getstate()
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, handler)
    os.chdir(folder)
    sys.stdout, sys.stderr = streams
    sys.setrecursionlimit(limit)
    random.setstate(state)


class ChangesFolder(OurBlocks):
    def open(self, config: Geometry) -> None:
        os.chdir("/")
        super().open(config)


class ReplacesStreams(OurBlocks):
    def open(self, config: Geometry) -> None:
        sys.stdout, sys.stderr = None, io.StringIO()  # type: ignore[assignment]
        super().open(config)


class StartsThreads(OurBlocks):
    def open(self, config: Geometry) -> None:
        super().open(config)
        threading.Thread(target=time.sleep, args=(0.05,), daemon=True).start()


class HandlesAlarms(OurBlocks):
    """Takes SIGALRM, with which we time calls, and lets it ring."""

    def open(self, config: Geometry) -> None:
        super().open(config)
        signal.signal(signal.SIGALRM, lambda number, frame: None)
        signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)


class LowersTheLimit(OurBlocks):
    """Enough for itself and for us: no harm done, and it is put back."""

    def open(self, config: Geometry) -> None:
        super().open(config)
        sys.setrecursionlimit(400)


class SeedsTheGenerator(OurBlocks):
    def admit(self, name: str, tokens: Sequence[int], salt: str | None = None) -> int:
        random.seed(1)
        return super().admit(name, tokens, salt)


class ReusesItsAnswer(OurBlocks):
    """One list for all answers, changed from call to call."""

    def open(self, config: Geometry) -> None:
        super().open(config)
        self.answers: dict[str, list[int]] = {}

    def slots(self, name: str) -> Sequence[int]:
        answer = self.answers.setdefault(name, [])
        answer[:] = super().slots(name)
        return answer


HARMLESS = [
    ChangesFolder,
    ReplacesStreams,
    StartsThreads,
    HandlesAlarms,
    LowersTheLimit,
    SeedsTheGenerator,
    ReusesItsAnswer,
]


@pytest.mark.parametrize("make", HARMLESS)
def test_no_harm_is_done(make: type[OurBlocks]) -> None:
    plain = [drive(SPEC, OurBlocks, seed) for seed in range(5)]
    limit = sys.getrecursionlimit()
    theirs = [drive(SPEC, make, seed) for seed in range(5)]

    for (geometry, verdict), (expected, plainly) in zip(theirs, plain, strict=True):
        assert (verdict.adapter, verdict.breaches) == (None, [])
        assert (geometry, verdict.applied) == (expected, plainly.applied)  # the draws are ours alone
    assert sys.getrecursionlimit() == limit


def judged(make: Any) -> Verdict:
    return run_trace(SPEC, make, GEOMETRY, TRACE, tolerate=EVERYTHING)


class LeavesNoRoom(OurBlocks):
    """The next call of any depth fails, in our own code."""

    def admit(self, name: str, tokens: Sequence[int], salt: str | None = None) -> int:
        cached = super().admit(name, tokens, salt)
        for limit in range(5, 1000):
            with contextlib.suppress(RecursionError):  # lower than the depth that was reached: not accepted
                sys.setrecursionlimit(limit)
                return cached
        return cached


def test_a_limit_that_is_too_low_for_us_is_named() -> None:
    limit = sys.getrecursionlimit()
    verdict = judged(LeavesNoRoom)

    assert f"the target lowered Python's recursion limit from {limit} to" in str(verdict.adapter)
    assert sys.getrecursionlimit() == limit


class RaisesFromAHandler(OurBlocks):
    def admit(self, name: str, tokens: Sequence[int], salt: str | None = None) -> int:
        def ring(number: int, frame: object) -> None:
            raise LookupError("wake up")

        cached = super().admit(name, tokens, salt)
        signal.signal(signal.SIGUSR1, ring)
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        return cached


def test_an_exception_from_a_handler_of_the_targets_is_its_own() -> None:
    before = signal.getsignal(signal.SIGUSR1)
    try:
        stop = time.monotonic() + 5
        verdict = run_trace(SPEC, RaisesFromAHandler, GEOMETRY, _slowly(TRACE, stop), tolerate=EVERYTHING)
    finally:
        signal.signal(signal.SIGUSR1, before)

    assert "raised LookupError: wake up outside of any call (test_ill_behaved.py:" in str(verdict.adapter)
    assert "Remedy: set no signal handlers" in str(verdict.adapter)


def _slowly(trace: Sequence[Any], stop: float) -> Iterator[Any]:
    """A trace whose second operation is long in coming."""
    yield trace[0]
    while time.monotonic() < stop:
        time.sleep(0.005)
    yield from trace[1:]


class Hangs(OurBlocks):
    def open(self, config: Geometry) -> None:
        time.sleep(30)


class HangsWhenMade(OurBlocks):
    def __init__(self) -> None:
        time.sleep(30)


@pytest.mark.parametrize(
    ("make", "call"), [(Hangs, "open(Geometry(block_size=2,"), (HangsWhenMade, "making the adapter")]
)
def test_a_hang_before_the_first_operation_names_the_call_and_the_limit(make: type[OurBlocks], call: str) -> None:
    verdict = run_trace(SPEC, make, GEOMETRY, TRACE, limit_s=0.2)
    _, driven = drive(SPEC, make, 0, limit_s=0.2)

    assert str(verdict.adapter).startswith(call)
    assert "did not return within 0.2 s" in str(verdict.adapter)
    assert "did not return within 0.2 s" in str(driven.adapter)
    with pytest.raises(Exception, match=r"making the adapter, or open.* did not return within 0.2 s"):
        opened(SPEC, make, GEOMETRY, 0.2)
