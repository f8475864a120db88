"""Each attention property catches the bug that it exists for, by its own id and with the right clue."""

from collections import Counter
from dataclasses import replace as with_fields

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from msgspec.structs import replace

from properties.attention.cases import AttentionCase, from_json, to_json
from properties.attention.coverage import offered
from properties.attention.judges import judge
from properties.attention.strategies import cases
from properties.attention.target import AttentionTarget, Batch, Output, Pool
from properties.attention.targets.plain import PlainTorch
from properties.attention.verdict import Finding
from properties.contract import CLAUSES
from tests.attention.broken import Broken, FreedBlocksNotMasked, all_broken

MOST_CASES = 1500


class Caught(Exception):
    """The expected finding came."""


def hunt(target: AttentionTarget, expected: str, clue: str) -> tuple[Finding | None, Counter[str], int]:
    """(first finding with the expected id and clue, how often each id was found, cases judged)."""
    seen: Counter[str] = Counter()
    hits: list[Finding] = []
    judged = 0

    @settings(
        max_examples=MOST_CASES,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(cases(target.capabilities, _concerned(type(target))))
    def look(case: AttentionCase) -> None:
        nonlocal judged
        judged += 1
        for finding in judge(target, case).findings:
            seen[finding.property] += 1
            if finding.property == expected and clue in finding.message:
                hits.append(finding)
                raise Caught

    try:
        look()
    except Caught:
        return hits[0], seen, judged
    return None, seen, judged


def _concerned(broken: type) -> frozenset[str]:
    """The operations that the bug is in."""
    for operation in ("store", "copy_blocks"):
        if getattr(broken, operation) is not getattr(PlainTorch, operation):
            return frozenset({operation})
    return frozenset({"decode", "prefill"})


@pytest.mark.parametrize("broken", all_broken(), ids=lambda cls: cls.__name__)
def test_the_bug_is_caught_by_its_property(broken: type[Broken]) -> None:
    finding, seen, judged = hunt(broken(), broken.breaks, broken.clue)

    assert finding is not None, (
        f"not caught as {broken.breaks} ({broken.clue!r}) in {judged} cases; found: {dict(seen)}"
    )


def test_the_controls_cover_every_tensor_clause() -> None:
    clauses = {id for id, clause in CLAUSES.items() if "attention" in clause.levels} - {"CRASH-2"}

    assert {broken.breaks for broken in all_broken()} == clauses


class LoadsWholeBlocks(FreedBlocksNotMasked):
    """Multiplies the tokens before the window, but of no block that lies wholly before it: they are the sequence's own."""

    def first_loaded(self, first_seen: int, block_size: int) -> int:
        return max(0, first_seen) // block_size * block_size


class PartitionsFromTheTable(PlainTorch):
    """Takes the number of partitions from the width of the table, as flash-attn does: other bits in a wider one."""

    capabilities = replace(PlainTorch.capabilities, dtypes=("float32",), num_splits=False, promises=frozenset())

    def _read(self, pool: Pool, batch: Batch) -> Output:
        return super()._read(pool, with_fields(batch, num_splits=1 + batch.padded_block_tables().shape[1]))


@pytest.mark.parametrize(
    "correct", [PlainTorch, LoadsWholeBlocks, PartitionsFromTheTable], ids=lambda cls: cls.__name__
)
def test_a_correct_target_has_no_finding(correct: type[PlainTorch]) -> None:
    target = correct()

    @settings(max_examples=600, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(cases(target.capabilities, offered(target)))
    def look(case: AttentionCase) -> None:
        assert from_json(to_json(case)) == case
        judge(target, case).raise_if_broken()

    look()
