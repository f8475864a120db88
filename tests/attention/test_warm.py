"""Compiling ahead runs the traces of every share once, in processes of their own, and gives up in time."""

import time
from pathlib import Path

import pytest

from properties.attention import warm

TARGET = """
from pathlib import Path
from properties.attention.targets.backends import OurGather

class Writes(OurGather):
    def __init__(self):
        super().__init__()
        with open({path!r}, "a") as file:
            file.write("made\\n")

class Hangs(OurGather):
    def __init__(self):
        while True:
            pass
"""


def test_every_trace_runs_once(tmp_path: Path) -> None:
    log, target = tmp_path / "log", tmp_path / "target.py"
    target.write_text(TARGET.format(path=str(log)))

    assert warm.warm(f"{target}:Writes", "cpu", 2) >= 1

    assert log.read_text().count("made") >= 2


def test_a_target_that_hangs_does_not_hold_it_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "target.py"
    target.write_text(TARGET.format(path=str(tmp_path / "log")))
    monkeypatch.setattr(warm, "LIMIT_S", 1.0)
    start = time.monotonic()

    warm.warm(f"{target}:Hangs", "cpu", 1)

    assert time.monotonic() - start < 8
