"""Commands that pagefault prints can be pasted: the program by a name that the shell finds, paths quoted."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from fuzz import output
from fuzz.campaign_state import TargetRun
from fuzz.outcome import outcome_of
from fuzz.summary import table
from tests.fuzz.helpers import ROOT, bad, environment, pagefault


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A `pagefault` in an environment that is not active, in a folder below this one."""
    program = tmp_path / "env" / "bin" / "pagefault"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(program)])
    output._program.cache_clear()
    yield program
    output._program.cache_clear()


def test_the_name_alone_where_the_shell_finds_it(started: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(started.parent))

    assert output.hint("repro", "a case.json", "--device", "cuda") == "pagefault repro 'a case.json' --device cuda"


@pytest.mark.usefixtures("started")
def test_the_path_where_it_is_not_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """After `make fuzz`, say, which has an environment of its own that nobody activates."""
    monkeypatch.setenv("PATH", "/nowhere")
    assert output.hint("show", "c.json") == "env/bin/pagefault show c.json"

    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    output._program.cache_clear()
    assert output.hint("show", "c.json") == f"{tmp_path}/env/bin/pagefault show c.json"


def test_the_replay_command_of_a_campaign_runs_as_it_is_printed(tmp_path: Path) -> None:
    """From a checkout that is not installed, in a folder with a blank in its name."""
    folder = tmp_path / "my folder"
    folder.mkdir()
    hidden = {**environment(), "PATH": f"{tmp_path}/bin:/usr/bin:/bin"}
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / Path(sys.executable).name).symlink_to(sys.executable)
    hidden["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
    line = [sys.executable, "-m", "fuzz", "run", "-t", bad("Leaky"), "--fail-fast", "--seed", "1", "--out", "my out"]
    done = subprocess.run(line, cwd=folder, env=hidden, capture_output=True, text=True, check=False)
    replay = next(line for line in done.stdout.splitlines() if line.startswith("replay: ")).removeprefix("replay: ")
    again = subprocess.run(["sh", "-c", replay], cwd=folder, env=hidden, capture_output=True, text=True, check=False)

    assert replay.startswith(f"{Path(sys.executable).name} -m fuzz repro 'my out/findings/")
    assert again.returncode == 1, again.stderr
    assert again.stdout.startswith("FAILED  my out/findings/")


def test_show_names_the_command_too(leaky_case: Path, tmp_path: Path) -> None:
    assert f"replay: pagefault repro {leaky_case}" in pagefault("show", leaky_case, cwd=tmp_path).out


def test_a_long_name_of_a_target_leaves_no_verdict_out() -> None:
    """In a pipe there are 80 columns: the verdict was cut to "ADA..."."""
    runs = [TargetRun("path/to/a/checkout/of/somebody/with_a_long_name.py:AndALongClass", state="adapter")]
    file = io.StringIO()

    Console(file=file, width=80).print(table([outcome_of(run) for run in runs]))

    printed = file.getvalue()
    assert "ADAPTER" in printed
    assert "with_a_long_name-AndALongClas" in printed, "and the rest of it in the next line"
    assert max(map(len, printed.splitlines())) <= 80
