"""Engines that are right, of designs other than our own: a finding on one of them is a false alarm."""

from __future__ import annotations

import msgspec
import pytest

from properties.engine.spec import SPEC
from properties.judging import Results, judge_target
from properties.ledger import Ledger
from properties.machine import PROFILES
from properties.targets import Target
from tests.targets.sound_engine import Static, StaticExact


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
