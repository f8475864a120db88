"""The journal: what a dead worker was doing can be read back, whole, whatever was torn."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from fuzz import journal
from fuzz.journal import Head, Journal
from properties.blocks.operations import Admit, Drain, Free, Geometry
from properties.specs import spec_of

SPEC = spec_of("blocks")
GEOMETRY = Geometry(block_size=2, num_blocks=3)
OPERATIONS = (Admit("A", (0, 1), "a"), Free("A"), Drain())


def _written(path: Path) -> Journal:
    book = Journal(path)
    book.begin(Head(1, 2, 3))
    book.add(Geometry(block_size=9, num_blocks=9))
    book.begin(Head(7, 11, 60))
    book.add(GEOMETRY)
    for operation in OPERATIONS:
        book.add(operation)
    return book


def test_only_the_current_case_is_kept(tmp_path: Path) -> None:
    _written(tmp_path / "j")

    assert journal.read(tmp_path / "j", SPEC) == (Head(7, 11, 60), GEOMETRY, OPERATIONS)


def test_a_torn_line_is_left_out(tmp_path: Path) -> None:
    _written(tmp_path / "j")
    whole = (tmp_path / "j").read_bytes()
    for cut in range(1, len(whole)):
        (tmp_path / "j").write_bytes(whole[:cut])
        tail = journal.read(tmp_path / "j", SPEC)
        if tail is not None and tail.geometry is not None:
            assert tail.operations == OPERATIONS[: len(tail.operations)]

    assert tail is not None
    assert tail.operations == OPERATIONS[:-1]  # the last byte is the newline of the last operation


def test_nothing_there_is_no_case(tmp_path: Path) -> None:
    assert journal.read(tmp_path / "none", SPEC) is None
    Journal(tmp_path / "j")
    assert journal.read(tmp_path / "j", SPEC) is None


def test_it_survives_kill_9_between_two_operations(tmp_path: Path) -> None:
    pid = os.fork()
    if pid == 0:
        _written(tmp_path / "j")
        os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)
    os.waitpid(pid, 0)

    tail = journal.read(tmp_path / "j", SPEC)

    assert tail is not None
    assert tail.operations == OPERATIONS


def test_progress_changes_with_every_operation_and_every_case(tmp_path: Path) -> None:
    book = Journal(tmp_path / "j")
    seen = [journal.progress(tmp_path / "j")]
    for index in range(3):
        book.begin(Head(index))
        seen.append(journal.progress(tmp_path / "j"))
        book.add(GEOMETRY)
        seen.append(journal.progress(tmp_path / "j"))

    assert len(set(seen)) == len(seen)
    assert journal.progress(tmp_path / "none") == (0, b"")
