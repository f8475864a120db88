"""Each attention property catches the bug that it exists for, by its own id and with the right clue."""

from collections import Counter

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from properties.attention.cases import AttentionCase, from_json, to_json
from properties.attention.coverage import offered
from properties.attention.judges import judge
from properties.attention.strategies import cases
from properties.attention.target import AttentionTarget
from properties.attention.targets.plain import PlainTorch
from properties.attention.verdict import Finding
from properties.contract import CLAUSES
from tests.attention.broken import Broken, all_broken

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


def test_the_correct_target_has_no_finding() -> None:
    target = PlainTorch()

    @settings(max_examples=600, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(cases(target.capabilities, offered(target)))
    def look(case: AttentionCase) -> None:
        assert from_json(to_json(case)) == case
        judge(target, case).raise_if_broken()

    look()
