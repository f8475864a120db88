"""The clause under which a fault is reported is the one that its reader can act on."""

import pytest

from properties.blocks.guess import guesses
from properties.blocks.operations import Admit, Free, Geometry, Operation, Preempt, Resume
from tests.targets.hunt import SPEC, adapter, breaches


@pytest.fixture(name="mini_vllm")
def _mini_vllm():
    return adapter("mini-vllm")


def test_a_block_that_is_hit_twice_was_not_handed_out_again(mini_vllm):
    found = breaches(mini_vllm, Geometry(block_size=1, num_blocks=1), [Admit("A", (0,)), Admit("B", (0, 0))])

    assert {"HASH-1", "ALLOC-2"} <= set(found)
    assert "EVICT-1" not in found


def test_what_a_released_block_holds_by_chance_is_no_hit_behind_a_miss(mini_vllm):
    trace = [
        Admit("A", (1, 1, 0, 1, 0)),
        Preempt("A"),
        Admit("B", (0, 0, 0, 0, 1, 1, 0, 1)),
        Resume("A"),
    ]

    found = breaches(mini_vllm, Geometry(block_size=4, num_blocks=3), trace)

    assert "HASH-1" in found
    assert "HASH-5" not in found


def test_short_traces_meet_what_no_cut_comes_to():
    """Two sequences that end before two begin: a shorter trace for the same stale map is of another make."""
    long: list[Operation] = [
        Admit("A", (0,)),
        Admit("B", (0,)),
        Free("B"),
        Free("A"),
        Admit("C", (0, 0)),
        Admit("D", (0,)),
    ]
    geometry = Geometry(block_size=1, num_blocks=3)
    met = list(guesses(geometry, long))

    def shape(trace):
        return [(op.kind, op.name, len(getattr(op, "tokens", ()))) for op in trace]

    assert [("admit", "A", 2), ("free", "A", 0), ("admit", "B", 1)] in [shape(trace) for trace in met]
    assert all(len(trace) < len(long) for trace in met)
    assert met == list(guesses(geometry, long))


def test_short_traces_are_mostly_legal_and_of_the_kinds_at_hand():
    long = [Admit("A", (0, 1)), Preempt("A"), Admit("B", (0,)), Resume("A")]
    geometry = Geometry(block_size=2, num_blocks=4)
    make = adapter("ours")
    outcomes = []
    for trace in list(guesses(geometry, long))[:200]:
        referee = SPEC.referee(make(), geometry)
        outcomes += [referee.apply(operation) for operation in trace]

    assert {type(op).__name__ for trace in guesses(geometry, long) for op in trace} == {
        "Admit",
        "Append",
        "Free",
        "Preempt",
        "Resume",
    }
    assert outcomes.count("done") > len(outcomes) / 2
    assert outcomes.count("illegal") < len(outcomes) / 5
