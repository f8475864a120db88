"""Negative controls of the cache level: each clause on tensors catches the bug that it exists for."""

import pytest

from fuzz.faults import Fault, all_faults
from properties.blocks import coverage as blocks
from properties.cache.coverage import applicable
from properties.cache.protocol import offered
from properties.drive import drive
from properties.minimise import breaks, judge, minimise, trimmed
from properties.specs import spec_of
from properties.targets.cache_ours import OurCache
from properties.trial import EVERYTHING

SPEC = spec_of("cache")
FAULTS = [fault for fault in all_faults().values() if fault.level == "cache"]
MOST_SEEDS = 120


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.id)
def test_the_bug_is_caught_by_its_clause(fault: Fault) -> None:
    seen = set()
    clue = fault.make.clue  # type: ignore[attr-defined]
    for seed in range(MOST_SEEDS):
        _, verdict = drive(SPEC, fault.make, seed, tolerate=EVERYTHING)
        assert verdict.adapter is None, verdict.adapter
        seen |= {breach.property for breach in verdict.breaches}
        if verdict.broke(fault.catches) and clue in verdict.message(fault.catches):
            return
    pytest.fail(f"not caught as {fault.catches} ({clue!r}) in {MOST_SEEDS} traces; found: {sorted(seen)}")


def test_the_controls_cover_every_clause_that_the_cache_level_adds() -> None:
    offers = offered(OurCache())
    added = applicable(OurCache.capabilities, offers) - blocks.applicable(OurCache.capabilities, offers)

    assert added <= {fault.catches for fault in FAULTS}


def test_the_correct_cache_passes_where_the_variants_are_caught() -> None:
    """The control of the controls."""
    found = [breach for seed in range(20) for breach in drive(SPEC, OurCache, seed)[1].breaches]

    assert found == []


@pytest.mark.parametrize(
    "id", ["cache-copies-keys-only", "cache-values-of-the-tail-are-not-masked", "cache-padding-is-the-last-slot"]
)
def test_a_finding_is_minimised(id: str) -> None:
    fault = next(fault for fault in FAULTS if fault.id == id)
    traces = (drive(SPEC, fault.make, seed) for seed in range(MOST_SEEDS))
    geometry, verdict = next(found for found in traces if found[1].broke(fault.catches))
    trace = trimmed(SPEC, fault.make, (geometry, tuple(verdict.applied)), fault.catches)

    geometry, operations = minimise(
        SPEC,
        trace,
        breaks(SPEC, fault.make, fault.catches),
        accepts=lambda g: SPEC.accepts(OurCache.capabilities, g),
        time_limit_s=5,
    )

    assert len(operations) <= 5
    assert judge(SPEC, fault.make, geometry, operations).broke(fault.catches)
