"""Judging ahead: clean traces are counted as if judged in turn; broken, hanging and dying targets lose and hide nothing."""

import time
from pathlib import Path

import msgspec
import pytest
from hypothesis import settings

from properties import ahead
from properties.effort import effort_for
from properties.judging import ONCE, judge_target
from properties.ledger import Ledger
from properties.targets import load
from tests.attention.gather_targets import written

TARGETS = """
class Hangs(OurGather):
    def decode(self, pool, batch):
        while True:
            pass

class Once(OurGather):
    # Wrong while others run beside it, as a race is, and never again.
    def decode(self, pool, batch):
        answer = super().decode(pool, batch)
        return Output(answer.out * ("properties.ahead" not in str(sys.orig_argv)), answer.lse)

class CrashesOnce(OurGather):
    # Wants more memory than there is while others run beside it.
    def decode(self, pool, batch):
        if "properties.ahead" in str(sys.orig_argv):
            raise RuntimeError("out of memory")
        return super().decode(pool, batch)
"""
NUM_SEEDS = 12


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return written(tmp_path, TARGETS)


def test_the_tally_is_that_of_judging_in_turn(tmp_path: Path) -> None:
    target, profile, _ = effort_for(load("ours-gather"), "pagefault-dev", "cpu")
    profile = settings(profile, derandomize=True, database=None)
    done = ahead.judge_ahead("ours-gather", "cpu", NUM_SEEDS, tmp_path)
    assert done.seeds == set(range(NUM_SEEDS))
    assert done.tally.traces == NUM_SEEDS

    in_turn = judge_target(target, profile, NUM_SEEDS, Ledger(), []).tally
    rest = judge_target(target, profile, NUM_SEEDS, Ledger(), [], ahead=done).tally

    for each in ("traces", "steps", "outcomes", "judged", "marks"):
        assert getattr(rest, each) == getattr(in_turn, each), each
    assert in_turn.judged["READ-1"] > 0


def test_what_breaks_is_left_to_be_judged_again(file: Path, tmp_path: Path) -> None:
    done = ahead.judge_ahead(f"{file}:Zeros", "cpu", NUM_SEEDS, tmp_path)
    target, profile, _ = effort_for(load(f"{file}:Zeros"), "pagefault-dev", "cpu")

    results = judge_target(target, profile, NUM_SEEDS, Ledger(), [], ahead=done)

    assert len(done.seeds) < NUM_SEEDS
    assert "READ-1" in results.findings


def test_a_share_of_a_broken_target_ends_early(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "MOST_UNCLEAN", 2)

    ahead.run_share(f"{file}:Zeros", "cpu", 60, 1, 0, tmp_path / "lines")

    lines = (tmp_path / "lines").read_bytes().splitlines()
    judged = [msgspec.json.decode(line, type=ahead.Clean | ahead.Unclean) for line in lines]
    assert [line.broken for line in judged if isinstance(line, ahead.Unclean)] == [("READ-1",)] * 2
    assert isinstance(judged[-1], ahead.Unclean)


def test_a_share_that_loses_much_time_ends_early(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "LOST_S", 0.0)

    ahead.run_share(f"{file}:Zeros", "cpu", 60, 1, 0, tmp_path / "lines")

    assert (tmp_path / "lines").read_bytes().count(b"Unclean") == 1


def test_a_wrong_answer_that_does_not_come_again_is_found(file: Path, tmp_path: Path) -> None:
    """A crash that does not come again is none: processes that run beside one another may lack memory."""
    findings = {}
    for name in ("Once", "CrashesOnce"):
        done = ahead.judge_ahead(f"{file}:{name}", "cpu", NUM_SEEDS, tmp_path)
        assert len(done.seeds) < NUM_SEEDS
        target, profile, _ = effort_for(load(f"{file}:{name}"), "pagefault-dev", "cpu")
        findings[name] = judge_target(target, profile, NUM_SEEDS, Ledger(), [], ahead=done).findings

    assert findings["Once"]["READ-1"].case.flaky
    assert ONCE in findings["Once"]["READ-1"].case.message
    assert findings["CrashesOnce"] == {}


def test_a_target_that_went_elsewhere_is_found_again(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its name is relative to where everything was started."""
    monkeypatch.setattr(ahead, "START", file.parent)
    monkeypatch.chdir("/")

    assert len(ahead.judge_ahead(f"{file.name}:Right", "cpu", 4, tmp_path).seeds) == 4


def test_where_no_process_can_be_started_nothing_is_judged_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*args: object, **kwargs: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(ahead.subprocess, "Popen", refused)

    assert ahead.judge_ahead("ours-gather", "cpu", 4, tmp_path) == ahead.Ahead()


def test_a_death_leaves_what_was_done_before(file: Path, tmp_path: Path) -> None:
    done = ahead.judge_ahead(f"{file}:Dies", "cpu", NUM_SEEDS, tmp_path)

    assert len(done.seeds) < NUM_SEEDS
    assert done.tally.traces == len(done.seeds)


def test_a_target_that_hangs_does_not_hold_it_up(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "STILL_S", 4.0)
    start = time.monotonic()

    done = ahead.judge_ahead(f"{file}:Hangs", "cpu", NUM_SEEDS, tmp_path)

    assert len(done.seeds) < NUM_SEEDS
    assert time.monotonic() - start < 30


def test_lines_that_were_cut_short_or_written_twice_do_not_count(tmp_path: Path) -> None:
    line = b'{"type":"Clean","seed":3,"steps":2,"outcomes":{"done":2},"judged":{"READ-1":5},"marks":{}}\n'
    (tmp_path / "a").write_bytes(line + b"\n" + line + b'{"type":"Clean","seed":4,"st')
    (tmp_path / "b").write_bytes(b'{"type":"Unclean","seed":5,"broken":["READ-1"]}\n{"type":"Cl')

    done = ahead._read([tmp_path / "a", tmp_path / "never written", tmp_path / "b"])

    assert (done.seeds, done.tally.steps, done.tally.judged["READ-1"]) == ({3}, 2, 5)
    assert done.broken == {5: ("READ-1",)}
