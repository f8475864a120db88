"""An error of pagefault itself inside a fork is told as that, and never as the fault of the target or its adapter."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from fuzz import case_in_fork, check, jobs, messages
from fuzz.own_error import in_guarded_fork
from properties.blame import is_own
from properties.blocks.operations import Admit, Geometry
from properties.blocks.spec import SPEC
from properties.case import Case, encode
from properties.contract import UsageError
from properties.targets import Target, load
from tests.fuzz.helpers import pagefault

CASE = Case(
    level="blocks",
    target="ours",
    property="CRASH-2",
    message="",
    geometry=Geometry(num_blocks=2, block_size=2),
    operations=(Admit("A", (0,)),),
)


@pytest.mark.parametrize("command", [messages.CheckTarget(limit_s=5, seconds=0.1), "replay", "confirm"])
def test_a_mistake_of_ours_is_said_to_be_ours(command: object, monkeypatch: pytest.MonkeyPatch) -> None:
    text = encode(CASE).decode()
    kinds = {"replay": messages.Replay, "confirm": messages.Confirm}
    asked = kinds[command](case=text, limit_s=5) if isinstance(command, str) else command
    broken = dataclasses.replace(SPEC, maker=None, referee=None)  # type: ignore[arg-type]  # what a slip of ours does
    for module in (check, case_in_fork, jobs):
        monkeypatch.setattr(module, "spec_of", lambda level: broken)
    reply = jobs.perform(load("ours"), asked)  # type: ignore[arg-type]

    assert isinstance(reply, messages.Unusable), reply
    assert reply.why == "internal"
    assert "an error of pagefault itself, not of the target" in reply.message
    assert "'NoneType' object is not callable" in reply.message
    assert "properties/" in reply.message


def test_what_a_target_raises_is_not_ours_and_its_death_stays_a_death(tmp_path: Path) -> None:
    def theirs() -> None:
        raise AttributeError("a line of the target")

    def died(emit: object) -> None:
        theirs()

    assert in_guarded_fork(died, limit_s=5).died == "the process ended itself with exit status 70"
    assert in_guarded_fork(lambda emit: os._exit(70), limit_s=5).died
    assert jobs.perform(Target("m", "blocks", theirs), messages.Make(limit_s=5)) == messages.Made(
        problem=f"making the adapter raised AttributeError: a line of the target (test_own_error.py:{_line(theirs)} in theirs)"
    )


def _line(function: object) -> int:
    return int(function.__code__.co_firstlineno) + 1  # type: ignore[attr-defined]


def test_a_machine_without_room_is_nobody() -> None:
    assert not is_own(MemoryError())
    with pytest.raises(AttributeError) as slip:
        encode(None)  # type: ignore[arg-type]
    assert is_own(slip.value)


def test_a_usage_error_in_a_fork_is_a_usage_error() -> None:
    def work(emit: object) -> None:
        raise UsageError("no such device")

    with pytest.raises(UsageError, match="no such device"):
        in_guarded_fork(work, limit_s=5)


@pytest.mark.parametrize("target", ["ours", "ours-engine", "plain-torch", "cache-ours"])
def test_a_sound_target_of_each_level_is_sound(target: str, tmp_path: Path) -> None:
    done = pagefault("check-target", target, "--time", "0.2s", "--json", cwd=tmp_path)

    assert done.code == 0, (done.out, done.err)
    assert done.json["problems"] == []
    assert any("judged operations a second" in note for note in done.json["notes"])
