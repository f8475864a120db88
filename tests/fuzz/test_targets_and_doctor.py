"""`targets` and `doctor`: what can be run here, what cannot, and the command that changes it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from fuzz import cli, messages, needs
from fuzz.commands import doctor, targets
from properties.contract import CLAUSES
from properties.targets import BUILTIN
from tests.fuzz.helpers import ROOT, environment


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
    assert _main("targets", "--try", "--json") == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}

    assert rows["ours"]["available"]
    assert rows["ours"]["reason"] == ""
    assert not rows["torch-flex"]["available"]
    assert "no torch on this machine" in rows["torch-flex"]["reason"]
    (least,) = re.findall(r'"torch(>=[0-9.]+)"', (ROOT / "pyproject.toml").read_text())
    assert f"this target needs torch {least.replace('=', '= ')}: {needs.TORCH}" in rows["torch-flex"]["reason"]
    assert f"torch {least.replace('=', '= ')}," in (ROOT / "README.md").read_text()


def test_without_torch_each_target_names_what_brings_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What `pip install .` gives, without any extra: bookkeeping of ours runs, the rest says the command."""
    depended = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    plain = {"pagefault": "0.1.0"} | {re.split("[>=]", line)[0]: "1" for line in depended}
    monkeypatch.setattr(needs, "installed", plain.get)
    monkeypatch.setattr(needs, "has_gpu", lambda: True)
    assert _main("targets", "--json") == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}

    assert rows.keys() == BUILTIN.keys()
    assert [name for name, row in rows.items() if row["available"]] == ["ours", "ours-engine"]
    for row in rows.values():
        if not row["available"]:
            assert "is not installed" in row["reason"]
            assert "pip install" in row["reason"]
            assert "import" not in row["reason"]
    assert rows["cache-ours"]["reason"] == "torch is not installed: pip install 'pagefault[torch]'"


def test_another_version_than_the_adapter_is_written_for_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(needs, "installed", {"torch": "2.13.0", "transformers": "6.1"}.get)
    reason = needs.missing("transformers")

    assert reason.startswith("transformers 6.1 is installed, but the adapter is written for 5.24.0: pip install")
    monkeypatch.setattr(needs, "installed", {"torch": "2.13.0", "transformers": "5.24.0+local"}.get)
    assert needs.missing("transformers") == ""


def test_what_needs_a_gpu_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(needs, "installed", lambda name: "2.13.0+cpu")
    monkeypatch.setattr(needs, "has_gpu", lambda: False)
    assert needs.missing("torch-varlen") == "runs on CUDA only, and there is no NVIDIA GPU here"
    monkeypatch.setattr(needs, "has_gpu", lambda: True)
    assert "the installed torch is a CPU build" in needs.missing("torch-varlen")


def test_every_built_in_target_says_what_it_needs() -> None:
    assert [name for name in BUILTIN if needs.needs_of(name) is None] == []


@pytest.mark.parametrize("command", ["targets", "doctor"])
def test_it_imports_nothing_that_is_heavy_and_starts_no_process(command: str) -> None:
    code = (
        "import sys, subprocess; from fuzz.commands import targets, doctor; subprocess.Popen = None\n"
        f"code = {command}.command()\n"
        "heavy = ('torch', 'triton', 'transformers', 'numpy')\n"
        "print([m for m in sys.modules if m.split('.')[0] in heavy or m.startswith('paged_impl.')], code)"
    )
    line = [sys.executable, "-c", code]
    env = {key: value for key, value in environment().items() if key != "PATH"}  # no nvidia-smi
    done = subprocess.run(line, env=env, capture_output=True, text=True, check=True)

    assert done.stdout.splitlines()[-1] == "[] 0"


def test_pytest_leaves_out_what_lacks_torch_with_the_command(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')")
    code = "from properties.targets import load; load('ours-gather')"
    env = environment(PYTHONPATH=f"{tmp_path}:{ROOT}")
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)

    words = "Unavailable: ours-gather needs torch, which is not installed: pip install 'pagefault[torch]'"
    assert done.stderr.splitlines()[-1].endswith(words)


def test_a_worker_that_lacks_torch_says_the_command(tmp_path: Path) -> None:
    """On such a machine the modules of attention targets cannot be imported at all."""
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')")
    hidden = (
        "import fuzz.needs, sys; fuzz.needs.installed = {}.get; from fuzz.worker import main; "
        "sys.argv[0] = 'worker'; main()"
    )
    read, write = os.pipe()
    arguments = ["--target", "ours-gather", "--commands", "0", "--replies", str(write)]
    env = environment(PYTHONPATH=f"{tmp_path}:{ROOT}")
    subprocess.run([sys.executable, "-c", hidden, *arguments], env=env, pass_fds=(write,), check=True)
    os.close(write)
    with os.fdopen(read, "rb") as replies:
        reply = messages.decode_reply(replies.readline())

    words = "ours-gather: torch is not installed: pip install 'pagefault[torch]'"
    assert reply == messages.Unusable(why="unavailable", message=words)


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
