"""Judges a target in a process of its own: a device that faults, a process that dies or a call that never returns is then a
finding of that target, and not the end of the suite.

Used on a GPU (ATTENTION): after an illegal access nothing more can run in that process, and no signal interrupts a wait for
the device. The child (`elsewhere_child`) notes every operation before it is applied; the case is made from that note.
"""

from __future__ import annotations

import errno
import os
import pickle
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from properties.case import Case, fingerprint
from properties.contract import AdapterError, UsageError
from properties.judging import Finding, Results
from properties.ledger import Entry, Ledger
from properties.lifeline import START, command_of_ours, memory_hint, signal_name
from properties.specs import spec_of
from properties.targets import Target, Unavailable
from properties.trial import MUST_RETURN

HANG_S = 300.0
"""Seconds for one operation, compilations included: they are no hang."""
DEATH = "CRASH-2"
POLL_S = 0.05
LOST, FULL = 87, 88
"""Exit status after a fault of the device (FOLDER/lost says which), and where nothing can be noted any more (ORDER is gone)."""
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
NOTE, ORDER = "note", "order"


class Order(msgspec.Struct, frozen=True):
    """What the child is to do: "judge" a target, run one "trace" of it, or the "shapes" of real models."""

    what: str
    target: str
    device: str
    profile_name: str = "pagefault-dev"
    known: tuple[Entry, ...] = ()
    trace: Any = None


class Answer(msgspec.Struct):
    """What came of it so far; `complete` once all is done. `results` are fields of `Results`, or the shapes.

    own: the traceback of an error of pagefault itself.
    """

    complete: bool = False
    results: dict[str, Any] = {}
    adapter: tuple[str, str] | None = None
    unavailable: str | None = None
    own: str | None = None


class OwnError(Exception):
    """A mistake in pagefault, with its traceback. Nothing is known of the target then."""


def judge_elsewhere(target: Target, profile_name: str, device: str, ledger: Ledger) -> Results:
    """`judge_target` in a child. A death is CRASH-2; the clauses that were not judged then are told in `Results.ended`.

    Raises `Unavailable` where the target cannot run here, UsageError where nothing can be noted, `OwnError`.
    """
    order = Order("judge", target.name, device, profile_name, ledger.entries)
    results = Results(target)
    with _folder() as name:
        answer, death = _ask(order, Path(name))
        if answer.adapter is not None:
            results.tally.adapter = AdapterError(*answer.adapter)
            return results
        for field, value in answer.results.items():
            setattr(results, field, value)
        if death is not None:
            results.ended = death
            try:
                results.findings[DEATH] = _finding(order, target, death, Path(name) / NOTE, ledger)
            except AdapterError as error:
                results.tally.adapter = error
    return results


def shapes_elsewhere(target_name: str, device: str) -> dict[str, str | None]:
    """The decodes in the shapes of real models: what is wrong with each by its name, or None. {} if it declares none.

    Raises as `judge_elsewhere`, and AdapterError.
    """
    with _folder() as name:
        answer, death = _ask(Order("shapes", target_name, device), Path(name))
    if answer.adapter is not None:
        raise AdapterError(*answer.adapter)
    shapes: dict[str, str | None] = answer.results.get("shapes", {})
    if death is not None and not shapes:
        raise AdapterError(f"{target_name}, before its first decode: {death}", MUST_RETURN)
    if death is not None:
        shapes[list(shapes)[-1]] = death
    return shapes


def broken_elsewhere(case: Case, device: str) -> dict[str, int]:
    """The clauses that the trace of a case breaks in a process of its own, each with its step.

    Raises as `judge_elsewhere`, and AdapterError.
    """
    order = Order("trace", case.target, device, trace=(case.geometry, case.operations))
    with _folder() as name:
        answer, death = _ask(order, Path(name))
    if answer.adapter is not None:
        raise AdapterError(*answer.adapter)
    broken: dict[str, int] = answer.results["broken"] if death is None else {DEATH: len(case.operations)}
    return broken


def _folder() -> TemporaryDirectory[str]:
    """Raises UsageError where none can be made."""
    try:
        return TemporaryDirectory(ignore_cleanup_errors=True)  # a target may have left something in it, or removed it
    except OSError as error:
        raise UsageError(f"no temporary folder can be made ({error.strerror or error}): {_ROOM}") from error


_ROOM = "make room, or set TMPDIR to a folder that can be written"


def _no_room(folder: Path) -> UsageError:
    return UsageError(f"no room left in {folder.parent}, where the progress of judging is noted: {_ROOM}")


def _ask(order: Order, folder: Path) -> tuple[Answer, str | None]:
    """The child's last answer, and how it ended before its time (None: it did not).

    Nothing of it is left afterwards, processes that it forked included. Raises UsageError where the disk is full, OwnError,
    and `Unavailable`.
    """
    try:
        (folder / ORDER).write_bytes(pickle.dumps(order))
    except OSError as error:
        if error.errno in NO_ROOM:
            raise _no_room(folder) from error
        raise
    arguments = command_of_ours("properties.elsewhere_child", "main(sys.argv[1])", str(folder))
    # What a target prints is no output of ours: it goes to standard error.
    child = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=2, cwd=START, start_new_session=True)
    try:
        hung = _watch(child, folder)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    if child.returncode == FULL and not (folder / ORDER).exists():
        raise _no_room(folder)
    given = _answer(folder / "answer")
    if given.unavailable is not None:
        raise Unavailable(given.unavailable)
    if given.own is not None:
        raise OwnError(f"an error of pagefault itself, not of the target; please report it: {given.own}")
    if given.complete:
        return given, None
    if hung:
        return given, f"still running after {HANG_S:g} s: killed"
    return given, _words(child.returncode, folder)


def _answer(file: Path) -> Answer:
    try:
        given = pickle.loads(file.read_bytes())
    except Exception:  # there is none, or something wrote into it
        return Answer()
    return given if isinstance(given, Answer) else Answer()


def _watch(child: subprocess.Popen[bytes], folder: Path) -> bool:
    """Waits for the child's end, or until it has not moved for HANG_S: True."""
    moved, seen = time.monotonic(), 0.0
    while child.poll() is None:
        changed = _last_change(folder)
        if changed != seen:
            moved, seen = time.monotonic(), changed
        if time.monotonic() - moved > HANG_S:
            return True
        time.sleep(POLL_S)
    return False


def _last_change(folder: Path) -> float:
    times = [0.0]
    with suppress(OSError):  # the folder is gone
        for path in folder.iterdir():
            with suppress(FileNotFoundError):  # a file is replaced meanwhile
                times.append(path.stat().st_mtime)
    return max(times)


def _words(status: int, folder: Path) -> str:
    if status == LOST and (folder / "lost").exists():
        return (folder / "lost").read_text()
    if status >= 0:
        return f"the process ended with exit status {status}"
    return f"the process died of {signal_name(-status) or f'signal {-status}'}{memory_hint(-status)}"


def _finding(order: Order, target: Target, death: str, note: Path, ledger: Ledger) -> Finding:
    """The operations that led to a death, the last one alone if that kills as well."""
    geometry, operations = read_note(note, target)
    flaky = False
    for fewer in dict.fromkeys((operations[-1:], operations)):
        with _folder() as name:
            _, again = _ask(msgspec.structs.replace(order, what="trace", trace=(geometry, fewer)), Path(name))
        if again is not None:
            operations = fewer
            break
    else:
        flaky = True
    case = Case(
        level=target.level, target=target.name, property=DEATH, message=death, geometry=geometry, operations=operations,
        flaky=flaky,
    )  # fmt: skip
    return Finding(case, len(operations), ledger.find(target.name, DEATH, fingerprint(case)))


def read_note(note: Path, target: Target) -> tuple[Any, tuple[Any, ...]]:
    """Geometry and operations of the trace that was running, the last one begun and not ended."""
    spec = spec_of(target.level)
    lines = note.read_bytes().splitlines(keepends=True) if note.exists() else []
    whole = [line for line in lines if line.endswith(b"\n")]  # the last one may have been cut short
    if not whole:
        raise AdapterError(f"{target.name} ended the process before its first operation", MUST_RETURN)
    try:
        geometry = msgspec.json.decode(whole[0], type=spec.geometry)
        return geometry, tuple(msgspec.json.decode(line, type=spec.operation) for line in whole[1:])
    except msgspec.MsgspecError as error:
        raise AdapterError(
            f"{target.name} ended the process, and what was noted of its calls cannot be read: {error}",
            "write only into files of its own, and only to file descriptors that it opened",
        ) from error
