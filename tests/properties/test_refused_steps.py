"""A step that was refused is shown as refused, and what it changed all the same is told first."""

from __future__ import annotations

from collections.abc import Sequence

from fuzz import case_in_fork
from fuzz.as_test import as_test
from fuzz.story import tell
from paged_impl.errors import OutOfBlocks
from properties.blocks.operations import Admit, Append, Geometry
from properties.blocks.spec import SPEC
from properties.case import Case, decode, encode
from properties.contract import Breach
from properties.protocol import slots_from_table
from properties.report import explain
from properties.targets import Target
from properties.targets.ours import OurBlocks
from properties.trial import EVERYTHING, run_trace

TRACE = (Admit("A", (0, 1, 2)), Append("A", (0, 0, 0)))


class MovesBeforeItRefuses(OurBlocks):
    """The table of A is turned round before the pool is found to be full."""

    turned = False

    def append(self, name: str, tokens: Sequence[int]) -> None:
        self.turned = True
        raise OutOfBlocks(2, 0, 0)

    def extend(self, name: str, tokens: Sequence[int]) -> None:
        self.append(name, tokens)

    def table(self, name: str) -> Sequence[int]:
        table = super().table(name)
        return table[::-1] if self.turned else table

    def slots(self, name: str) -> Sequence[int]:
        return slots_from_table(self.table(name), self.block_size)


def case() -> Case:
    geometry = Geometry(num_blocks=2, block_size=2)
    verdict = run_trace(SPEC, MovesBeforeItRefuses, geometry, TRACE, tolerate=EVERYTHING)
    return Case(
        level="blocks",
        target="mine",
        property="CONTENT-1",
        message=verdict.message("CONTENT-1"),
        geometry=geometry,
        operations=TRACE,
        breaches=tuple(Breach(*breach) for breach in verdict.breaches),
        outcomes=verdict.state.outcomes,
    )


def test_the_refused_call_that_changed_something_is_told_first() -> None:
    found = case()

    assert next(breach.property for breach in found.breaches) == "ALLOC-3"
    assert "CONTENT-1" in {breach.property for breach in found.breaches}
    assert "first, at step 2, ALLOC-3 (a failing call changes nothing)" in tell(found)


def test_refused_steps_are_shown_as_refused_wherever_steps_are_shown() -> None:
    found = decode(encode(case()))
    words = "    2  append tokens 0 0 0 to A (refused: OutOfBlocks)"

    assert f"{words}   <- breaks ALLOC-3, " in tell(found)
    assert f"{words}   <- breaks CONTENT-1" in explain(found, 2)
    assert words in as_test(found, "mine")
    assert "    1  admit A with tokens 0 1 2\n" in explain(found, 2)


def test_a_replay_says_which_steps_were_refused() -> None:
    judged = case_in_fork.replay(Target("mine", "blocks", MovesBeforeItRefuses), case(), 5.0)

    assert judged.outcomes == {2: "refused: OutOfBlocks"}
