"""What an engine's declared limits put out of reach is not demanded of a run; everything else is, and is reached."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import pytest

from properties.drive import drive
from properties.engine.coverage import applicable, marks
from properties.engine.spec import SPEC
from properties.targets.engine_ours import OurEngine

LIMITS: list[dict[str, Any]] = [
    {"max_tokens": 2},
    {"max_sequences": 1},
    {"num_blocks": (1, 1)},
    {"max_tokens": 8, "block_sizes": (16,)},
    {"num_blocks": (64, 64), "max_tokens": 8},
]


@pytest.mark.parametrize("limits", LIMITS, ids=str)
def test_a_narrow_engine_reaches_all_that_is_demanded_of_it(limits: dict[str, Any]) -> None:
    capabilities = msgspec.structs.replace(OurEngine.capabilities, **limits)
    make = type("Narrow", (OurEngine,), {"capabilities": capabilities})
    judged: Counter[str] = Counter()
    seen: Counter[str] = Counter()
    for seed in range(90):
        _, verdict = drive(SPEC, make, seed)
        assert (verdict.adapter, verdict.breaches) == (None, [])
        judged.update(verdict.state.judged)
        seen.update(verdict.state.marks)
    offers = SPEC.offered(make())

    assert [clause for clause in applicable(capabilities, offers) if not judged[clause]] == []
    assert [mark for mark in marks(capabilities, offers) if not seen[mark]] == []


def test_only_what_is_out_of_reach_is_left_out() -> None:
    offers = SPEC.offered(OurEngine())

    def demanded(**limits: Any) -> frozenset[str]:
        capabilities = msgspec.structs.replace(OurEngine.capabilities, **limits)
        return applicable(capabilities, offers) | marks(capabilities, offers)

    everything = demanded()
    assert everything == demanded(max_sequences=2) == demanded(max_tokens=6) == demanded(num_blocks=(2, 2))
    assert {"PREEMPT-1", "a preempted request came back"} <= everything - demanded(max_sequences=1)
    assert {"HASH-1", "a prefix hit"} <= everything - demanded(max_tokens=16, block_sizes=(16,))
    assert "HASH-1" in demanded(max_tokens=18, block_sizes=(16,))
    assert "a chunked prefill" in everything - demanded(max_tokens=2)
