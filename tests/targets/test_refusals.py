"""A refusal where nothing was asked for, and failures around a trace: a verdict each, never a traceback of pagefault."""

import pytest

from properties.blocks.operations import Admit, Allocate, Computed, Free, Geometry, Operation, Preempt
from properties.contract import AdapterError
from properties.drive import drive
from properties.minimise import judge
from properties.protocol import slots_from_table
from tests.targets.hunt import SPEC
from tests.targets.zoo import NoRoom, Sound, Splits

GEOMETRY = Geometry(block_size=1, num_blocks=3)


def refuse(*arguments):
    raise NoRoom("nothing left")


class Engine:
    """Stands for an implementation: its failures are not the adapter's."""

    def fail(self):
        raise RuntimeError("device lost")


ENGINE = Engine()


def crash(*arguments):
    ENGINE.fail()


@pytest.mark.parametrize(
    ("base", "method", "trace"),
    [
        (Sound, "free", [Admit("A", (0,)), Free("A")]),
        (Sound, "preempt", [Admit("A", (0,)), Preempt("A")]),
        (Sound, "slots", [Admit("A", (0,))]),
        (Sound, "table", [Admit("A", (0,))]),
        (Splits, "computed", [Allocate("A", (0,)), Computed("A", 1)]),
    ],
)
def test_a_refusal_where_no_room_was_asked_for(base, method, trace: list[Operation]):
    verdict = judge(SPEC, type("Refuses", (base,), {method: refuse}), GEOMETRY, trace)

    assert verdict.adapter is None
    assert "in a call that asks for no room" in verdict.message("CRASH-1")


@pytest.mark.parametrize("method", ["free_blocks", "cached_blocks", "ref_count"])
@pytest.mark.parametrize("fails", [refuse, crash])
def test_a_fresh_system_that_does_not_answer(method, fails):
    with pytest.raises(AdapterError, match=r"right after open\("):
        SPEC.referee(type("Mute", (Sound,), {method: fails})(), GEOMETRY)


@pytest.mark.parametrize("fails", [refuse, crash])
def test_a_close_that_fails(fails):
    target = type("Sticks", (Sound,), {"close": fails})

    verdict = drive(SPEC, target, seed=0, num_steps=5)[1]

    assert "close() failed" in str(verdict.adapter)


@pytest.mark.parametrize(
    ("method", "answer"),
    [
        ("ref_count", None),
        ("ref_count", 0.0),
        ("free_blocks", 3),
        ("slots", [None]),
        ("admit", None),
    ],
)
def test_an_answer_of_the_wrong_type_is_the_adapters_fault(method, answer):
    wrong = type("Wrong", (Sound,), {method: lambda *arguments: answer})

    verdict = judge(SPEC, wrong, GEOMETRY, [Admit("A", (0,))])

    assert f"{method} returned" in str(verdict.adapter)


@pytest.mark.parametrize("answer", [None, "01", 7, [0.5]])
def test_a_table_of_the_wrong_type_is_the_adapters_fault(answer):
    wrong = type("Wrong", (Sound,), {"table": lambda *arguments: answer})
    apart = type("Apart", (wrong,), {"slots": lambda self, name: slots_from_table(self.tables[name], self.block_size)})

    for target in (wrong, apart):  # `slots` follows from the table, or is sound
        verdict = judge(SPEC, target, GEOMETRY, [Admit("A", (0,))])

        assert verdict.adapter is not None
