"""The worker's loop by itself: what it says, and when."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import pytest

from fuzz import journal, messages
from fuzz.loop import Loop
from fuzz.seeds import case_seed
from properties.case import decode, read
from properties.specs import spec_of
from properties.targets import load
from tests.fuzz.helpers import bad

SPEC = spec_of("blocks")


def _loop(name: str, folder: Path, said: list[messages.Message], *, fragile: bool = False) -> Loop:
    for part in ("pending", "corpus"):
        (folder / part).mkdir(exist_ok=True)
    target = load(name)
    parts = (folder, folder / "journal", folder / "corpus")
    return Loop(target, SPEC, said.append, *parts, 1, target.make(), fragile=fragile)


def _slice(first: int, stop: int, tolerate: tuple[str, ...] = ()) -> messages.Slice:
    return messages.Slice(first=first, stop=stop, seconds=60, left_s=60, tolerate=tolerate)


def _counts(said: list[messages.Message]) -> list[messages.Counts]:
    return [message for message in said if isinstance(message, messages.Counts)]


def test_counts_add_up_and_end_with_the_next_case(tmp_path: Path) -> None:
    said: list[messages.Message] = []
    _loop("ours", tmp_path, said).obey(_slice(5, 45))
    counts = _counts(said)

    assert [part.finished for part in counts] == [False] * (len(counts) - 1) + [True]
    assert counts[-1].next == 45
    assert sum(part.cases for part in counts) == 40
    assert sum(part.operations for part in counts) > 40 * 40
    assert len(said) == len(counts), "nothing else was worth a word"


def test_the_journal_holds_the_last_case_whole(tmp_path: Path) -> None:
    _loop("ours", tmp_path, []).obey(_slice(0, 3))
    tail = journal.read(tmp_path / "journal", SPEC)

    assert tail is not None
    assert (tail.head.index, tail.head.seed) == (2, case_seed(1, "ours", 2))
    assert tail.operations[-1] == SPEC.closing
    assert len(tail.operations) == tail.head.num_steps


def test_a_case_that_cannot_be_saved_is_handed_over_whole(tmp_path: Path) -> None:
    said: list[messages.Message] = []
    loop = _loop(bad("Leaky"), tmp_path, said)
    (tmp_path / "pending").rmdir()
    (tmp_path / "pending").touch()
    with pytest.raises(OSError, match="Not a directory"):
        loop.obey(_slice(0, 60))
    words, text = next(message.text for message in said if isinstance(message, messages.Note)).split("\n", 1)

    assert words == "this case could not be saved; it is here whole:"
    assert decode(text.encode()).target == bad("Leaky")
    assert not [message for message in said if isinstance(message, messages.Found)]


def test_a_clause_is_kept_at_its_first_second_fourth_and_eighth_time(tmp_path: Path) -> None:
    said: list[messages.Message] = []
    _loop(bad("Leaky"), tmp_path, said).obey(_slice(0, 60))
    found = [message for message in said if isinstance(message, messages.Found) and message.property == "REF-1"]
    times = sum(part.broken.get("REF-1", 0) for part in _counts(said))

    assert [message.occurrence for message in found] == [2**n for n in range(len(found))]
    assert 2 ** (len(found) - 1) <= times < 2 ** len(found)
    for message in found:
        assert read(Path(message.path)).property == "REF-1"
        assert read(Path(message.path)).operations


def test_a_clause_that_is_tolerated_does_not_end_a_trace(tmp_path: Path) -> None:
    lengths = []
    for tolerate in ((), ("REF-1", "ALLOC-1", "ALLOC-5", "ALLOC-6", "ALLOC-4P", "EVICT-2P", "COW-3P", "CRASH-1")):
        said: list[messages.Message] = []
        loop = _loop(bad("Leaky"), tmp_path, said)
        for index in range(8):
            loop.obey(_slice(index, index + 1, tolerate))
        lengths.append(sum(part.operations for part in _counts(said)))

    assert lengths[0] < lengths[1]


def test_saved_traces_are_run_and_a_damaged_one_is_left_out_with_a_word(tmp_path: Path) -> None:
    said: list[messages.Message] = []
    loop = _loop("ours", tmp_path, said)
    loop.ready()
    loop.obey(_slice(0, 20))
    saved = sorted((tmp_path / "corpus").glob("*.json"))
    saved[0].write_bytes(saved[0].read_bytes()[:50])
    said.clear()
    loop.obey(messages.Rerun(paths=tuple(map(str, saved)), seconds=60, left_s=60))
    notes = [message.text for message in said if isinstance(message, messages.Note)]

    assert len(saved) > 5
    assert sum(part.cases for part in _counts(said)) == len(saved) - 1
    assert len(notes) == 1
    assert str(saved[0]) in notes[0]


def test_after_a_crash_a_fragile_process_asks_for_a_fresh_one(tmp_path: Path) -> None:
    said: list[messages.Message] = []
    loop = _loop(bad("Undeclared"), tmp_path, said, fragile=True)
    with pytest.raises(SystemExit):
        loop.obey(_slice(0, 60))

    counts, last = said[-2:]
    assert isinstance(counts, messages.Counts)
    assert counts.finished
    assert 0 < counts.next < 60, "the rest of the slice is handed back"
    assert isinstance(last, messages.Unusable)
    assert last.why == "restart"


def test_an_error_of_the_referee_is_never_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[messages.Message] = []
    loop = _loop("ours", tmp_path, said)
    broken = Mock(side_effect=ZeroDivisionError("ours"))  # of the standard library: no line of a target's
    monkeypatch.setattr("properties.blocks.referee.why_illegal", broken)
    with pytest.raises(SystemExit):
        loop.obey(_slice(0, 5))

    (message,) = said
    assert isinstance(message, messages.Unusable)
    assert message.why == "internal"
    assert "ZeroDivisionError" in message.message


def test_a_journal_that_cannot_be_written_is_no_finding_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = _loop("ours", tmp_path, [])
    loop.journal.close()

    with pytest.raises(OSError, match="Bad file descriptor"):
        loop.obey(_slice(0, 5))
