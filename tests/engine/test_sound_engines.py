"""Engines that are right, of designs other than our own: a finding on one of them is a false alarm."""

from __future__ import annotations

import msgspec
import pytest

from properties.blocks.access import RECOMPUTED
from properties.engine.progress import KEEPS_A_SLOT
from properties.engine.spec import SPEC
from properties.judging import Results, judge_target
from properties.ledger import Ledger
from properties.machine import PROFILES
from properties.targets import Target
from tests.targets.sound_engine import Recomputes, Static, StaticExact


def judged(cls: type) -> Results:
    return judge_target(Target("mine", "engine", cls), PROFILES["pagefault-dev"], 150, Ledger(), [], SPEC)


@pytest.mark.parametrize("cls", [Static, StaticExact])
def test_an_engine_that_reserves_all_that_a_request_will_need_is_clean(cls: type) -> None:
    results = judged(cls)

    assert (results.adapter, results.findings) == (None, {})
    assert "PREEMPT-1" not in results.applicable
    assert [mark for mark in results.marks if not results.tally.marks[mark]] == []


class Undeclared(Static):
    capabilities = msgspec.structs.replace(Static.capabilities, preempts=True)


def test_without_the_declaration_a_preemption_is_asked_for() -> None:
    results = judged(Undeclared)

    assert "PREEMPT-1" in results.applicable
    assert not results.judged["PREEMPT-1"]


def test_a_hit_of_a_whole_prompt_may_be_computed_again_in_place() -> None:
    """Where that is declared: it was SLOT-2 of an engine, though not of a block manager."""
    results = judged(Recomputes)

    assert (results.adapter, results.findings) == (None, {})
    assert results.tally.marks["a shared slot was written once more"] > 0
    assert [mark for mark in results.marks if not results.tally.marks[mark]] == []


class RecomputesUndeclared(Recomputes):
    capabilities = msgspec.structs.replace(Recomputes.capabilities, recomputes_hits=False)


def test_without_the_declaration_it_is_told_with_it() -> None:
    case = judged(RecomputesUndeclared).findings["SLOT-2"].case

    assert case.message.endswith(f"It holds the same KV. {RECOMPUTED}")


class KeepsNoSlot(Static):
    capabilities = msgspec.structs.replace(Static.capabilities, look_ahead=0, oversized=None)

    def submit(self, name: str, tokens: list[int], max_new_tokens: int) -> None:
        need, blocks = -(-(len(tokens) + max_new_tokens) // self.B), self.c.num_blocks
        self.c = msgspec.structs.replace(self.c, num_blocks=max(need, blocks))
        super().submit(name, tokens, max_new_tokens)
        self.c = msgspec.structs.replace(self.c, num_blocks=blocks)


def test_who_keeps_a_slot_for_the_last_token_and_waits_for_ever_is_told_what_to_declare() -> None:
    assert KEEPS_A_SLOT in judged(KeepsNoSlot).findings["LIVE-1"].case.message
