"""Case files: readable, whole or not there, and refused with a reason."""

from pathlib import Path

import msgspec
import pytest

from properties.blocks.operations import Admit, Append, Drain, Free, Geometry
from properties.case import Case, decode, encode, fingerprint, read, write
from properties.contract import UsageError

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
