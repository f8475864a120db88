"""The order in which findings are told: the first breach first, what came after it behind it, nothing left out."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from fuzz.campaign_state import Finding
from fuzz.commands.minimize import _size
from fuzz.story import Group, grouped, in_order, tell, what_is_known
from properties.blocks.operations import Admit, Free, Geometry
from properties.case import Case, decode, encode, fingerprint
from properties.contract import Breach, UsageError
from properties.ledger import Entry
from tests.fuzz.helpers import Finished, pagefault

ADMIT_TWICE = (Admit("A", (0,)), Admit("B", (0, 1)))
OTHER = (Admit("A", (0, 0)), Admit("B", (0,)))
LONG = (Admit("A", (0,)), Free("A"), Admit("B", (0, 1)))


def finding(property: str, operations: tuple[object, ...], *breaches: tuple[str, int], flaky: bool = False) -> Finding:
    """A finding whose trace broke these clauses at these steps."""
    case = Case(
        level="blocks",
        target="t",
        property=property,
        message=f"about {property}",
        geometry=Geometry(block_size=1, num_blocks=2),
        operations=operations,
        breaches=tuple(Breach(id, f"about {id}", step) for id, step in breaches),
        flaky=flaky,
    )
    return Finding(Path(f"{property}-{len(operations)}.json"), case, fingerprint(case))


def told(groups: list[Group]) -> list[list[str]]:
    """The clauses of each group, the first of them first."""
    return [[member.case.property for member in (group.first, *group.rest)] for group in groups]


def test_the_clause_that_was_broken_first_comes_first_and_takes_what_came_after_it_along() -> None:
    """Alphabetically it would be ALLOC-6, whose trace is broken two steps earlier by REF-1."""
    found = [
        finding("ALLOC-6", LONG, ("REF-1", 2), ("ALLOC-6", 3)),
        finding("REF-1", ADMIT_TWICE, ("REF-1", 2)),
        finding("CRASH-1", LONG, ("CRASH-1", 3)),
    ]

    assert told(grouped(found)) == [["REF-1", "ALLOC-6"], ["CRASH-1"]]
    assert grouped(found)[0].after == [found[0]]


def test_the_very_same_steps_are_told_once_other_steps_stand_apart() -> None:
    """In one step neither of two clauses is the cause, unless it is the same trace, told under what was judged first."""
    both = (("ALLOC-2", 2), ("REF-1", 2))
    same = finding("REF-1", ADMIT_TWICE, *both)
    first = finding("ALLOC-2", ADMIT_TWICE, *both)
    apart = finding("HASH-1", OTHER, ("ALLOC-2", 2), ("HASH-1", 2))

    assert told(grouped([same, first])) == [["ALLOC-2", "REF-1"]]
    assert told(grouped([apart, first])) == [["ALLOC-2"], ["HASH-1"]]
    another = finding("REF-1", OTHER, *both)
    assert told(grouped([same, first, another])) == [["ALLOC-2", "REF-1", "REF-1"]], "REF-1 is told already"


def test_a_clause_that_also_fails_by_itself_does_not_hide_behind_another() -> None:
    behind = finding("HASH-1", LONG, ("ALLOC-2", 1), ("HASH-1", 3))
    alone = finding("HASH-1", ADMIT_TWICE, ("HASH-1", 2))
    other = finding("ALLOC-2", (ADMIT_TWICE[0],), ("ALLOC-2", 1))

    assert told(grouped([behind, other])) == [["ALLOC-2", "HASH-1"]]
    assert told(grouped([behind, other, alone])) == [["ALLOC-2"], ["HASH-1", "HASH-1"]]


@pytest.mark.parametrize("breaches", [(), (("REF-1", 3),), (("REF-1", 1), ("ALLOC-1", 2))])
def test_nothing_is_left_out_whatever_was_noted(breaches: tuple[tuple[str, int], ...]) -> None:
    """Cases of older files, edited ones, ones that break each other first, flaky ones: each is told exactly once."""
    found = [
        finding("ALLOC-1", LONG, *breaches),
        finding("REF-1", LONG, ("ALLOC-1", 1), ("REF-1", 2)),
        finding("CRASH-2", ADMIT_TWICE, flaky=True),
        finding("HASH-1", ADMIT_TWICE),
        finding("REF-1", ADMIT_TWICE, ("HASH-1", 1), ("REF-1", 2)),
    ]
    members = [member for group in grouped(found) for member in (group.first, *group.rest)]

    assert len(members) == len(found)
    assert {id(member) for member in members} == {id(member) for member in found}
    assert grouped(found)[-1].first.case.flaky
    assert in_order(found)[-1].case.flaky


def test_safety_is_told_before_a_promise_of_the_same_length() -> None:
    found = [finding("ALLOC-2P", OTHER, ("ALLOC-2P", 2)), finding("SLOT-2", ADMIT_TWICE, ("SLOT-2", 2))]

    assert told(grouped(found)) == [["SLOT-2"], ["ALLOC-2P"]]


def test_the_first_breach_is_explained_before_the_case_s_own() -> None:
    text = tell(finding("ALLOC-6", LONG, ("REF-1", 2), ("ALLOC-6", 3), ("ALLOC-3", 3)).case, "pagefault repro x")

    assert "  2  free A   <- breaks REF-1" in text
    assert "tokens 0 1   <- breaks ALLOC-6, ALLOC-3" in text
    assert text.index("first, at step 2, REF-1 (a stored") < text.index("about REF-1") < text.index("about ALLOC-6")
    assert text.startswith("ALLOC-6: no refusal while")
    assert text.endswith("replay: pagefault repro x")


def test_a_case_that_is_its_own_first_breach_is_marked_and_told_once() -> None:
    text = tell(finding("REF-1", ADMIT_TWICE, ("REF-1", 2), ("ALLOC-1", 2)).case)

    assert text.count("about REF-1") == 1
    assert text.count("<- breaks REF-1") == 1
    assert "first, at" not in text


def test_breaches_travel_with_the_case_and_unknown_ones_are_refused() -> None:
    case = finding("ALLOC-6", LONG, ("REF-1", 2), ("ALLOC-6", 3)).case

    assert decode(encode(case)).breaches == case.breaches
    with pytest.raises(UsageError, match="no property 'REF-11'; near it: REF-1"):
        decode(encode(case).replace(b'["REF-1"', b'["REF-11"'))


def test_a_campaign_on_one_fault_tells_its_first_breach_first(leaky: tuple[Path, Finished]) -> None:
    """A block that stays held is first of all a wrong reference count; the refusals that follow from it come behind."""
    cwd, done = leaky
    (target,) = done.json["targets"].values()
    rows = target["findings"]
    firsts = [row for row in rows if row["behind"] is None]
    behind = [row for row in rows if row["behind"] is not None]

    assert "REF-1" in {row["property"] for row in firsts}
    assert behind, "what follows stands behind it"
    assert {row["behind"] for row in behind} <= {row["fingerprint"] for row in firsts}
    assert all(row["first_breach"] for row in rows)
    shown = pagefault("show", next(row for row in rows if row["property"] == "ALLOC-6")["path"], cwd=cwd)
    assert "<- breaks REF-1" in shown.out
    assert shown.out.index("first, at step") < shown.out.index("then, at step")


def test_what_is_known_is_the_note_of_the_entry_or_what_the_case_says() -> None:
    found = finding("REF-1", (Admit("A", (0,)),), ("REF-1", 1))
    found.case.message = "block 0 has a count of 2, and one holder. It was handed out.\nMore."
    entry = Entry(target="t", property="REF-1", fingerprints=(), tracker="issue 1")
    found.known = entry
    assert what_is_known(found) == "block 0 has a count of 2, and one holder"
    found.known = msgspec.structs.replace(entry, note=" the count leaks ")
    assert what_is_known(found) == "the count leaks"


def test_the_size_of_a_case_counts_in_words_that_fit() -> None:
    one = finding("REF-1", (Admit("A", (0,)),)).case
    sizes = [_size(msgspec.structs.replace(one, operations=steps)) for steps in (one.operations, LONG, (Free("A"),))]

    assert sizes == ["1 step with 1 token", "3 steps with 3 tokens", "1 step"]
