"""Judging ahead: clean traces are counted as if judged in turn; broken, hanging and dying targets lose and hide nothing."""

import time
from pathlib import Path

import pytest
from hypothesis import settings

from properties import ahead
from properties.effort import effort_for
from properties.judging import judge_target
from properties.ledger import Ledger
from properties.targets import load

TARGETS = """
import os
from properties.attention.target import Output
from properties.attention.targets.backends import OurGather

class Zeros(OurGather):
    def decode(self, pool, batch):
        answer = super().decode(pool, batch)
        return Output(answer.out * 0, answer.lse)

class Dies(OurGather):
    # As soon as a context is long.
    def decode(self, pool, batch):
        if max(batch.context_lens) > 12:
            os.abort()
        return super().decode(pool, batch)

class Hangs(OurGather):
    def decode(self, pool, batch):
        while True:
            pass
"""
NUM_SEEDS = 12


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "some_target.py"
    path.write_text(TARGETS)
    return path


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

    assert (tmp_path / "lines").read_bytes().splitlines().count(b"") == 2


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
    line = b'{"seed":3,"steps":2,"outcomes":{"done":2},"judged":{"READ-1":5},"marks":{}}\n'
    (tmp_path / "a").write_bytes(line + b"\n" + line + b'{"seed":4,"st')

    done = ahead._read([tmp_path / "a", tmp_path / "never written"])

    assert (done.seeds, done.tally.steps, done.tally.judged["READ-1"]) == ({3}, 2, 5)
