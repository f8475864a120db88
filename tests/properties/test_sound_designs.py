"""Block managers of many designs, all of them right: a finding on one of them is a false alarm."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from properties.judging import Results, judge_target
from properties.ledger import Ledger
from properties.machine import PROFILES
from properties.targets import Target
from tests.targets import sound_prefix, sound_radix, sound_spare

SILENT = {"HashedFreeOnly", "HashedDedupe"}
"""They do not tell what must be told, and are advised to: see below."""
DESIGNS = [
    cls
    for module in (sound_spare, sound_prefix, sound_radix)
    for name, cls in inspect.getmembers(module, inspect.isclass)
    if cls.__module__ == module.__name__ and hasattr(cls, "admit") and name not in SILENT
]


def judged(cls: type, num_seeds: int) -> Results:
    return judge_target(Target("mine", "blocks", cls), PROFILES["pagefault-dev"], num_seeds, Ledger(), [])


@pytest.mark.parametrize("cls", DESIGNS, ids=lambda cls: cls.__name__)
def test_a_right_manager_is_clean(cls: type) -> None:
    results = judged(cls, 250)

    assert results.adapter is None
    assert {id: finding.case.message for id, finding in results.findings.items()} == {}
    assert results.judged["ALLOC-6"] > 0


def test_there_are_many() -> None:
    assert len(DESIGNS) >= 25


@pytest.mark.parametrize(
    ("cls", "id", "advice"),
    [
        (sound_prefix.HashedFreeOnly, "ALLOC-1", "offer cached_blocks(), or name what can be evicted in free_blocks() too"),
        (sound_prefix.HashedDedupe, "SLOT-2", "by design, offer allocate, extend and computed, so that both are seen"),
    ],
)  # fmt: skip
def test_who_does_not_tell_enough_is_advised(cls: type, id: str, advice: str) -> None:
    assert judged(cls, 40).findings[id].case.message.endswith(advice)


class CountsTheCache(sound_prefix.HashedNoCachedBlocks):
    def ref_count(self, b: int) -> int:
        return self.refs[b] + (b in self.hash_of)


def test_a_silent_caches_own_reference_is_said_to_be_left_out() -> None:
    message = judged(CountsTheCache, 40).findings["REF-1"].case.message

    assert message.endswith("leave it out of what ref_count() returns")


class ForgetsCopies(sound_prefix.HashedKeep):
    copies: Any = None


def test_copies_that_are_not_told_are_asked_for() -> None:
    findings = judged(ForgetsCopies, 250).findings

    assert any("If a copy put it there, offer copies()" in finding.case.message for finding in findings.values())


class SaysAllWereHit(sound_prefix.Hashed):
    def admit(self, name: str, tokens: Any, salt: Any = None) -> int:
        super().admit(name, tokens, salt)
        return len(tokens)


def test_hits_that_are_not_there_are_not_said_to_be_computed_again() -> None:
    message = judged(SaysAllWereHit, 40).findings["HASH-4"].case.message

    assert "must return how many leading tokens hit" in message
    assert "recomputes_hits" not in message
