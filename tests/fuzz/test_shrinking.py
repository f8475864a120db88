"""The minimiser of campaigns where each candidate has a process of its own, and few can be tried."""

from __future__ import annotations

from pathlib import Path

from fuzz import child, messages
from properties.blocks.operations import Admit, Geometry
from properties.case import Case, decode, encode

TURNS = """
from properties.targets.ours import OurBlocks

class Turns(OurBlocks):
    def table(self, name):
        table = list(super().table(name))
        return table[::-1] if len(table) == 2 else table
"""


def test_refused_steps_go_first_even_where_there_is_no_time_for_anything_else(tmp_path: Path) -> None:
    file = tmp_path / "turning.py"
    file.write_text(TURNS)
    too_long = Admit("B", (0,) * 9)
    case = Case(
        level="blocks",
        target=f"{file}:Turns",
        property="SLOT-1",
        message="",
        geometry=Geometry(block_size=2, num_blocks=4),
        operations=(too_long, Admit("A", (1,)), too_long, Admit("C", (2, 1, 0))),
    )
    worker = child.start(case.target, "cpu")
    try:
        command = messages.Minimise(case=encode(case).decode(), limit_s=20.0, seconds=0.0, isolated=True)
        smaller = child.ask(worker, command, 60.0)
    finally:
        worker.stop()

    assert isinstance(smaller, messages.Smaller)
    assert smaller.held
    assert decode(smaller.case.encode()).operations == (case.operations[1], case.operations[3])
