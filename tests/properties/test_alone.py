"""Findings of targets that keep something from trace to trace: what was seen is told, and that the case alone holds."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from properties.alone import NOT_ALONE, ONLY_ALONE, confirm
from properties.judging import ONCE, Finding, Results, judge_target
from properties.ledger import Ledger
from properties.machine import PROFILES
from properties.targets import load

TARGETS = """
import os
from pathlib import Path

from properties.targets.ours import OurBlocks

class Turns(OurBlocks):
    # Wrong by itself, every time.
    def table(self, name):
        table = list(super().table(name))
        return table[::-1] if len(table) == 2 else table

class Keeps(OurBlocks):
    # Right until 300 tables were read, in whatever trace.
    read = 0
    def table(self, name):
        Keeps.read += 1
        table = list(super().table(name))
        return table[::-1] if Keeps.read > 300 and len(table) == 2 else table

class Once(OurBlocks):
    # Wrong for the first pair of blocks of the process.
    done = False
    def table(self, name):
        table = list(super().table(name))
        if len(table) == 2 and not Once.done:
            Once.done = True
            return table[::-1]
        return table

RUNS = Path(__file__).with_suffix(".runs")

class Alternates(OurBlocks):
    # Wrong in every second trace, and in every second process.
    wrong = RUNS.exists() and RUNS.stat().st_size % 2 == 0
    def open(self, config):
        super().open(config)
        Alternates.wrong = self.wrong_here = not Alternates.wrong
        if os.getpid() != PROCESS:
            with RUNS.open("a") as file:
                file.write(".")
    def table(self, name):
        table = list(super().table(name))
        return table[::-1] if self.wrong_here and len(table) == 2 else table

class Gone(Turns):
    # It cannot be made in another process.
    def __init__(self):
        if os.getpid() != PROCESS:
            raise RuntimeError("only one of us")
        super().__init__()
"""


@pytest.fixture
def judged(tmp_path: Path, request: pytest.FixtureRequest) -> Results:
    """The results of the target that the test is parametrised with, confirmed."""
    file = tmp_path / "keeping.py"
    file.write_text(f"PROCESS = {os.getpid()}\n{TARGETS}")
    results = judge_target(load(f"{file}:{request.param}"), PROFILES["pagefault-dev"], 60, Ledger(), [])
    confirm(results, "cpu")
    return results


def only(results: Results, clause: str) -> Finding:
    assert results.adapter is None
    return results.findings[clause]


@pytest.mark.parametrize("judged", ["Turns"], indirect=True)
def test_what_breaks_alone_is_told_as_ever(judged: Results) -> None:
    found = only(judged, "SLOT-1").case

    assert not found.flaky
    assert "fresh process" not in found.message


@pytest.mark.parametrize("judged", ["Keeps"], indirect=True)
def test_what_was_seen_is_told_with_that_the_case_alone_holds(judged: Results) -> None:
    found = only(judged, "SLOT-1")

    assert found.case.flaky
    assert "but its table [" in found.case.message
    assert NOT_ALONE in found.case.message
    assert found.broken_at == len(found.case.operations)


@pytest.mark.parametrize("judged", ["Once"], indirect=True)
def test_what_comes_once_in_a_process_is_kept_whole_and_replays(judged: Results) -> None:
    found = only(judged, "SLOT-1").case

    assert not found.flaky
    assert "but its table [" in found.message
    assert f"{ONCE} here. {ONLY_ALONE}" in found.message


@pytest.mark.parametrize("judged", ["Gone"], indirect=True)
def test_where_it_cannot_be_told_nothing_is_said(judged: Results) -> None:
    found = only(judged, "SLOT-1").case

    assert not found.flaky
    assert "fresh process" not in found.message


@pytest.mark.parametrize("judged", ["Alternates"], indirect=True)
def test_what_broke_in_a_fresh_process_by_chance_is_not_called_certain(judged: Results) -> None:
    found = only(judged, "SLOT-1").case

    assert found.flaky
    assert ONCE in found.message
    assert ONLY_ALONE not in found.message
