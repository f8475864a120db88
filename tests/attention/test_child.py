"""Native code in a child process: results and exceptions come back, a death is told and the next call starts anew."""

import os
import signal
import sys

import pytest
import torch

from properties.attention.cases import AttentionSetting
from properties.attention.judges import judge
from properties.attention.referee import AttentionReferee
from properties.attention.target import Batch, Output, Pool
from properties.attention.targets.child import Child, ChildDied, ReadsInChild
from properties.attention.targets.plain import PlainTorch
from tests.attention.test_findings import BATCH


class Service:
    """What the child holds in these tests."""

    def decode(self, pool: Pool, batch: Batch) -> tuple[torch.Tensor, torch.Tensor | None]:
        sys.stdout.write("native code prints")
        return tuple(PlainTorch().decode(pool, batch))

    def whose(self) -> int:
        return os.getpid()

    def fail(self) -> None:
        raise ValueError("no room")

    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGILL)

    def die_of_a_nameless_signal(self) -> None:
        os.kill(os.getpid(), 40)  # a real-time one

    def leave(self) -> None:
        sys.exit(3)


class Served(ReadsInChild):
    """The plain target's decode, in a child."""

    level = "attention"
    name = "served"
    capabilities = PlainTorch.capabilities
    prefill = None  # type: ignore[assignment]

    def __init__(self) -> None:
        self.child = Child(f"{__name__}:Service")


class Fatal(Served):
    """A native crash in the middle of a read."""

    def decode(self, pool: Pool, batch: Batch) -> Output:
        self.child.call("die")
        raise AssertionError("unreachable")


def test_results_come_back_from_another_process() -> None:
    child = Child(f"{__name__}:Service")

    assert child.call("whose") != os.getpid()
    assert child.call("whose") == child.call("whose")
    child.close()


def test_an_exception_is_raised_here_and_the_child_lives_on() -> None:
    child = Child(f"{__name__}:Service")
    before = child.call("whose")

    with pytest.raises(ValueError, match="no room"):
        child.call("fail")

    assert child.call("whose") == before
    child.close()


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("die", "died in die: signal SIGILL"),
        ("die_of_a_nameless_signal", "died in die_of_a_nameless_signal: signal 40"),
        ("leave", "exit status 3"),
    ],
)
def test_a_death_is_told_and_the_next_call_starts_anew(method: str, message: str) -> None:
    child = Child(f"{__name__}:Service")
    before = child.call("whose")

    with pytest.raises(ChildDied, match=message):
        child.call(method)

    assert child.call("whose") != before
    child.close()


def test_a_read_through_a_child_is_judged_as_any_other() -> None:
    target = Served()

    assert judge(target, BATCH).findings == []
    target.child.close()


def test_a_native_crash_is_a_finding() -> None:
    target = Fatal()
    referee = AttentionReferee(target, AttentionSetting())

    assert referee.apply(BATCH) == "done"
    assert [breach.property for breach in referee.state.breaches] == ["CRASH-1"]
    assert "signal SIGILL" in referee.state.breaches[0].message
    target.child.close()
