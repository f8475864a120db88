"""`pagefault judge`: the referee on a recorded engine history."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from properties.contract import UsageError, clause
from properties.engine.events import MOST_LINE
from properties.engine.replay import HistoryVerdict, judge_history
from properties.wording import counted

LINE_EVERY_S = 5.0
"""Seconds between two lines of progress."""


def judge_file(path: str, say: Callable[[str], None]) -> HistoryVerdict:
    """Judge the history in a file, `-` = standard input. Raises `UsageError` where it cannot be read."""
    started, due = time.monotonic(), time.monotonic() + LINE_EVERY_S

    def progress(line: int) -> None:
        nonlocal due
        now = time.monotonic()
        if now >= due:
            due = now + LINE_EVERY_S
            say(f"line {line:,} ({line / (now - started):,.0f} lines/s)")

    if path == "-":
        return judge_history(_lines(sys.stdin.buffer), progress)
    if Path(path).is_dir():
        raise UsageError(f"{path} is a folder: give the history file in it")
    try:
        with Path(path).open("rb") as lines:
            return judge_history(_lines(lines), progress)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None


def _lines(file: BinaryIO) -> Iterator[bytes]:
    """The lines of a file, each cut where it is too long to be one: a file of another kind must not fill the memory."""
    while line := file.readline(MOST_LINE + 1):
        yield line


def exit_code(verdict: HistoryVerdict) -> int:
    """1 = the engine broke a clause; 2 = it did not, but the history is wrong, cut or without a step: that proves little."""
    if verdict.breaches:
        return 1
    return 2 if verdict.error or verdict.cut or not verdict.num_steps else 0


def in_words(path: str, verdict: HistoryVerdict) -> str:
    """The verdict for a person."""
    name = f" of {verdict.engine}" if verdict.engine else ""
    lines = []
    for breach, line in verdict.breaches:
        lines += [f"FAULT  {breach.property}: {clause(breach.property).text}", f"    line {line}: {breach.message}", ""]
    if verdict.error:
        lines += [
            f"HISTORY  {path}, {verdict.error}",
            "    The history itself is wrong; this says nothing about the engine.",
            "",
        ]
    elif verdict.cut:
        lines += [f"CUT  {path}: {verdict.cut}. What stands before it was judged.", ""]
    if verdict.breaches:
        lines += ["A step in an explanation is a line of the history.", ""]
    count = f"{counted(verdict.num_events, 'event')}{name}: {counted(verdict.num_requests, 'request')}, "
    count += counted(verdict.num_steps, "step")
    live = f", {counted(len(verdict.live), 'request')} live at the end" if verdict.live else ""
    clean = "no fault" + (" up to there" if verdict.error or verdict.cut else "")
    if verdict.breaches:
        clean = f"{counted(len(verdict.breaches), 'clause')} broken"
    lines.append(f"{count}{live}; {clean}, {counted(len(verdict.judged), 'clause')} judged")
    if not verdict.breaches and not verdict.error and verdict.num_steps == 0:
        lines.append("There was no step: nothing was shown.")
    return "\n".join(lines)


def as_fields(path: str, verdict: HistoryVerdict) -> dict[str, Any]:
    """The verdict for a program."""
    return {
        "history": path,
        "engine": verdict.engine,
        "events": verdict.num_events,
        "requests": verdict.num_requests,
        "steps": verdict.num_steps,
        "live": verdict.live,
        "faults": [
            {"property": breach.property, "line": line, "message": breach.message} for breach, line in verdict.breaches
        ],
        "error": None if verdict.error is None else str(verdict.error),
        "cut": verdict.cut,
        "judged": verdict.judged,
        "exit_code": exit_code(verdict),
    }
