"""The verdict ADAPTER tells the few steps that lead to it."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest

from properties.blocks.operations import Admit, Append, Drain, Fork, Free, Geometry
from properties.blocks.spec import SPEC
from properties.contract import AdapterError
from properties.judging import judge_target
from properties.leading import with_steps
from properties.ledger import Ledger
from properties.machine import PROFILES
from properties.targets import Target
from properties.targets.ours import OurBlocks
from properties.trial import EVERYTHING, run_trace

LONG = (Admit("A", (0, 1, 2)), Admit("B", (0,)), Append("B", (1,)), Fork("A", "C"), Free("B"), Free("A"), Drain())
GEOMETRY = Geometry(block_size=4, num_blocks=9)


class FailsWithAChild(OurBlocks):
    """Where a sequence is freed that has one."""

    def open(self, config: Geometry) -> None:
        super().open(config)
        self.parents: list[str] = []

    def fork(self, parent: str, child: str) -> None:
        super().fork(parent, child)
        self.parents.append(parent)

    def free(self, name: str) -> None:
        if name in self.parents:
            (self.parents.copy())[len(self.parents)].strip()
        super().free(name)


def failure(cls: type[OurBlocks], operations: Sequence[object] = LONG) -> AdapterError:
    error = run_trace(SPEC, cls, GEOMETRY, operations, tolerate=EVERYTHING).adapter
    assert error is not None
    return error


def test_what_led_to_it_is_known_to_the_call_that_failed() -> None:
    assert failure(FailsWithAChild).trace == (GEOMETRY, LONG[:6])


def test_the_steps_are_few() -> None:
    told = with_steps(SPEC, FailsWithAChild, failure(FailsWithAChild))

    assert told.remedy.endswith("The steps (block size 1, num blocks 1): admit A with token 0; fork A into B; free A")
    assert "raised IndexError" in told.problem


def test_pytest_tells_them() -> None:
    results = judge_target(Target("mine", "blocks", FailsWithAChild), PROFILES["pagefault-dev"], 40, Ledger(), [])

    assert results.adapter is not None
    assert "num blocks 1): admit A with token 0; fork A into B; free" in results.adapter.remedy


class FailsLate(OurBlocks):
    """In the tenth call."""

    def open(self, config: Geometry) -> None:
        super().open(config)
        self.calls: list[str] = []

    def free(self, name: str) -> None:
        self.calls.append(name)
        (9 * [0])[len(self.calls) - 1].bit_length()
        super().free(name)


def test_of_many_steps_the_number_is_told() -> None:
    trace = [step for _ in range(12) for step in (Admit("A", (0,)), Free("A"))]

    assert (
        "It takes 20 steps (block size 1, num blocks" in with_steps(SPEC, FailsLate, failure(FailsLate, trace)).remedy
    )


FAILED: list[int] = []


class FailsOnce(OurBlocks):
    def free(self, name: str) -> None:
        if not FAILED:
            FAILED.append(1)
            FAILED[7].bit_length()
        super().free(name)


class FailsToClose(OurBlocks):
    def close(self) -> None:
        raise OSError("no device")


class CannotBeMade(OurBlocks):
    def __init__(self) -> None:
        raise OSError("no device")


@pytest.mark.parametrize("cls", [FailsOnce, CannotBeMade])
def test_what_no_step_leads_to_again_stays_as_it_is(cls: type[OurBlocks]) -> None:
    error = failure(cls)

    assert with_steps(SPEC, cls, error) is error


def test_a_failing_close_takes_one_step() -> None:
    assert (
        "The steps (block size 1, num blocks 1): free everything"
        in with_steps(SPEC, FailsToClose, failure(FailsToClose)).remedy
    )


class Slow(FailsWithAChild):
    def open(self, config: Geometry) -> None:
        time.sleep(0.02)
        super().open(config)


def test_shortening_takes_no_longer_than_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("properties.leading.LIMIT_S", 0.1)
    many = (*(Admit(f"S{n}", (0,)) for n in range(40)), *LONG)
    error = run_trace(SPEC, Slow, Geometry(block_size=1, num_blocks=99), many, tolerate=EVERYTHING).adapter
    assert error is not None
    started = time.monotonic()

    assert "num blocks 1)" not in with_steps(SPEC, Slow, error).remedy
    assert time.monotonic() - started < 5
