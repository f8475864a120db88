"""The worked example: its numbers, its text, and the copy of it in the README."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from paged_ref.walkthrough import walkthrough

README = Path(__file__).parent.parent / "README.md"
MARKED = re.compile(r"<!-- walkthrough -->\s*```(?:text)?\n(.*?)```\s*<!-- /walkthrough -->", re.DOTALL)

TEXT = """\
8 blocks of 4 tokens: slots 0 to 31
A: 6 tokens, block table [7, 2]
B: 3 tokens, block table [5]
free blocks: 0 1 3 4 6

prefill: all tokens of both prompts in one row
  token       A0  A1  A2  A3  A4  A5  B0  B1  B2
  position     0   1   2   3   4   5   0   1   2
  slot        28  29  30  31   8   9  20  21  22
  cu_seqlens  0 6 9
  A by block: 28 to 31 in block 7, 8 to 9 in block 2
  B by block: 20 to 22 in block 5

decode step 1: one new token for each sequence
  A is 7 long: (7 - 1) % 4 = 2, so there is room in block 2
  B is 4 long: (4 - 1) % 4 = 3, so there is room in block 5
  token       A6  B3
  position     6   3
  slot        10  23
  context     7 4
  tables      [7, 2] [5, -1]
  A reads slots 28 29 30 31 8 9 10: A0 A1 A2 A3 A4 A5 A6
  B reads slots 20 21 22 23: B0 B1 B2 B3

decode step 2: one new token for each sequence
  A is 8 long: (8 - 1) % 4 = 3, so there is room in block 2
  B is 5 long: (5 - 1) % 4 = 0, so it takes a new block: 0
  token       A7  B4
  position     7   4
  slot        11   0
  context     8 5
  tables      [7, 2] [5, 0]
  A reads slots 28 29 30 31 8 9 10 11: A0 A1 A2 A3 A4 A5 A6 A7
  B reads slots 20 21 22 23 0: B0 B1 B2 B3 B4

the pool afterwards
  block 0  B4 .. .. ..
  block 1  .. .. .. ..
  block 2  A4 A5 A6 A7
  block 3  .. .. .. ..
  block 4  .. .. .. ..
  block 5  B0 B1 B2 B3
  block 6  .. .. .. ..
  block 7  A0 A1 A2 A3
"""


def test_the_text_is_the_known_one():
    assert walkthrough() == TEXT


def test_its_numbers_follow_from_the_formula_alone():
    """Checked without any code of the project."""
    tables = {"A": [7, 2], "B": [5, 0]}
    for name, slots in re.findall(r"  ([AB]) reads slots ([\d ]+):", walkthrough()):
        positions = range(len(slots.split()))

        assert [int(slot) for slot in slots.split()] == [tables[name][p // 4] * 4 + p % 4 for p in positions]


def test_each_sequence_reads_its_own_values_in_order():
    reads = re.findall(r"  ([AB]) reads slots [\d ]+: (.*)", walkthrough())

    assert [(name, len(values.split())) for name, values in reads] == [("A", 7), ("B", 4), ("A", 8), ("B", 5)]
    for name, values in reads:
        assert values.split() == [f"{name}{position}" for position in range(len(values.split()))]


def test_it_runs_as_a_module():
    command = [sys.executable, "-m", "paged_ref.walkthrough"]

    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == TEXT


def test_the_readme_shows_what_the_code_prints():
    marked = MARKED.findall(README.read_text())
    if not marked:
        pytest.skip("the README has no <!-- walkthrough --> section")

    assert marked == [TEXT]
