"""Kill -9, Ctrl-C, a full disk: whatever happens to a campaign, what it found is on file."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from properties.case import decode, read
from tests.fuzz.helpers import bad, command, environment, pagefault


@contextmanager
def _running(*arguments: object, cwd: Path, limit_bytes: int | None = None) -> Iterator[subprocess.Popen[str]]:
    def limit() -> None:
        if limit_bytes is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, limit_bytes))

    process = subprocess.Popen(
        command("run", *arguments), cwd=cwd, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=limit,  # noqa: PLW1509  (there are no threads here)
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def _wait_for(what: Callable[[], object], seconds: float = 30) -> None:
    stop = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < stop, "it did not happen in time"
        time.sleep(0.05)


def _children(pid: int) -> list[int]:
    """Worker processes of a supervisor, by the kernel's own list (those that an examiner thread started too)."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += map(int, (task / "children").read_text().split())
    return found


def _gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


def _findings(folder: Path) -> set[str]:
    return {path.name for path in (folder / "findings").glob("*.json")}


def _pending(folder: Path) -> set[str]:
    """What waits to be confirmed. A campaign that runs may confirm, and remove, a file while it is read."""
    waiting = set()
    for path in (folder / "pending").glob("*.json"):
        with suppress(FileNotFoundError):
            waiting.add(decode(path.read_bytes()).property)
    return waiting


def test_kill_9_of_the_supervisor_loses_nothing_and_leaves_no_process(tmp_path: Path) -> None:
    out = tmp_path / "o"
    with _running("-t", bad("Leaky"), "--time", "60s", "--seed", 1, "--out", out, cwd=tmp_path) as process:
        _wait_for(lambda: _findings(out) and _pending(out))
        children = _children(process.pid)
        process.kill()
        process.wait()
        before, waiting = _findings(out), _pending(out)
        _wait_for(lambda: all(map(_gone, children)), 5)
    state = json.loads((out / "state.json").read_bytes())["targets"][bad("Leaky")]
    again = pagefault("run", "--resume", out, "--time", "1s", "--json", cwd=tmp_path)
    result = again.json["targets"][bad("Leaky")]
    found = {finding["property"] for finding in result["findings"]}

    assert children
    assert again.code == 1
    assert before <= _findings(out)
    assert waiting <= found, "what waited to be confirmed was confirmed after the resume"
    assert result["cases"] > state["cases"]
    assert again.json["seed"] == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_ends_in_order_and_what_is_not_confirmed_waits(number: signal.Signals, tmp_path: Path) -> None:
    out = tmp_path / "o"
    with _running("-t", bad("Leaky"), "--time", "60s", "--seed", 1, "--out", out, "--json", cwd=tmp_path) as process:
        _wait_for(lambda: _findings(out))
        process.send_signal(number)
        printed, _ = process.communicate(timeout=20)
    result = json.loads(printed)

    assert process.returncode == 1
    assert result["stopped"] == f"{number.name} received"
    assert len(result["targets"][bad("Leaky")]["findings"]) == len(_findings(out)) > 0
    on_file = len(list((out / "pending").glob("*.json")))
    assert result["unconfirmed"] <= on_file, "each that was not confirmed is on file (one may be that was not told yet)"


def test_kill_9_of_a_worker_is_survived(tmp_path: Path) -> None:
    out = tmp_path / "o"
    with _running("-t", "ours", "--time", "5s", "--seed", 1, "--out", out, "--json", cwd=tmp_path) as process:
        _wait_for(
            lambda: (out / "journal").is_dir() and any(path.stat().st_size for path in (out / "journal").iterdir())
        )
        for child in _children(process.pid):
            os.kill(child, signal.SIGKILL)
        printed, err = process.communicate(timeout=60)
    result = json.loads(printed)["targets"]["ours"]

    assert process.returncode == 0, err
    assert result["restarts"] == 1
    assert result["findings"] == []
    assert result["cases"] > 50


def test_a_full_disk_ends_in_one_clear_line_and_what_was_found_is_kept(tmp_path: Path) -> None:
    """A limit on the size of files stands for a disk that fills up: the events are the first to reach it."""
    out = tmp_path / "o"
    with _running(
        "-t", bad("Leaky"), "--time", "60s", "--seed", 1, "--out", out, cwd=tmp_path, limit_bytes=2500
    ) as process:
        printed, err = process.communicate(timeout=60)

    assert process.returncode == 2, err
    (line,) = [line for line in printed.splitlines() if line.startswith("cannot write")]
    assert "File too large" in line
    assert "what was found so far is kept, and --resume goes on with it" in line
    for path in (out / "findings").glob("*.json"):
        read(path)  # whole, or it would raise


def test_a_folder_that_cannot_be_written_any_more_ends_the_run_with_all_that_was_found(tmp_path: Path) -> None:
    """Another file system is mounted, a share is gone: here the folder of findings turns into a file."""
    out = tmp_path / "o"
    with _running("-t", bad("Leaky"), "--time", "60s", "--seed", 1, "--out", out, cwd=tmp_path) as process:
        _wait_for(lambda: len(_findings(out)) > 1)
        (out / "findings").rename(tmp_path / "gone")
        (out / "findings").touch()
        printed, err = process.communicate(timeout=60)
    found = {line.split()[2] for line in err.splitlines() if line.startswith("FOUND")}

    assert process.returncode == 2, err
    assert len(found) > 1
    assert all(f"{property}" in printed for property in found), "each that was announced is told in full, or in a line"
    assert "REF-1: a stored reference count equals" in printed
    (line,) = [line for line in printed.splitlines() if line.startswith("cannot write")]
    assert "Not a directory. Make room or give --out DIR on another disk" in line
    case = err[err.index("this case could not be saved; it is here whole:\n") :].split("\n", 1)[1]
    assert decode(case[: case.index("\n}\n") + 3].encode()).property


def _limited(bytes_: int, *arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    limit = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({bytes_}, {bytes_})); "
    code = limit + "from fuzz.cli import main; main()"
    line = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(line, cwd=cwd, env=environment(), capture_output=True, text=True, check=False)


def test_new_target_leaves_nothing_half_written(tmp_path: Path) -> None:
    done = _limited(1000, "new-target", "blocks", "mine.py", cwd=tmp_path)

    assert done.returncode == 2
    assert (
        done.stderr == "pagefault: FILE mine.py cannot be written: File too large. Make room, or give another folder\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_a_campaign_that_cannot_begin_leaves_nothing(tmp_path: Path) -> None:
    done = _limited(10, "run", "-t", "ours", "--time", "1s", cwd=tmp_path)

    assert done.returncode == 2
    assert "campaign.json: File too large. Make room" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arguments", [["targets"], ["targets", "--json"], ["run", "-t", "ours", "--cases", "2"]])
def test_output_that_cannot_be_written_is_one_line(arguments: list[str], tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            command(*arguments), cwd=tmp_path, env=environment(), stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )  # fmt: skip

    assert done.returncode == 2
    last = done.stderr.splitlines()[-1]
    words = "cannot write standard output: No space left on device. Make room, or send it elsewhere"
    assert last == f"pagefault: {words}"


def test_words_for_the_user_that_cannot_be_written_stop_nothing(tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            command("run", "-t", bad("Leaky"), "--cases", 60, "--seed", 1, "--json"),
            cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=full, text=True, check=False,
        )  # fmt: skip

    assert done.returncode == 1
    assert json.loads(done.stdout)["targets"][bad("Leaky")]["cases"] >= 60


def test_what_a_worker_was_at_when_all_was_killed_is_run_again(tmp_path: Path) -> None:
    """The ranges that workers were given are on file as unfinished, up to the case that they had come to."""
    for attempt in range(6):  # a kill between two ranges leaves nothing open
        out = tmp_path / f"o{attempt}"
        tally = _killed_at_work(out, tmp_path)
        handed_out = tally["next_block"] * 64
        assert sum(stop - first for first, stop in tally["open"]) == handed_out - tally["cases"]
        if tally["open"]:
            break
    again = pagefault("run", "--resume", out, "--cases", handed_out, "--json", cwd=tmp_path)

    assert handed_out > tally["cases"]
    assert again.json["targets"]["ours"]["cases"] == handed_out, "each case once"


def _killed_at_work(out: Path, cwd: Path) -> dict[str, Any]:
    """What is on file of a campaign that was killed in its first seconds, as soon as a range was there that is not finished.

    On a busy machine the file may be written when a range has just ended, time after time.
    """
    state = out / "state.json"
    with _running("-t", "ours", "--time", "60s", "--seed", 1, "--out", out, cwd=cwd) as process:
        _wait_for(lambda: state.exists() and json.loads(state.read_bytes())["targets"])
        _wait_for(lambda: json.loads(state.read_bytes())["targets"]["ours"]["cases"])
        _wait_for(lambda: json.loads(state.read_bytes())["targets"]["ours"]["open"])
        process.kill()
    left: dict[str, Any] = json.loads(state.read_bytes())["targets"]["ours"]
    return left


def test_a_campaign_in_use_is_not_joined(tmp_path: Path) -> None:
    out = tmp_path / "o"
    with _running("-t", "ours", "--time", "60s", "--out", out, cwd=tmp_path):
        _wait_for((out / "campaign.json").exists)
        done = pagefault("run", "--resume", out, "--time", "1s", cwd=tmp_path)

    assert done.code == 2
    assert "in use by another campaign: wait for it, or give another --out" in done.err


def test_campaigns_that_begin_in_the_same_second_have_folders_of_their_own(tmp_path: Path) -> None:
    line = command("run", "-t", "ours", "--cases", 2, "--json")
    options = {
        "cwd": tmp_path,
        "env": environment(),
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": True,
    }
    many = [subprocess.Popen(line, **options) for _ in range(4)]  # type: ignore[call-overload]
    results = [json.loads(process.communicate(timeout=60)[0]) for process in many]

    assert len({result["folder"] for result in results}) == 4
    assert all(result["targets"]["ours"]["cases"] == 2 for result in results)


def test_resume_takes_no_other_target_seed_or_folder(tmp_path: Path) -> None:
    pagefault("run", "-t", "ours", "--cases", 5, "--out", "o", cwd=tmp_path)
    for more, words in (
        (["-t", "ours"], "leave out --target"),
        (["--seed", 1], "leave out"),
        (["--out", "p"], "leave out --out"),
    ):
        done = pagefault("run", "--resume", "o", *more, cwd=tmp_path)
        assert done.code == 2
        assert words in done.err
