"""Targets that crash, exit, hang or print: the campaign outlives them, and files what they did."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from properties.case import read
from tests.fuzz.helpers import Finished, bad, pagefault


@pytest.mark.parametrize(
    ("name", "words", "steps"),
    [
        ("Segfaults", "killed by SIGSEGV", 2),
        ("Exits", "ended itself with exit status 0", 2),
        ("Hangs", "did not return within 0.5 s", 2),
    ],
)
def test_a_death_or_a_hang_is_a_case(name: str, words: str, steps: int, tmp_path: Path) -> None:
    options = ("--time", "60s", "--fail-fast", "--seed", 3, "--call-limit", "0.5s", "--out", "o", "--json")
    done = pagefault("run", "-t", bad(name), *options, cwd=tmp_path)
    (finding,) = done.json["targets"][bad(name)]["findings"]
    case = read(tmp_path / finding["path"])
    repro = pagefault("repro", finding["path"], "--call-limit", "0.5s", "--json", cwd=tmp_path)

    assert done.code == 1
    assert finding["property"] == "CRASH-2"
    assert words in finding["message"]
    assert len(case.operations) == steps, "minimised, each candidate in a process of its own"
    assert not case.flaky
    assert done.json["targets"][bad(name)]["restarts"] > 0
    assert repro.code == 1
    assert repro.json[0]["status"] == "FAILED"


def test_garbage_on_every_stream_does_no_harm(tmp_path: Path) -> None:
    done = pagefault("run", "-t", bad("Prints"), "--time", "2s", "--seed", 3, "--out", "o", "--json", cwd=tmp_path)

    assert done.code == 0, done.err
    assert done.json["targets"][bad("Prints")]["findings"] == []
    assert done.json["targets"][bad("Prints")]["restarts"] == 0
    assert "garbage" not in done.out + done.err


def test_a_worker_that_somebody_killed_is_no_finding(tmp_path: Path) -> None:
    marker = str(tmp_path / "marker")
    done = pagefault(
        "run",
        "-t",
        bad("DiesLater"),
        "--time",
        "2s",
        "--seed",
        3,
        "--out",
        "o",
        "--json",
        cwd=tmp_path,
        PAGEFAULT_TEST_MARKER=marker,
    )

    assert done.code == 0, done.err
    assert done.json["targets"][bad("DiesLater")]["restarts"] == 1
    assert "not-reproduced" in (tmp_path / "o" / "events.jsonl").read_text()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Lacks", "lacks slots. Remedy: a blocks target needs open, admit, append, free, slots"),
        ("WrongType", "admit returned '0' (str). Remedy: return a whole number"),
        ("RaisesItself", "in the adapter's own code, on legal use. Remedy: if this means 'no room'"),
        ("KeepsState", "alone it passes, behind"),
        (
            "NeverMade",
            "making the adapter raised RuntimeError: no licence server (bad_targets.py:153 in __init__). Remedy: the class",
        ),
        ("DiesWhenMade", "making the adapter: the process ended itself with exit status 9. Remedy: the class"),
    ],
)
def test_a_broken_adapter_is_never_a_finding(name: str, words: str, tmp_path: Path) -> None:
    done = pagefault("run", "-t", bad(name), "--time", "4s", "--seed", 3, "--out", "o", "--json", cwd=tmp_path)
    result = done.json["targets"][bad(name)]

    assert done.code == 2
    assert result["findings"] == []
    assert result["state"] in ("adapter", "failed")
    assert words in result["reason"]


@pytest.fixture(scope="module")
def chance(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """A campaign on a target that is wrong by chance."""
    cwd = tmp_path_factory.mktemp("chance")
    return pagefault("run", "-t", bad("Random"), "--time", "8s", "--seed", 3, "--out", "o", cwd=cwd)


def test_chance_is_called_flaky_and_never_certain(chance: Finished) -> None:
    assert chance.code == 1
    assert f"FLAKY {bad('Random')} " in chance.err
    assert "FOUND" not in chance.err, "it failed again, by chance"


def test_what_is_flaky_is_told_with_what_was_seen(chance: Finished) -> None:
    assert re.search(rf"^FLAKY [A-Z]+-\d of {re.escape(bad('Random'))}: it ", chance.out, re.MULTILINE)
    assert "keep state between cases, or depend on time or chance?" in chance.out
    assert "what was seen: " in chance.out
