"""Negative controls: each seeded fault is found by its clause, and our engine breaks none."""

from __future__ import annotations

import pytest

from fuzz.faults import Fault, all_faults
from fuzz.faults.engine_manager import SwapsBothWays
from properties.drive import drive
from properties.engine.coverage import applicable, marks
from properties.engine.protocol import offered
from properties.engine.spec import SPEC
from properties.targets.engine_ours import OurEngine
from properties.trial import EVERYTHING

MOST_SEEDS = 600
"""Traces within which a fault must show; most show in fewer than ten."""


FAULTS = [fault for fault in all_faults().values() if fault.level == "engine"]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.catches}-{fault.id}")
def test_fault_is_found(fault: Fault) -> None:
    clause = fault.catches
    seen: set[str] = set()
    for seed in range(MOST_SEEDS):
        _, verdict = drive(SPEC, fault.make, seed, tolerate=EVERYTHING)
        assert verdict.adapter is None, verdict.adapter
        if verdict.broke(clause):
            assert verdict.message(clause)
            return
        seen |= {breach.property for breach in verdict.breaches}

    pytest.fail(f"{fault.id}: {clause} not broken in {MOST_SEEDS} traces; broken were {sorted(seen) or 'none'}")


def test_swaps_in_both_directions_are_fine_in_their_own_order() -> None:
    for seed in range(300):
        _, verdict = drive(SPEC, SwapsBothWays, seed)
        assert not verdict.breaches, verdict.breaches


def test_every_clause_of_the_level_has_a_fault() -> None:
    sample = OurEngine()
    clauses = applicable(sample.capabilities, offered(sample))

    assert clauses <= {fault.catches for fault in FAULTS}


def test_our_engine_breaks_nothing_and_reaches_everything() -> None:
    sample = OurEngine()
    judged: set[str] = set()
    reached: set[str] = set()
    for seed in range(300):
        _, verdict = drive(SPEC, OurEngine, seed)
        assert verdict.adapter is None
        assert not verdict.breaches, verdict.breaches
        assert verdict.applied[-1] != SPEC.closing or not verdict.state.requests, "not idle at the end"
        judged |= {id for id, count in verdict.state.judged.items() if count}
        reached |= set(verdict.state.marks)

    assert applicable(sample.capabilities, offered(sample)) <= judged
    assert marks(sample.capabilities, offered(sample)) <= reached
