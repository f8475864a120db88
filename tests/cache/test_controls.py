"""Negative controls of the cache level: each clause on tensors catches the bug that it exists for."""

import pytest

from properties.blocks import coverage as blocks
from properties.cache.coverage import applicable
from properties.cache.protocol import offered
from properties.drive import drive
from properties.levels import spec_of
from properties.minimise import breaks, judge, minimise, trimmed
from properties.targets.cache_ours import OurCache
from properties.trial import EVERYTHING
from tests.cache.broken import Broken, all_broken, target_of

SPEC = spec_of("cache")
MOST_SEEDS = 120


@pytest.mark.parametrize("broken", all_broken(), ids=lambda cls: cls.__name__)
def test_the_bug_is_caught_by_its_clause(broken: type[Broken]) -> None:
    target, seen = target_of(broken), set()
    for seed in range(MOST_SEEDS):
        _, verdict = drive(SPEC, target, seed, tolerate=EVERYTHING)
        assert verdict.adapter is None, verdict.adapter
        seen |= {breach.property for breach in verdict.breaches}
        if verdict.broke(broken.breaks) and broken.clue in verdict.message(broken.breaks):
            return
    pytest.fail(f"not caught as {broken.breaks} ({broken.clue!r}) in {MOST_SEEDS} traces; found: {sorted(seen)}")


def test_the_controls_cover_every_clause_that_the_cache_level_adds() -> None:
    offers = offered(OurCache())
    added = applicable(OurCache.capabilities, offers) - blocks.applicable(OurCache.capabilities, offers)

    assert added <= {broken.breaks for broken in all_broken()}


def test_the_correct_cache_passes_where_the_variants_are_caught() -> None:
    """The control of the controls."""
    found = [breach for seed in range(20) for breach in drive(SPEC, OurCache, seed)[1].breaches]

    assert found == []


@pytest.mark.parametrize("name", ["CopiesKeysOnly", "ValuesOfTheTailAreNotMasked", "PaddingIsTheLastSlot"])
def test_a_finding_is_minimised(name: str) -> None:
    broken = next(cls for cls in all_broken() if cls.__name__ == name)
    target = target_of(broken)
    geometry, verdict = next(
        found for found in (drive(SPEC, target, seed) for seed in range(MOST_SEEDS)) if found[1].broke(broken.breaks)
    )
    trace = trimmed(SPEC, target, (geometry, tuple(verdict.applied)), broken.breaks)

    accepts = OurCache.capabilities
    geometry, operations = minimise(
        SPEC, trace, breaks(SPEC, target, broken.breaks), accepts=lambda g: SPEC.accepts(accepts, g), time_limit_s=5
    )

    assert len(operations) <= 5
    assert broken.clue in judge(SPEC, target, geometry, operations).message(broken.breaks)
