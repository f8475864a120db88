"""Case files: readable, whole or not there, and refused with a reason."""

from pathlib import Path

import msgspec
import pytest

from properties.blocks.operations import Admit, Append, Drain, Fork, Free, Geometry
from properties.cache.operations import BatchStep
from properties.case import Case, decode, encode, fingerprint, read, shape, write
from properties.contract import UsageError
from properties.engine.operations import Submit

CASE = Case(
    level="blocks",
    target="ours",
    property="HASH-1",
    message="sequence B, position 0 was hit in slot 2",
    geometry=Geometry(block_size=2, num_blocks=3),
    operations=(Admit("A", (1, 0)), Append("A", (1,)), Free("A"), Drain()),
    seed=7,
    versions={"pagefault": "0.1.0"},
)


def test_a_case_round_trips_and_has_one_operation_a_line() -> None:
    text = encode(CASE)

    assert decode(text) == CASE
    assert text.count(b'"op"') == len([line for line in text.splitlines() if b'"op"' in line])


def test_a_reformatted_case_is_the_same_case() -> None:
    assert decode(msgspec.json.format(encode(CASE), indent=3)) == CASE


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (b'"version": 1', b'"version": 2', "upgrade pagefault"),
        (b'"admit"', b'"admitt"', "not a valid case"),
        (b"HASH-1", b"HASH-9", "no property 'HASH-9'"),
        (b'"pagefault case"', b'"something"', "has format 'something'"),
        (b'"level": "blocks"', b'"level": "bricks"', "has level 'bricks'"),
        (b'"block_size":2', b'"block_size":"two"', "not a valid case"),
        (b'"block_size":2', b'"block_size":2,"color":1', "not a valid case"),
    ],
)
def test_a_bad_case_is_refused_in_one_line(old: bytes, new: bytes, says: str) -> None:
    data = encode(CASE)
    assert old in data

    with pytest.raises(UsageError, match=says) as caught:
        decode(data.replace(old, new), "x.json")

    assert "\n" not in str(caught.value)


def test_a_cut_case_says_so() -> None:
    with pytest.raises(UsageError, match="not a whole case file"):
        decode(encode(CASE)[:-40])


def test_write_leaves_no_part_behind(tmp_path: Path) -> None:
    write(CASE, tmp_path / "a.json")

    assert read(tmp_path / "a.json") == CASE
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]
    with pytest.raises(UsageError, match="cannot read"):
        read(tmp_path / "b.json")


def test_the_fingerprint_ignores_token_values_and_nothing_else() -> None:
    replace = msgspec.structs.replace
    other_tokens = replace(CASE, operations=(Admit("A", (0, 0)), *CASE.operations[1:]))
    shorter = replace(CASE, operations=CASE.operations[:-1])

    assert fingerprint(other_tokens) == fingerprint(CASE)
    assert len({fingerprint(CASE), fingerprint(shorter), fingerprint(replace(CASE, property="HASH-2"))}) == 3


def _print_of(*operations: object) -> str:
    return fingerprint(msgspec.structs.replace(CASE, operations=operations))


def test_the_fingerprint_ignores_what_sequences_are_called() -> None:
    named = [_print_of(Admit(a, (0,)), Admit(b, (1, 2)), Free(a)) for a, b in ("AB", "BA", "CX")]

    assert len(set(named)) == 1
    assert _print_of(Admit("A", (0,)), Admit("B", (1, 2)), Free("B")) != named[0]


def test_the_fingerprint_takes_parent_and_child_of_a_fork_for_twins() -> None:
    start = (Admit("A", (0,)), Fork("A", "B"))
    twins = [_print_of(*start, Append(a, (1,)), Free(b)) for a, b in ("AB", "BA")]
    thirds = [_print_of(*start, Fork(a, "C"), Append(b, (1,)), Free(c)) for a, b, c in ("ABC", "BAC", "BAB", "ABA")]
    other = _print_of(*start, Fork("A", "C"), Append("B", (1,)), Free("B"))

    assert twins[0] == twins[1]
    assert _print_of(*start, Append("A", (1,)), Free("A")) not in twins
    assert len(set(thirds)) == 1
    assert other not in thirds


def test_the_shape_of_every_level_has_lengths_for_its_tokens() -> None:
    def shape_of(operation: object) -> dict[str, object]:
        return shape(msgspec.structs.replace(CASE, operations=(operation,)))[0]

    assert shape_of(Submit("r", (7, 8), reply=(9,))) == {"op": "submit", "name": "A", "tokens": 2, "reply": 1}
    batch = BatchStep(names=("y", "x"), runs=((7, 8), (9,)))
    assert shape_of(batch) == {"op": "batch", "names": ["A", "B"], "runs": [2, 1]}
