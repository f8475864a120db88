"""An adapter that declares what it does not do is told so (ADAPTER, with the remedy); without the lie nothing is said."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from fuzz.faults import all_faults
from properties.blocks.declarations import lie
from properties.blocks.operations import Admit, Append, Fork, Geometry
from properties.blocks.spec import SPEC
from properties.drive import drive
from properties.judging import judge_target
from properties.ledger import Ledger
from properties.machine import PROFILES
from properties.targets import Target
from properties.targets.ours import OurBlocks
from properties.trial import EVERYTHING, Verdict, run_trace
from tests.targets import zoo

GEOMETRY = Geometry(block_size=2, num_blocks=8)
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


def found_out(make: type[Any]) -> str:
    """What many traces together tell of an adapter; "" where nothing is wrong."""
    marks: Counter[str] = Counter()
    broken: set[str] = set()
    for seed in range(80):
        _, verdict = drive(SPEC, make, seed, tolerate=EVERYTHING)
        assert verdict.adapter is None  # a trace alone says nothing: a broken cache may do that
        marks.update(verdict.state.marks)
        broken |= {breach.property for breach in verdict.breaches}
    return str(lie(make.capabilities, marks, broken) or "")


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (OurBlocks, ""),
        (declares(Tolerant, unknown_free="ignored"), ""),
        (declares(Tolerant, unknown_free=None), ""),
        (Tolerant, "unknown_free='refused' is declared, but"),
        (Tolerant, "were accepted. Remedy: declare unknown_free='ignored', or mend free"),
        (declares(OurBlocks, unknown_free="ignored"), "were refused. Remedy: declare unknown_free='refused'"),
    ],
)
def test_a_free_of_an_unknown_name(make: type[Any], says: str) -> None:
    told = found_out(make)

    assert says in told
    assert bool(says) == bool(told)


def test_a_cache_that_believes_a_second_free_is_broken_and_its_adapter_is_not() -> None:
    make = all_faults()["believes-second-free"].make

    assert found_out(make) == ""
    assert any(drive(SPEC, make, seed)[1].broke("REF-3") for seed in range(80))


def test_pytest_says_so_too() -> None:
    results = judge_target(Target("mine", "blocks", Tolerant), PROFILES["pagefault-dev"], 60, Ledger(()), [])

    assert "declare unknown_free='ignored'" in str(results.adapter)
    assert results.findings == {}


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (zoo.CopiesOnWrite, ""),
        (zoo.CopiesAtTheFork, ""),
        (zoo.CopiesEverythingAtTheFork, ""),
        (declares(zoo.CopiesAtTheFork, copy_at_fork=False), "Remedy: declare copy_at_fork=True"),
        (declares(zoo.CopiesEverythingAtTheFork, copy_at_fork=False), "position 0 is in slot 0 of the parent"),
    ],
)
def test_a_fork_that_copies_or_does_not(make: type[Any], says: str) -> None:
    told = blamed(judged(make, FORK))

    assert says in told
    assert bool(says) == bool(told)


def test_a_fork_that_shares_what_it_declares_to_copy_is_a_finding_with_a_hint() -> None:
    """A cache that forgot the copy does the same; so it is not called a lie."""
    verdict = judged(declares(zoo.CopiesOnWrite, copy_at_fork=True, unknown_free=None), FORK)
    shares = judged(declares(SharesForEver, copy_at_fork=True), FORK)

    assert (verdict.breaches, verdict.adapter) == ([], None)  # it copies at the write, which is sound
    assert "a copy was due at the fork, since copy_at_fork=True is declared" in shares.message("COW-1")


class SharesForEver(zoo.CopiesOnWrite):
    """Never copies a shared block."""

    def due(self, name: str) -> None:
        return None
