"""A clean verdict that reached nothing is not a verdict: states that must have been seen, and useful work."""

from properties.chapter import results_of
from properties.plugin import Session

LEAST_DONE = 0.5
"""Share of operations that must succeed; the rest are refusals, which are judged too."""


def test_states_were_reached(contract: Session, target_name: str) -> None:
    results = results_of(contract, target_name)
    never = sorted(mark for mark in results.marks if not results.tally.marks[mark])

    assert not never, f"{target_name}: no trace ever reached: {', '.join(never)}"


def test_most_operations_were_useful(contract: Session, target_name: str) -> None:
    tally = results_of(contract, target_name).tally
    share = tally.outcomes["done"] / max(1, tally.steps)

    assert share >= LEAST_DONE, f"{target_name}: only {share:.0%} of {tally.steps} operations were done"
