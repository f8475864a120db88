"""slots() that returns the block table, the most common mistake of all, is told apart from a manager that lost slots."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from properties.blocks.operations import Admit, Geometry
from properties.blocks.pool import look_like_blocks
from properties.blocks.spec import SPEC
from properties.blocks.state import State
from properties.drive import drive
from properties.protocol import Capabilities
from properties.targets.ours import OurBlocks
from properties.trial import run_trace


class TableAsSlots(OurBlocks):
    table = None  # type: ignore[assignment]

    def slots(self, name: str) -> Sequence[int]:
        return self.manager.table(name)


class ForgetsTheLast(OurBlocks):
    """Not the table: the last token has no slot."""

    def slots(self, name: str) -> Sequence[int]:
        return super().slots(name)[: self.manager.num_tokens(name) - 1]


class ForgetsABlock(OurBlocks):
    """Not the table: whole blocks of slots, and one block too few."""

    def slots(self, name: str) -> Sequence[int]:
        return super().slots(name)[: -self.block_size]


def test_a_table_is_the_adapters_fault() -> None:
    verdict = run_trace(SPEC, TableAsSlots, Geometry(block_size=3, num_blocks=8), [Admit("A", (0, 1, 2, 0, 1))])

    assert verdict.breaches == []
    assert "has 5 tokens but only 2 slots. These look like block ids, one for each 3 tokens: [0, 1]" in str(
        verdict.adapter
    )
    assert "Remedy: if slots() returns the block table, return slots_from_table" in str(verdict.adapter)


def test_generated_traces_soon_say_so() -> None:
    verdicts = [drive(SPEC, TableAsSlots, seed)[1] for seed in range(40)]

    assert any(verdict.adapter is not None and not verdict.breaches for verdict in verdicts)


@pytest.mark.parametrize("make", [ForgetsTheLast, ForgetsABlock])
def test_slots_that_a_manager_lost_are_a_finding(make: type[OurBlocks]) -> None:
    verdicts = [drive(SPEC, make, seed)[1] for seed in range(40)]
    messages = [verdict.message("ALLOC-2") for verdict in verdicts if verdict.broke("ALLOC-2")]

    assert [verdict.adapter for verdict in verdicts if verdict.adapter] == []
    assert messages
    assert sum("block ids" in message for message in messages) < len(messages) / 4


@pytest.mark.parametrize(
    ("slots", "num_tokens", "are_blocks"),
    [([0, 1, 2], 6, True), ([5], 2, True), ([3, 7], 3, True), ([4, 5], 4, False), ([4], 1, True), ([0, 1], 6, False)],
)
def test_what_looks_like_block_ids(slots: list[int], num_tokens: int, are_blocks: bool) -> None:
    state = State(Geometry(block_size=2, num_blocks=8), Capabilities(), frozenset())

    assert bool(look_like_blocks(slots, num_tokens, state)) == are_blocks
