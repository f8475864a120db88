"""`check-target` and `new-target`: what is wrong with an adapter, and what to change."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from fuzz.check_progress import told
from fuzz.check_where import Whereabouts
from tests.fuzz.helpers import bad, pagefault


@pytest.mark.parametrize("target", ["ours", bad("Sound"), bad("Leaky")])
def test_a_sound_adapter_is_sound_whatever_is_behind_it(target: str, tmp_path: Path) -> None:
    done = pagefault("check-target", target, "--time", "1s", "--json", cwd=tmp_path)

    assert done.code == 0, done.out
    assert done.json["problems"] == []
    assert any("judged operations a second" in note for note in done.json["notes"])
    assert any("breaks" in note for note in done.json["notes"]) == (target == bad("Leaky"))


@pytest.mark.parametrize(
    ("name", "problem", "remedy"),
    [
        ("Lacks", "Lacks has no method slots", "a blocks target needs open, admit, append, free, slots"),
        ("WrongType", "admit returned '0' (str)", "return a whole number"),
        ("RaisesItself", "append raised KeyError", "else mend the adapter"),
        ("KeepsState", "gave other answers on an adapter that was opened before", "reset its class-level globals"),
        ("Clock", "gave other answers in a second process", "no clocks"),
        ("Boasts", "declares the promise ALLOC-4P", "leave ALLOC-4P out of capabilities.promises"),
        ("Misspelt", "the method freeblocks is never called", "is it free_blocks? Rename it"),
        ("Undeclared", "nothing was ever refused, but a call raised", "list the exception in capabilities.refusals"),
        ("NeverRefuses", "nothing was ever refused", "raise a declared refusal where there is no room"),
        ("NeverMade", "making the adapter raised RuntimeError: no licence server", "called without arguments"),
        ("HangsInOpen", "did not return within 0.5 s", "may wait for anything"),
        ("LeavesInOpen", "ended itself with exit status 0", "must not end the process"),
        ("NoCapabilities", "NoCapabilities.capabilities is dict", "set `capabilities = Capabilities(...)`"),
        ("NoSalt", "admit cannot be called with 2 arguments and salt=", "see BlocksTarget"),
        ("Absurd", "block_sizes is (0,)", "name at least one size"),
        ("Absurd", "num_blocks is (5, 2)", "the smallest and the largest pool"),
        ("Absurd", "HASH-1 is no promise", "promises are ALLOC-2P"),
        ("Absurd", "refusals holds Exception", "list the one class"),
        ("Absurd", "max_sequences is 0", "give 1 or more"),
    ],
)
def test_each_mistake_is_named_with_its_remedy(name: str, problem: str, remedy: str, tmp_path: Path) -> None:
    done = pagefault("check-target", bad(name), "--time", "0.5s", "--call-limit", "0.5s", "--json", cwd=tmp_path)
    found = [row for row in done.json["problems"] if problem in row["problem"]]

    assert done.code == 2
    assert found, done.json["problems"]
    assert remedy in found[0]["remedy"]


@pytest.mark.parametrize(("name", "how"), [("Hangs", "did not return within 0.5 s"), ("Exits", "exit status 0")])
def test_a_call_that_hangs_or_kills_is_a_finding_not_the_adapters(name: str, how: str, tmp_path: Path) -> None:
    """As in a campaign: CRASH-2."""
    done = pagefault("check-target", bad(name), "--time", "0.5s", "--call-limit", "0.5s", cwd=tmp_path)

    assert done.code == 0, done.out
    assert "ADAPTER" not in done.out
    assert "CRASH-2: truncate of " in done.out
    assert how in done.out
    assert "`pagefault run` finds and explains it" in done.out
    assert "the adapter is sound" not in done.out


def test_a_person_who_waits_is_told_of_the_call(capfd: pytest.CaptureFixture[str]) -> None:
    with told("mine", 0.02, 0.02) as path:
        where = Whereabouts(path)
        where.begin("case 3")
        where.say("append of A", operation=True)
        time.sleep(0.2)

    assert "checking mine: case 3: append of A\n" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("level", "blank"),
    [("blocks", "open: build your manager"), ("engine", "open: build"), ("cache", "open: build"), ("attention", "")],
)
def test_a_new_target_runs_into_its_first_blank(level: str, blank: str, tmp_path: Path) -> None:
    written = pagefault("new-target", level, "mine.py", cwd=tmp_path)
    checked = pagefault("check-target", "mine.py:Target", "--time", "0.3s", cwd=tmp_path)

    assert written.code == 0
    assert "pagefault check-target mine.py:Target" in written.out
    assert checked.code == 2
    assert f"NotImplementedError: {blank}" in checked.out
    assert "    fix: fill it in\n" in checked.out
    assert checked.out.count("ADAPTER") == 1


def test_a_blank_outside_the_class_is_to_be_filled_in_too(tmp_path: Path) -> None:
    pagefault("new-target", "blocks", "mine.py", cwd=tmp_path)
    text = (
        (tmp_path / "mine.py").read_text().replace('raise NotImplementedError("open: build your manager")', "build()")
    )
    (tmp_path / "mine.py").write_text(f"{text}\n\ndef build():\n    raise NotImplementedError\n")
    checked = pagefault("check-target", "mine.py:Target", cwd=tmp_path)

    assert "ADAPTER: open raised NotImplementedError" in checked.out
    assert "    fix: fill it in\n" in checked.out


def test_a_new_target_never_overwrites_a_file(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("years of work")
    done = pagefault("new-target", "blocks", "mine.py", cwd=tmp_path)

    assert done.code == 2
    assert "FILE mine.py exists, and is left as it is: give another name" in done.err
    assert (tmp_path / "mine.py").read_text() == "years of work"


def test_the_blanks_filled_in_make_a_sound_adapter(tmp_path: Path) -> None:
    """The template leads somewhere: with a line or two for each blank it is a working adapter."""
    pagefault("new-target", "blocks", "mine.py", cwd=tmp_path)
    text = (tmp_path / "mine.py").read_text()
    answers = {
        "open": "self.manager = BlockManager(config.num_blocks, config.block_size)",
        "admit": "cached = self.manager.allocate(name, tokens); self.manager.computed(name, len(tokens)); return cached",
        "append": "self.manager.append(name, tokens); self.manager.computed(name, self.manager.num_tokens(name))",
        "free": "self.manager.free(name)",
        "table": "return self.manager.table(name)",
        "free_blocks": "return self.manager.free_blocks()",
    }
    lines = []
    for line in text.splitlines():
        blank = line.strip().removeprefix('raise NotImplementedError("').split(":")[0]
        lines.append(f"        {answers[blank]}" if "raise NotImplementedError" in line and blank in answers else line)
    filled = "\n".join(lines).replace("unknown_free=", "cached_overlaps_free=True, unknown_free=")
    imports = "from paged_impl.block_manager import BlockManager\nfrom paged_impl.errors import OutOfBlocks\n"
    filled = filled.replace("class OutOfBlocks(Exception):", f"{imports}class Unused(Exception):")
    (tmp_path / "mine.py").write_text(filled + "\n")
    checked = pagefault("check-target", "mine.py:Target", "--time", "1s", cwd=tmp_path)
    run = pagefault("run", "-t", "mine.py:Target", "--time", "2s", "--out", "o", cwd=tmp_path)

    assert checked.code == 0, checked.out
    assert run.code == 0, run.out


CRASHES = """
import implementation
from msgspec.structs import replace

from tests.targets.sound_engine import Static

class Crashes(Static):
    capabilities = replace(Static.capabilities, oversized=None, refusals=())

    def step(self):
        implementation.schedule(self.run)
        return super().step()
"""
CRASHING = """
def schedule(running):
    assert len(running) < 2, "nothing could be scheduled"
"""


def test_a_step_that_crashes_is_no_refusal_that_was_not_declared(tmp_path: Path) -> None:
    """It was ADAPTER, with advice that led to another one: of an engine only submit may refuse."""
    (tmp_path / "mine.py").write_text(CRASHES)
    (tmp_path / "implementation.py").write_text(CRASHING)
    checked = pagefault("check-target", "mine.py:Crashes", "--time", "2s", cwd=tmp_path)
    run = pagefault("run", "-t", "mine.py:Crashes", "--time", "60s", "--fail-fast", "--out", "o", cwd=tmp_path)

    assert "the implementation behind it breaks CRASH-1" in checked.out
    assert "mine.py:Crashes: the adapter is sound" in checked.out
    assert checked.code == 0
    assert run.code == 1
    assert "list it in capabilities.refusals" not in run.out
