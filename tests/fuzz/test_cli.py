"""The command line itself: mistakes end in one clear line and exit 2, as text and as JSON."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fuzz import cli
from tests.fuzz.helpers import bad, environment, pagefault

MISTAKES = [
    (["run", "--time", "0s"], "--time 0s is out of range", "for example 60s or 8h"),
    (["run", "--time", "-5s"], "--time", "for example 60s or 8h"),
    (["run", "--time", "soon"], "'soon' is no length of time", "for example 60s or 8h"),
    (["run", "--time", "1000d"], "--time 1000d is out of range", "at most 30d"),
    (["run", "--cases", "0"], "--cases 0 is out of range", "from 1 to"),
    (["run", "--cases", "-3"], "--cases -3 is out of range", "from 1 to"),
    (["run", "--cases", "many"], "'many' is no whole number", "for example 1000"),
    (["run", "--workers", "0"], "--workers 0 is out of range", "from 1 to 256"),
    (["run", "--workers", "1000000"], "--workers 1000000 is out of range", "from 1 to 256"),
    (["run", "--seed", "-1"], "--seed -1 is out of range", "from 0 to"),
    (["run", "--seed", "x"], "'x' is no whole number", "from 0 to"),
    (["run", "--device", "tpu"], "--device 'tpu' is unknown", "cpu or cuda"),
    (["run", "--call-limit", "0"], "--call-limit 0 is out of range", "at most 1h"),
    (["run", "--known-failures", "none.json"], "none.json: no such file", "looked for"),
    (["run", "--resume", "nowhere"], "nowhere: no such folder", "Give the folder of a campaign"),
    (["run", "--resume", "."], "there is no campaign.json", "give its folder"),
    (["run", "--out", "file"], "--out file is a file", "give a folder"),
    (["run", "--out", "file/below"], "--out file/below cannot be written", "Give a folder that you may write"),
    (["run", "--wat"], "No such option: --wat", "--help"),
    (["rnu"], "No such command 'rnu'", "--help"),
    (["repro"], "Missing argument", "--help"),
    (["repro", "c.json", "--call-limit", "no"], "'no' is no length of time", "for example"),
    (["minimize", "none.json"], "none.json: no such file", "looked for"),
    (["minimize", "."], "CASE . is a folder", "give a file"),
    (["show", "none.json"], "cannot read none.json", "No such file"),
    (["show", "none.json", "--as-test", "--as-issue"], "both given", "choose one"),
    (["new-target", "kernel", "x.py"], "KIND 'kernel' has no template", "blocks"),
    (["new-target", "blocks", "file"], "must end in .py", "for example my_target.py"),
    (["new-target", "blocks", "no/where.py"], "no/where.py cannot be written", "Give a folder that exists"),
    (["check-target", "ours", "--time", "0"], "--time 0 is out of range", "at most 1h"),
    (["run", "--out", ""], "--out is empty", "give a folder"),
    (["run", "--out", "n" * 300], "cannot be written: File name too long", "Give a folder that you may write"),
    (["run", "--time", ""], "--time '' is no length of time", "for example 60s or 8h"),
    (["run", "--time", "nan"], "--time 'nan' is no length of time", "for example 60s or 8h"),
    (["run", "--cases", "1e99"], "--cases '1e99' is no whole number", "for example 1000"),
    (["run", "--seed", "9" * 5000], "... (5000 characters)' is no whole number", "from 0 to"),
    (["run", "--call-limit", "-1"], "--call-limit '-1' is no length of time", "for example 60s or 8h"),
    (["run", "--known-failures", ""], "--known-failures is empty", "give a file"),
    (["run", "--known-failures", "file"], "file is not a list of known failures", "truncated"),
    (["run", "--resume", ""], "--resume is empty", "give the folder of a campaign"),
    (["run", "--resume", "file"], "--resume file: it is a file", "Give the folder of a campaign"),
    (["run", "-t", ""], "--target is empty", "path.py:object"),
    (["repro", ""], "CASE is empty", "give a case file"),
    (["show", ""], "CASE is empty", "give a case file"),
    (["minimize", ""], "CASE is empty", "give a file"),
    (["minimize", "file", "--time", "0"], "--time 0 is out of range", "at most 1d"),
    (["targets", "--device", "tpu"], "--device 'tpu' is unknown", "cpu or cuda"),
]


@pytest.mark.parametrize(("arguments", "what", "remedy"), MISTAKES, ids=[" ".join(row[0]) for row in MISTAKES])
def test_a_mistake_is_one_line_with_the_value_and_the_remedy(
    arguments: list[str],
    what: str,
    remedy: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()

    with pytest.raises(SystemExit) as caught:
        cli.main([*arguments, "--json"])

    printed = capsys.readouterr()
    assert caught.value.code == 2
    assert len(printed.err.splitlines()) == 1
    assert what in printed.err
    assert remedy in printed.err
    assert json.loads(printed.out)["error"] in printed.err
    assert [path.name for path in tmp_path.iterdir()] == ["file"], "a mistake leaves nothing behind"


@pytest.mark.parametrize("arguments", [["run", "-t", "oours"], ["run", "-t", "nomodule:X"], ["check-target", "x.py:T"]])
def test_an_unknown_target_is_one_line_and_leaves_nothing_behind(arguments: list[str], tmp_path: Path) -> None:
    done = pagefault(*arguments, cwd=tmp_path)

    assert done.code == 2
    last = done.err.splitlines()[-1]
    assert last.startswith("pagefault: ")
    assert any(words in last for words in ("near it: ours", "cannot import 'nomodule'", "no such file"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_has_a_page_of_help_and_takes_json(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main([name, "--help"])

    assert caught.value.code == 0
    assert "--json" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [[], ["run"], ["test"]])
def test_h_is_help(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    for option in ("-h", "--help"):
        with pytest.raises(SystemExit) as caught:
            cli.main([*arguments, option])
        assert caught.value.code == 0
        assert "Usage: pagefault" in capsys.readouterr().out


def test_a_campaign_on_blocks_begins_within_a_second_and_a_half_and_without_torch(tmp_path: Path) -> None:
    taken = []
    for number in range(5):  # the first may have to write compiled files, and the machine may be busy
        started = time.monotonic()
        out, first = tmp_path / str(number), str(tmp_path / "first")
        done = pagefault("run", "-t", bad("Watches"), "--cases", 1, "--out", out, cwd=tmp_path, FIRST=first)
        assert done.code in (0, 2), done.err
        began, torch = (tmp_path / "first").read_text().split()
        assert torch == "False"
        taken.append(float(began) - started)
        if taken[-1] < 1.5:
            return

    pytest.fail(f"the first case began after {min(taken):.2f} s at best")


def test_the_supervisor_imports_neither_torch_nor_a_target() -> None:
    code = (
        "import sys, fuzz.commands.run, fuzz.progress, fuzz.summary; "
        "print([m for m in sys.modules if 'torch' in m or 'paged_impl.' in m])"
    )
    line = [sys.executable, "-c", code]
    done = subprocess.run(line, env=environment(), capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"
