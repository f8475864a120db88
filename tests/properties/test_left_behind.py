"""What a target keeps in a global shows though every system of it ends empty, and the words say where to look."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from properties.blocks import opening
from properties.blocks.operations import Geometry
from properties.drive import LEFT_OPEN, drive
from properties.engine.operations import EngineGeometry
from properties.protocol import Capabilities
from properties.specs import spec_of
from properties.targets.engine_ours import OurEngine
from properties.targets.ours import OurBlocks


class SharedQueue(OurEngine):
    """`waiting = []` on the class: every engine has the same queue."""

    waiting: ClassVar[list[Any]] = []

    def open(self, config: EngineGeometry) -> None:
        super().open(config)
        self.engine.scheduler._waiting = self.waiting


class SharedRequests(OurEngine):
    """`requests = {}` on the class: every engine has the same requests."""

    requests: ClassVar[dict[Any, Any]] = {}

    def open(self, config: EngineGeometry) -> None:
        super().open(config)
        self.engine.scheduler._requests = self.requests


class SharedFree(OurBlocks):
    """What the manager before did not give back is on no free list any more."""

    held: ClassVar[frozenset[int]] = frozenset()

    def open(self, config: Geometry) -> None:
        super().open(config)
        self.lost, SharedFree.held = SharedFree.held, frozenset()

    def free_blocks(self) -> list[int]:
        free = super().free_blocks()
        SharedFree.held = frozenset(range(self.manager.num_blocks)).difference(free)
        return [block for block in free if block not in self.lost]


def verdict_of(level: str, make: Callable[[], Any]) -> str:
    """The verdict ADAPTER that comes of some traces, or what they break first."""
    spec = spec_of(level)  # type: ignore[arg-type]
    for seed in range(3 * LEFT_OPEN):
        _, verdict = drive(spec, make, seed)
        if verdict.adapter is not None:
            return str(verdict.adapter)
        if verdict.breaches:
            return str(verdict.breaches[0].message)
    return "clean"


def test_requests_that_outlive_an_engine_show_though_engines_are_drained() -> None:
    found = verdict_of("engine", SharedRequests)
    assert "right after open() live() names" in found
    assert opening.RESET in found
    assert opening.NOT_THE_ADAPTER in found


def test_a_queue_that_outlives_an_engine_shows_though_engines_are_drained() -> None:
    assert "step raised KeyError" in verdict_of("engine", SharedQueue)


def test_one_trace_in_eight_ends_in_the_middle_of_things_and_the_others_closed() -> None:
    spec = spec_of("engine")
    last = [drive(spec, OurEngine, seed)[1].applied[-1] for seed in range(2 * LEFT_OPEN)]
    assert [operation == spec.closing for operation in last] == 2 * ([True] * (LEFT_OPEN - 1) + [False])


def test_no_declaration_is_named_where_an_earlier_system_was_fresh() -> None:
    found = verdict_of("blocks", SharedFree)
    assert "neither free, nor held by a sequence, nor cached. It was fresh for an earlier case" in found
    assert "reserved_blocks" not in found
    assert opening.NOT_THE_ADAPTER in found


def test_where_no_system_was_ever_fresh_the_declaration_is_named() -> None:
    class Reserves(OurBlocks):
        capabilities = Capabilities(num_blocks=(2, 64))

        def free_blocks(self) -> Sequence[int]:  # type: ignore[override]
            return [block for block in super().free_blocks() if block]

    assert "by design, declare reserved_blocks=(0,)" in verdict_of("blocks", Reserves)
