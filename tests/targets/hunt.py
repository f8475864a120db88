"""Finding faults in a target from seeds, as a campaign does: the tests' own small version of `pagefault run`."""

from collections import Counter

import pytest

from properties.drive import drive
from properties.minimise import breaks, judge, minimise, trimmed
from properties.specs import spec_of
from properties.targets import Unavailable, load

SPEC = spec_of("blocks")


class Hunt:
    """What the traces of some seeds gave: `found[clause]` is the first failing trace, with every clause judged to its end."""

    def __init__(self, make, num_seeds, until=(), first=0):
        self.make = make
        self.found = {}
        self.judged = Counter()
        self.marks = Counter()
        self.outcomes = Counter()
        for seed in range(first, first + num_seeds):
            geometry, verdict = drive(SPEC, make, seed)
            assert verdict.adapter is None, verdict.adapter
            for breach in verdict.breaches:
                self.found.setdefault(breach.property, (geometry, tuple(verdict.applied)))
            self.judged.update(verdict.state.judged)
            self.marks.update(verdict.state.marks)
            self.outcomes.update(verdict.outcomes)
            if until and self.found.keys() >= set(until):
                break

    def minimised(self, clause):
        """The shortest failing trace that the minimiser finds, and its explanation."""
        capabilities = self.make().capabilities
        geometry, operations = minimise(
            SPEC,
            trimmed(SPEC, self.make, self.found[clause], clause),
            breaks(SPEC, self.make, clause),
            accepts=lambda geometry: SPEC.accepts(capabilities, geometry),
        )
        return geometry, operations, judge(SPEC, self.make, geometry, operations).message(clause)

    def unreached(self):
        """Clauses that apply but were judged fewer than 1,000 times, and states that were never seen."""
        target = self.make()
        offers = SPEC.offered(target)
        clauses = SPEC.applicable(target.capabilities, offers)
        rare = {clause: self.judged[clause] for clause in clauses if self.judged[clause] < 1000}
        never = [mark for mark in SPEC.marks(target.capabilities, offers) if not self.marks[mark]]
        return rare, never


def breaches(make, geometry, operations):
    """The clauses that a trace breaks, each with its explanation, when nothing ends it."""
    verdict = judge(SPEC, make, geometry, operations)
    assert verdict.adapter is None, verdict.adapter
    assert not verdict.illegal, "the trace must be legal as it stands"
    return {breach.property: breach.message for breach in verdict.breaches}


def adapter(name):
    """What makes the adapter of a built-in target. Skips the test, or the module, where that is not installed."""
    make = load(name).make
    try:
        make()
    except Unavailable as reason:
        pytest.skip(str(reason), allow_module_level=True)
    return make
