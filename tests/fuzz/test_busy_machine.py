"""A machine where everything takes many times as long: what is slow for want of a processor does not hang, what hangs does."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fuzz.isolate import Emit, in_fork
from properties.starved import thread_waited_s, waited_s
from properties.timelimit import TimedOut, time_limit
from tests.fuzz.helpers import bad, pagefault

OTHERS = 4
LIMIT_S = 1.2
WORK_S = 0.5
"""Processor time of a call that is right: beside four others it takes twice the limit."""

pytestmark = pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="the system does not say who waited")


@pytest.fixture
def busy() -> Iterator[None]:
    """This thread, and what it starts, shares one processor with processes that are never done."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    line = [sys.executable, "-c", "while True: pass"]
    others = [
        subprocess.Popen(line, start_new_session=True) for _ in range(OTHERS)
    ]  # Linux shares among sessions first
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()
        os.sched_setaffinity(0, before)


def work(seconds: float) -> None:
    stop = time.thread_time() + seconds
    while time.thread_time() < stop:
        pass


@pytest.mark.usefixtures("busy")
def test_a_call_that_has_no_processor_does_not_hang() -> None:
    started = time.monotonic()

    def call(emit: Emit) -> None:
        work(WORK_S)
        emit(b"done")

    assert in_fork(call, limit_s=LIMIT_S).frames == [b"done"]
    with time_limit(LIMIT_S):
        work(WORK_S)
    assert time.monotonic() - started > 2 * LIMIT_S, "the machine was not busy: nothing was shown"


@pytest.mark.usefixtures("busy")
@pytest.mark.parametrize("hang", [lambda: time.sleep(600), lambda: work(600)], ids=["waits", "spins"])
def test_what_hangs_is_told_all_the_same(hang: Callable[[], None]) -> None:
    assert in_fork(lambda emit: hang(), limit_s=0.5).hung
    with pytest.raises(TimedOut), time_limit(0.5):
        hang()


@pytest.mark.usefixtures("busy")
def test_it_is_known_who_waited() -> None:
    mine, of_all = thread_waited_s(), waited_s(os.getpid())
    work(0.3)

    assert thread_waited_s() - mine > 0.3
    assert waited_s(os.getpid()) >= of_all


@pytest.mark.usefixtures("busy")
def test_a_campaign_finds_no_hang_in_what_is_slow(tmp_path: Path) -> None:
    options = ("--time", "8s", "--call-limit", "0.5s", "--seed", 1, "--out", "o", "--json")
    done = pagefault("run", "-t", bad("Works"), *options, cwd=tmp_path)
    result = done.json["targets"][bad("Works")]

    assert result["operations"] > 5
    assert (result["findings"], result["restarts"]) == ([], 0), done.err


def test_a_process_that_is_gone_waited_for_nothing() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()

    assert waited_s(child.pid) == 0.0
