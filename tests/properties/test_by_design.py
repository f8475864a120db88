"""What may be meant is said with the declaration, or the method, that says so; hits in blocks are told from hits in tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from fuzz import check, messages
from fuzz.check_where import Whereabouts
from properties.blocks import access, declarations
from properties.blocks.operations import Admit, Append, Geometry
from properties.blocks.spec import SPEC
from properties.drive import drive
from properties.protocol import slots_from_table
from properties.targets import Target
from properties.targets.ours import OurBlocks
from properties.trial import EVERYTHING, run_trace

GEOMETRY = Geometry(block_size=2, num_blocks=8)
TWICE = [Admit("A", (0, 1, 2, 3, 4)), Admit("B", (0, 1, 2, 3, 4))]


class HitsInBlocks(OurBlocks):
    """The most natural slip: admit returns how many blocks were hit. In halves it would be allocate."""

    def admit(self, name: str, tokens: Sequence[int], salt: str | None = None) -> int:
        return super().admit(name, tokens, salt) // self.block_size

    def allocate(self, name: str, tokens: Sequence[int], salt: str | None = None) -> int:
        return super().allocate(name, tokens, salt) // self.block_size


class SaysNo(OurBlocks):
    """Not while fewer than two blocks are left."""

    def can_append(self, name: str, num_tokens: int) -> bool:
        return super().can_append(name, num_tokens) and len(self.manager.free_blocks()) > 7


class Counts(OurBlocks):
    """The cache's own reference is counted."""

    def ref_count(self, block: int) -> int:
        return super().ref_count(block) + (block in self.cached_blocks())


class Larger(OurBlocks):
    def block_bytes(self, *sizes: int) -> int:
        return super().block_bytes(*sizes) + 64


def message(make: type[OurBlocks], property: str, trace: Sequence[Any]) -> str:
    return run_trace(SPEC, make, GEOMETRY, trace, tolerate=EVERYTHING).message(property)


def test_hits_in_blocks_are_said_to_be_that() -> None:
    found = message(HitsInBlocks, "SLOT-2", TWICE)

    assert "counts the blocks that were hit: it must count their tokens" in found
    assert "counts the blocks" in message(HitsInBlocks, "HASH-3P", TWICE)


def test_other_writes_into_shared_blocks_are_not() -> None:
    class OneTooMany(OurBlocks):
        """Takes a third block, which holds something else."""

        def table(self, name: str) -> Sequence[int]:
            table = list(super().table(name))
            return [*table[:-1], list(super().table("A"))[2]] if name == "B" and len(table) == 3 else table

        def slots(self, name: str) -> Sequence[int]:
            return slots_from_table(self.table(name), self.block_size)

    assert "counts the blocks" not in message(OneTooMany, "SLOT-2", TWICE)


def test_many_hits_make_it_certain() -> None:
    frames: list[bytes] = []
    check._use(Target("mine", "blocks", HitsInBlocks), SPEC, lambda number: number < 60, Whereabouts(), frames.append)
    checked = msgspec.json.decode(frames[-1], type=messages.Checked)

    assert any("returned the number of blocks that were hit" in what for what, _ in checked.problems)


def test_a_sound_manager_never_seems_to_count_blocks() -> None:
    marks = [drive(SPEC, OurBlocks, seed)[1].state.marks for seed in range(60)]

    assert sum(mark[declarations.HIT] for mark in marks) > declarations.ENOUGH_HITS
    assert sum(mark[declarations.AS_BLOCKS] for mark in marks) == 0


@pytest.mark.parametrize(
    ("make", "property", "trace", "advice"),
    [
        (SaysNo, "ALLOC-4", [Admit("A", (0, 1)), Append("A", (2,))], "by design, leave can_append out of the adapter"),
        (Counts, "REF-1", TWICE, "leave it out of what ref_count() returns"),
        (Larger, "MEM-1", [], "leave block_bytes out"),
    ],
)
def test_what_may_be_meant_is_said_with_its_remedy(
    make: type[OurBlocks], property: str, trace: Sequence[Any], advice: str
) -> None:
    assert advice in message(make, property, trace)


class HitsBeyondThePrompt(OurBlocks):
    """A stale entry answers: the lookup finds more tokens than it was asked for."""

    def allocate(self, name: str, tokens: Sequence[int], salt: str | None = None) -> int:
        return super().allocate(name, tokens, salt) and len(tokens) + 2

    def admit(self, name: str, tokens: Sequence[int], salt: str | None = None) -> int:
        return super().admit(name, tokens, salt) and len(tokens) + 2


class RecomputesBeyond(HitsBeyondThePrompt):
    capabilities = msgspec.structs.replace(OurBlocks.capabilities, recomputes_hits=True)


def test_more_hits_than_tokens_are_a_finding_with_its_steps() -> None:
    found = message(HitsBeyondThePrompt, "HASH-4", TWICE)

    assert found.startswith("sequence B has 5 tokens and 7 are said to be cached: no token is left to compute")
    assert found.endswith(access.TOO_MANY)


def test_more_hits_than_tokens_are_the_adapters_where_whole_hits_are_declared() -> None:
    verdict = run_trace(SPEC, RecomputesBeyond, GEOMETRY, TWICE)

    assert "returned 7 cached tokens of 5. Remedy: return how many leading tokens hit" in str(verdict.adapter)
