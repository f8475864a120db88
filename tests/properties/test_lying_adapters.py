"""An adapter that declares what it does not do is told so (ADAPTER, with the remedy); without the lie nothing is said."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from properties.blocks.operations import Admit, Append, Fork, Free, FreeAgain, Geometry
from properties.blocks.spec import SPEC
from properties.targets.ours import OurBlocks
from properties.trial import Verdict, run_trace
from tests.targets import zoo

GEOMETRY = Geometry(block_size=2, num_blocks=8)
AGAIN = (Admit("A", (0, 1, 2)), Free("A"), FreeAgain("A"))
FORK = (Admit("A", (0, 1, 2)), Fork("A", "B"), Append("B", (1,)))


def declares(make: type[Any], **changes: object) -> type[Any]:
    """The same adapter with other declarations."""
    return type(make.__name__, (make,), {"capabilities": msgspec.structs.replace(make.capabilities, **changes)})


def judged(make: type[Any], trace: Sequence[Any], geometry: Geometry = GEOMETRY) -> Verdict:
    return run_trace(SPEC, make, geometry, trace)


def blamed(verdict: Verdict) -> str:
    """What the adapter is told; "" where nothing is wrong."""
    assert verdict.breaches == []  # an adapter's fault is never a finding
    return str(verdict.adapter or "")


class Tolerant(OurBlocks):
    """A free of an unknown name does nothing."""

    def free(self, name: str) -> None:
        if name in self.manager._sequences:
            super().free(name)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (OurBlocks, ""),
        (declares(Tolerant, unknown_free="ignored"), ""),
        (declares(Tolerant, unknown_free=None), ""),
        (Tolerant, "unknown_free='refused' is declared, but free(A) of a sequence that is not live was accepted"),
        (declares(OurBlocks, unknown_free="ignored"), "raised UnknownSequence. Remedy: declare unknown_free='refused'"),
    ],
)
def test_a_free_of_an_unknown_name(make: type[Any], says: str) -> None:
    told = blamed(judged(make, AGAIN))

    assert says in told
    assert bool(says) == bool(told)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (zoo.CopiesOnWrite, ""),
        (zoo.CopiesAtTheFork, ""),
        (zoo.CopiesEverythingAtTheFork, ""),
        (declares(zoo.CopiesOnWrite, copy_at_fork=True), "position 2 in slot 2, in a block that is not full"),
        (declares(zoo.CopiesAtTheFork, copy_at_fork=False), "Remedy: declare copy_at_fork=True"),
        (declares(zoo.CopiesEverythingAtTheFork, copy_at_fork=False), "position 0 is in slot 0 of the parent"),
    ],
)
def test_a_fork_that_copies_or_does_not(make: type[Any], says: str) -> None:
    told = blamed(judged(make, FORK))

    assert says in told
    assert bool(says) == bool(told)
