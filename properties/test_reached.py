"""A clean verdict that reached nothing is not a verdict: states that must have been seen, and useful work."""

import pytest

from properties.blocks.reach import FEW_BLOCKS
from properties.chapter import results_of
from properties.plugin import Session
from properties.remedies import of_mark
from properties.targets import Target

LEAST_DONE = 0.5
"""Share of operations that must succeed; the rest are refusals, which are judged too."""
LEAST_IN_TINY = 0.3
"""The same for a target that takes only pools of one or two blocks."""


def test_states_were_reached(contract: Session, target_name: str) -> None:
    results = results_of(contract, target_name)
    never = sorted(mark for mark in results.marks if not results.tally.marks[mark])

    told = "; ".join(f"{mark} ({of_mark(mark)})" if of_mark(mark) else mark for mark in never)
    if never:
        pytest.fail(f"{target_name}: no trace ever reached: {told}", pytrace=False)


def test_most_operations_were_useful(contract: Session, target_name: str) -> None:
    results = results_of(contract, target_name)
    tally = results.tally
    share = tally.outcomes["done"] / max(1, tally.steps)
    least = LEAST_IN_TINY if _is_tiny(results.target) else LEAST_DONE

    if share < least:
        words = f"{target_name}: only {share:.0%} of {tally.steps} operations were done"
        pytest.fail(words, pytrace=False)


def _is_tiny(target: Target) -> bool:
    """Whether even its largest pool is filled by the first sequence or two."""
    caps = target.make().capabilities
    return hasattr(caps, "num_blocks") and caps.num_blocks[1] - len(caps.reserved_blocks) < FEW_BLOCKS
