"""`targets` and `doctor`: what can be run here, what cannot, and the command that changes it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from fuzz import cli
from fuzz.commands import doctor, targets
from properties.contract import CLAUSES
from properties.targets import BUILTIN


def _main(*arguments: str) -> int:
    with pytest.raises(SystemExit) as caught:
        cli.main(list(arguments))
    assert isinstance(caught.value.code, int)
    return caught.value.code


@pytest.fixture
def two_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that runs anywhere, and one whose package hides."""
    monkeypatch.setattr(targets, "BUILTIN", {name: BUILTIN[name] for name in ("ours", "torch-flex")})
    monkeypatch.setattr(targets, "WITH_PATH", {})


def test_every_clause_is_listed_with_its_rank(capsys: pytest.CaptureFixture[str]) -> None:
    assert _main("targets", "--properties", "--json") == 0
    rows = json.loads(capsys.readouterr().out)

    assert {row["id"]: row["rank"] for row in rows} == {id: clause.rank for id, clause in CLAUSES.items()}


@pytest.mark.usefixtures("two_targets")
def test_a_target_is_tried_and_what_is_missing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('no torch on this machine')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert _main("targets", "--json") == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}

    assert rows["ours"]["available"]
    assert rows["ours"]["reason"] == ""
    assert not rows["torch-flex"]["available"]
    assert "no torch on this machine" in rows["torch-flex"]["reason"]
    assert "pip install torch" in rows["torch-flex"]["reason"]


@pytest.mark.usefixtures("two_targets")
def test_doctor_says_yes_here(capsys: pytest.CaptureFixture[str]) -> None:
    assert _main("doctor") == 0
    printed = capsys.readouterr().out

    assert "pagefault can run here" in printed
    assert f"ok   Python {sys.version.split()[0]}" in printed
    assert "target ours" in printed


@pytest.mark.usefixtures("two_targets")
def test_doctor_says_no_where_something_needed_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "installed", lambda name: None if name == "xxhash" else "1.0")
    assert _main("doctor", "--json") == 2
    result = json.loads(capsys.readouterr().out)
    (missing,) = [row for row in result["checks"] if row["needed"] and not row["ok"]]

    assert not result["can_run"]
    assert missing["remedy"] == "pip install xxhash"
