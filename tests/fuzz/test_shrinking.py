"""The minimiser of campaigns where each candidate has a process of its own, and few can be tried."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuzz import child, messages
from properties.blocks.operations import Admit, Geometry
from properties.case import Case, decode, encode, write
from properties.minimise import REPEATS
from tests.fuzz.helpers import pagefault

TURNS = """
from pathlib import Path

from properties.targets.ours import OurBlocks

class Turns(OurBlocks):
    def table(self, name):
        table = list(super().table(name))
        return table[::-1] if len(table) == 2 else table

class Alternates(Turns):
    # Wrong in every second run, in whatever process.
    def open(self, config):
        super().open(config)
        runs = Path(__file__).with_suffix(".runs")
        with runs.open("a") as file:
            file.write(".")
        self.wrong = runs.stat().st_size % 2 == 1

    def table(self, name):
        table = super().table(name)
        return table if self.wrong else list(self.manager.table(name))
"""


TOO_LONG = Admit("B", (0,) * 9)
OPERATIONS = (TOO_LONG, Admit("A", (1,)), TOO_LONG, Admit("C", (2, 1, 0)))


def _case(folder: Path, target: str) -> Case:
    file = folder / "turning.py"
    file.write_text(TURNS)
    return Case(
        level="blocks",
        target=f"{file}:{target}",
        property="SLOT-1",
        message="as it was seen",
        geometry=Geometry(block_size=2, num_blocks=4),
        operations=OPERATIONS,
    )


def _smaller(case: Case, *, isolated: bool) -> messages.Smaller:
    worker = child.start(case.target, "cpu")
    try:
        command = messages.Minimise(case=encode(case).decode(), limit_s=20.0, seconds=0.0, isolated=isolated)
        smaller = child.ask(worker, command, 60.0)
    finally:
        worker.stop()
    assert isinstance(smaller, messages.Smaller)
    return smaller


def test_refused_steps_go_first_even_where_there_is_no_time_for_anything_else(tmp_path: Path) -> None:
    smaller = _smaller(_case(tmp_path, "Turns"), isolated=True)

    assert smaller.held
    assert smaller.missed == 0
    assert decode(smaller.case.encode()).operations == (OPERATIONS[1], OPERATIONS[3])


@pytest.mark.parametrize("isolated", [True, False])
def test_what_does_not_fail_each_time_is_not_called_certain(isolated: bool, tmp_path: Path) -> None:
    """A campaign called what came by chance a finding, where the case failed once more by chance."""
    case = _case(tmp_path, "Alternates")
    smaller = _smaller(case, isolated=isolated)

    assert not smaller.held
    assert 1 <= smaller.missed < REPEATS
    assert decode(smaller.case.encode()).message == case.message


def test_what_came_by_chance_is_not_minimised(tmp_path: Path) -> None:
    case = _case(tmp_path, "Alternates")
    write(case, tmp_path / "case.json")
    refused = [pagefault("minimize", "case.json", "--time", "1s", cwd=tmp_path) for _ in range(2)]

    assert [done.code for done in refused] == [2, 2]
    assert any(f"breaks SLOT-1 on {case.target} by chance here (it failed again, but " in done.err for done in refused)
    assert not list(tmp_path.glob("*.min.json"))
