"""Negative controls: for every clause of the blocks level a planted fault that it catches."""

import pytest

from fuzz.faults import Fault, all_faults
from properties.contract import CLAUSES
from properties.drive import drive
from properties.judging import NUM_SEEDS
from properties.levels import clauses_of
from properties.machine import PROFILES, search
from properties.minimise import breaks, judge, minimise
from properties.specs import spec_of

FAULTS = [fault for fault in all_faults().values() if fault.level == "blocks"]
SPEC = spec_of("blocks")


def test_every_clause_has_a_control() -> None:
    assert sorted(clauses_of("blocks")) == sorted({fault.catches for fault in FAULTS})


def test_the_plain_manager_passes_where_faults_are_caught() -> None:
    """The control of the controls: the same traces break nothing on the manager without a fault."""
    from properties.targets.ours import OurBlocks

    broken = [breach for seed in range(200) for breach in drive(SPEC, OurBlocks, seed)[1].breaches]

    assert broken == []


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.catches}-{fault.id}")
def test_the_clause_catches_its_fault(fault: Fault) -> None:
    """Within the seeded traces of the profile `pagefault-ci`; the minimised trace still breaks that clause."""
    limit_s = 0.5 if fault.catches == "CRASH-2" else 10.0
    for seed in range(NUM_SEEDS["pagefault-ci"]):
        geometry, verdict = drive(SPEC, fault.make, seed, limit_s=limit_s)
        assert verdict.adapter is None, verdict.adapter
        if verdict.broke(fault.catches):
            break
    else:
        pytest.fail(f"{fault.id} was never caught by {fault.catches}")
    if fault.catches == "CRASH-2":
        return  # every replay of a hang lasts as long as its limit

    fails = breaks(SPEC, fault.make, fault.catches)
    accepts = fault.make().capabilities
    geometry, operations = minimise(
        SPEC, (geometry, tuple(verdict.applied)), fails, accepts=lambda g: SPEC.accepts(accepts, g)
    )

    assert len(operations) <= 12
    assert judge(SPEC, fault.make, geometry, operations).message(fault.catches)


@pytest.mark.parametrize("catches", ["ALLOC-1", "HASH-1", "COW-1", "REF-3", "SWAP-1"])
def test_hypothesis_alone_catches(catches: str) -> None:
    """The machine by itself, without the seeded traces."""
    fault = next(fault for fault in FAULTS if fault.catches == catches)
    tally = search(SPEC, fault.make, PROFILES["pagefault-ci"], only=catches)

    assert catches in tally.failing


def test_promises_are_marked_in_the_id() -> None:
    assert all(clause.rank == ("promise" if id.endswith("P") else "safety") for id, clause in CLAUSES.items())
