"""The README's example: what pagefault prints for a small manager with one bug, through an adapter of thirty lines."""

from pathlib import Path

import pytest

from properties.case import Case
from properties.report import explain
from properties.targets import load
from tests.targets.hunt import SPEC, Hunt

HERE = Path(__file__).parent
TARGET = "tests/targets/tiny_target.py:Tiny"

PRINTED = """\
HASH-1: a hit block holds exactly that token run behind that whole prefix, with that salt
does not hold for tests/targets/tiny_target.py:Tiny (block size 1, num blocks 3):

    1  admit A with tokens 0 1
    2  admit B with tokens 1 0   <- breaks HASH-1

sequence B, position 0 (token 1 behind []) was hit in slot 1 (block 1, offset 0), which holds the value written by \
sequence A for its position 1 at step 1: the KV of token 1 behind [0]. History of device block 1: handed to A at step 1\
"""


@pytest.fixture(name="make", scope="module")
def _make():
    return load(f"{HERE / 'tiny_target.py'}:Tiny").make


@pytest.fixture(name="hunt", scope="module")
def _hunt(make):
    return Hunt(make, num_seeds=400)


def test_the_bug_is_found_under_two_clauses(hunt):
    assert set(hunt.found) == {"HASH-1", "CONTENT-1"}


def test_what_is_printed(hunt):
    geometry, operations, message = hunt.minimised("HASH-1")
    case = Case(
        level="blocks",
        target=TARGET,
        property="HASH-1",
        message=message,
        geometry=geometry,
        operations=operations,
    )

    assert explain(case, broken_at=len(operations)) == PRINTED


def test_without_the_bug_nothing_is_found(make, monkeypatch):
    manager = make.open.__globals__["TinyManager"]
    monkeypatch.setattr(manager, "_key", lambda self, tokens, start: tuple(tokens[: start + self.block_size]))

    hunt = Hunt(make, num_seeds=1200)

    assert hunt.found == {}
    assert hunt.unreached() == ({}, [])


def test_the_adapter_is_as_short_as_promised():
    lines = [line for line in (HERE / "tiny_target.py").read_text().splitlines() if line.strip()]

    assert len(lines) <= 32
    assert len(set(SPEC.offered(load(f"{HERE / 'tiny_target.py'}:Tiny").make()))) == 2
