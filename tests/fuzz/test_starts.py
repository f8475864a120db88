"""Adapters that do not come to their first operation, or leave by the back door: ADAPTER, with the call and the limit."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from fuzz.making import signs_of_life
from properties.blocks.operations import Admit, Geometry
from properties.case import Case, write
from tests.fuzz.helpers import bad, pagefault

DIED = [
    ("HangsWhenMade", "making the adapter: it did not return within 0.5 s"),
    ("HangsLaterMade", "making the adapter: it did not return within 0.5 s"),
    ("HangsInOpen", "its pool: it did not return within 0.5 s"),
    ("LeavesInOpen", "its pool: the process ended"),
    ("ExitsPolitely", "append raised SystemExit: 70 (bad_targets.py:"),
    ("InterruptsItself", "open raised KeyboardInterrupt (bad_targets.py:"),
]


@pytest.mark.parametrize(("name", "words"), [*DIED, ("DiesInOpen", "open(Geometry(block_size=4,")])
def test_a_campaign_blames_the_adapter(name: str, words: str, tmp_path: Path) -> None:
    limits = ("--time", "3s", "--call-limit", "0.5s", "--seed", 3)
    done = pagefault("run", "-t", bad(name), *limits, "--out", "o", "--json", cwd=tmp_path)
    result = done.json["targets"][bad(name)]

    assert (done.code, result["state"], result["findings"]) == (2, "adapter", [])
    assert words in result["reason"]
    assert ". Remedy: " in result["reason"]


@pytest.mark.parametrize(("name", "words"), [DIED[0], *DIED[2:5]])
def test_check_target_names_the_call(name: str, words: str, tmp_path: Path) -> None:
    done = pagefault("check-target", bad(name), "--time", "0.5s", "--call-limit", "0.5s", "--json", cwd=tmp_path)
    ((problem, _),) = [tuple(row.values()) for row in done.json["problems"]]

    assert done.code == 2
    assert words in problem


def test_a_campaign_that_ends_while_the_adapter_is_made_says_so(tmp_path: Path) -> None:
    done = pagefault("run", "-t", bad("HangsWhenMade"), "--time", "0.7s", "--out", "o", cwd=tmp_path)

    assert done.code == 2
    assert "making the adapter: it did not return within the 0." in done.out


def test_a_case_whose_target_does_not_open_is_an_error_of_the_adapter(tmp_path: Path) -> None:
    geometry = Geometry(block_size=1, num_blocks=3)
    fields = {"level": "blocks", "target": bad("HangsInOpen"), "property": "REF-1", "message": "said"}
    case = Case(**fields, geometry=geometry, operations=(Admit("A", (0,)),))
    write(case, tmp_path / "case.json")
    done = pagefault("repro", "case.json", "--call-limit", "0.5s", cwd=tmp_path)

    assert done.code == 2
    assert "ADAPTER: before the first operation: it did not return within 0.5 s" in done.out + done.err


def test_a_target_that_changes_folder_loses_nothing(tmp_path: Path) -> None:
    arguments = ("run", "-t", bad("ChangesFolder"), "--time", "0.8s", "--seed", 1, "--json")
    first = pagefault(*arguments, "--out", "o", cwd=tmp_path)
    second = pagefault("run", "--resume", "o", "--time", "0.8s", "--json", cwd=tmp_path)

    assert first.json["error"] == second.json["error"] == ""
    assert first.json["targets"][bad("ChangesFolder")]["cases"] > 0
    assert list((tmp_path / "o" / "corpus").rglob("*.json")), "what reached a new state is saved, and read again"
    assert "left out" not in second.err


def test_a_target_that_ends_pytest_is_no_green_run(tmp_path: Path) -> None:
    """os._exit(0) in the middle: pytest's own status would be 0."""
    done = pagefault("test", "-t", bad("LeavesInOpen"), "-q", "-k", "ALLOC-1", cwd=tmp_path)

    assert done.code == 2
    assert "the process ended itself with exit status 0 in the middle" in done.err


def test_an_adapter_that_imports_for_long_gives_signs_of_life() -> None:
    """An engine may take a minute to be imported; a constructor that waits for anything else is silent."""
    beats: list[int] = []
    with signs_of_life(lambda: beats.append(len(sys.modules))):
        at_once = len(beats)
        time.sleep(0.5)
        silent = len(beats)
        sys.modules["pagefault_signs_of_life"] = sys
        time.sleep(0.5)
    del sys.modules["pagefault_signs_of_life"]
    imported = len(beats)
    time.sleep(0.3)

    assert (at_once, silent, imported, len(beats)) == (1, 1, 2, 2)
