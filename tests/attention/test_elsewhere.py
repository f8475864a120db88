"""Judging in a process of its own, here on a CPU: the same verdicts, and a death that is a finding and ends nothing else."""

import subprocess
from pathlib import Path

import pytest

from properties import elsewhere
from properties.attention.cases import ReadCase
from properties.effort import effort_for
from properties.elsewhere import LOST
from properties.elsewhere_child import leave_if_lost
from properties.judging import judge_target
from properties.ledger import Ledger
from properties.targets import Unavailable, load

TARGETS = """
import os
from properties.attention.target import Output
from properties.attention.targets.backends import OurGather
from properties.targets import Unavailable

class Right(OurGather):
    pass

class Zeros(OurGather):
    def decode(self, pool, batch):
        answer = super().decode(pool, batch)
        return Output(answer.out * 0, answer.lse)

class Dies(OurGather):
    def decode(self, pool, batch):
        if max(batch.context_lens) > 12:
            os.abort()
        return super().decode(pool, batch)

class DiesWhenMade(OurGather):
    def __init__(self):
        os._exit(5)

class Elsewhere(OurGather):
    def __init__(self):
        raise Unavailable("needs another machine: buy one")
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "some_target.py"
    path.write_text(TARGETS)
    return path


def judged(file: Path, name: str) -> elsewhere.Results:
    return elsewhere.judge_elsewhere(load(f"{file}:{name}"), "pagefault-dev", "cpu", Ledger())


def test_the_verdicts_are_those_of_judging_here(file: Path) -> None:
    right, wrong = judged(file, "Right"), judged(file, "Zeros")
    here = judge_target(*effort_for(load(f"{file}:Right"), "pagefault-dev", "cpu"), Ledger(), [])

    assert (right.findings, right.ended) == ({}, None)
    assert (set(right.judged), right.marks, right.applicable) == (set(here.judged), here.marks, here.applicable)
    assert "READ-1" in wrong.findings
    assert wrong.ended is None


def test_a_death_is_a_finding_with_the_operation_that_led_to_it(file: Path) -> None:
    results = judged(file, "Dies")

    finding = results.findings["CRASH-2"]
    (operation,) = finding.case.operations
    assert results.ended == finding.case.message == "the process died of SIGABRT"
    assert isinstance(operation, ReadCase)
    assert max(row.context_len for row in operation.rows) > 12
    assert not finding.case.flaky


def test_a_child_that_does_not_move_is_hung(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It moves where a file of its folder changes; how long it runs in all does not matter."""
    monkeypatch.setattr(elsewhere, "HANG_S", 1.0)
    still = subprocess.Popen(["sleep", "30"])
    moving = subprocess.Popen(["sh", "-c", f"for i in 1 2 3 4 5; do sleep 0.4; echo $i > {tmp_path}/note; done"])

    assert not elsewhere._watch(moving, tmp_path)
    assert elsewhere._watch(still, tmp_path)
    still.kill()
    still.wait()


def test_an_adapter_that_cannot_be_made(file: Path) -> None:
    results = judged(file, "DiesWhenMade")

    assert results.adapter is not None
    assert "before its first operation" in results.adapter.problem
    with pytest.raises(Unavailable, match="buy one"):
        judged(file, "Elsewhere")


def test_shapes_of_real_models(file: Path) -> None:
    right = elsewhere.shapes_elsewhere(f"{file}:Right", "cpu")
    dies = elsewhere.shapes_elsewhere(f"{file}:Dies", "cpu")
    zeros = elsewhere.shapes_elsewhere(f"{file}:Zeros", "cpu")

    assert len(right) == 14
    assert set(right.values()) == {None}
    assert list(dies.values()) == ["the process died of SIGABRT"]
    assert all("READ-1" in str(message) for message in zeros.values())


def test_a_lost_device_ends_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    import torch

    def lost() -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered\nmore")

    left: list[int] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lost)
    monkeypatch.setattr(os, "_exit", left.append)

    leave_if_lost("cuda", tmp_path)
    leave_if_lost("cpu", tmp_path)

    assert left == [LOST]
    assert (tmp_path / "lost").read_text() == "the device faulted: CUDA error: an illegal memory access was encountered"
