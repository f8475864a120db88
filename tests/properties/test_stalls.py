"""What does not return in time once, as where a machine stands still, is no finding; what hangs again is one."""

import gc
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from properties import judging, machine, plugin
from properties.judging import Results
from properties.ledger import Ledger
from properties.targets import load
from properties.timelimit import TimedOut, time_limit

LIMITS_S = {"Once": 3.0, "OpensLateOnce": 3.0, "NowAndThen": 0.5, "OpensLate": 0.25}
"""Long ones where a machine that stands still beneath the test would be told, too."""
SLEEPY = """
import time
from properties.targets.ours import OurBlocks

CALLS = {"admit": 0, "append": 0, "open": 0}

def sleeps(call, when, seconds):
    CALLS[call] += 1
    if when(CALLS[call]):
        time.sleep(seconds)

class Once(OurBlocks):
    def append(self, *arguments):
        sleeps("append", lambda number: number == 5, 4)
        return super().append(*arguments)

class NowAndThen(OurBlocks):  # so seldom that the same trace does not hang again, and some times while a target is judged
    def admit(self, name, tokens, salt=None):
        sleeps("admit", lambda number: number % 100 == 10, 1.2)
        return super().admit(name, tokens, salt)

class OpensLateOnce(OurBlocks):
    def open(self, config):
        sleeps("open", lambda number: number == 3, 4)
        return super().open(config)

class OpensLate(OurBlocks):
    def open(self, config):
        sleeps("open", lambda number: True, 0.6)
        return super().open(config)
"""


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], Results]:
    """Judges a class of SLEEPY shortly, with short limits, as a session of pytest does."""
    file = tmp_path / "sleepy.py"
    file.write_text(SLEEPY)
    monkeypatch.setitem(judging.NUM_SEEDS, "pagefault-dev", 3)

    monkeypatch.setattr(plugin, "read_corpus", list)  # its traces have a limit of their own

    def judge(name: str) -> Results:
        monkeypatch.setattr(machine, "STEP_LIMIT_S", LIMITS_S[name])
        target = load(f"{file}:{name}")
        session = plugin.Session.__new__(plugin.Session)
        session.results, session.failed, session.told_by = {}, {}, {}
        session.targets, session.profile_name, session.device = {target.name: target}, "pagefault-dev", "cpu"
        session.ledger = Ledger()
        results = session.judge(target.name)
        assert isinstance(results, Results)
        return results

    return judge


@pytest.mark.parametrize("name", ["Once", "OpensLateOnce"])
def test_a_machine_that_stood_still_is_no_finding(name: str, judged: Callable[[str], Results]) -> None:
    results = judged(name)

    assert (results.findings, results.adapter) == ({}, None)
    assert results.tally.traces > 50


def test_what_hangs_now_and_then_is_a_finding(judged: Callable[[str], Results]) -> None:
    assert judged("NowAndThen").findings["CRASH-2"].case.flaky


def test_an_adapter_that_always_opens_late_is_told_so(judged: Callable[[str], Results]) -> None:
    assert "did not return within" in str(judged("OpensLate").adapter)


def test_a_hang_that_begins_while_memory_is_collected_is_interrupted() -> None:
    """Exceptions of callbacks of the garbage collector go nowhere."""
    slow = []

    def callback(phase: str, info: object) -> None:
        if not slow:
            slow.append(phase)
            time.sleep(0.4)

    gc.callbacks.append(callback)
    try:
        with pytest.raises(TimedOut):
            _collect_and_hang()
    finally:
        gc.callbacks.remove(callback)
    assert slow


class Collected:
    """Loses what is raised while it is destroyed."""

    def __del__(self) -> None:
        time.sleep(0.4)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_hang_is_interrupted_though_the_first_alarm_was_lost() -> None:
    with pytest.raises(TimedOut):
        _destroy_and_hang()


def _collect_and_hang() -> None:
    with time_limit(0.2):
        gc.collect()
        time.sleep(10)


def _destroy_and_hang() -> None:
    with time_limit(0.2):
        Collected()
        time.sleep(10)
