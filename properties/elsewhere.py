"""Judges a target in a process of its own: a device that faults, a process that dies or a call that never returns is then a
finding of that target, and not the end of the suite.

Used on a GPU (ATTENTION): after an illegal access nothing more can run in that process, and no signal interrupts a wait for
the device. The child (`elsewhere_child`) notes every operation before it is applied; the case is made from that note.
"""

from __future__ import annotations

import pickle
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from properties.case import Case, fingerprint
from properties.contract import AdapterError
from properties.judging import Finding, Results
from properties.ledger import Entry, Ledger
from properties.specs import spec_of
from properties.targets import Target, Unavailable

HANG_S = 300.0
"""Seconds for one operation, compilations included: they are no hang."""
DEATH = "CRASH-2"
POLL_S = 0.05
LOST = 87
"""Exit status after a fault of the device; FOLDER/lost says which."""
NOTE = "note"


class Order(msgspec.Struct, frozen=True):
    """What the child is to do: "judge" a target, run one "trace" of it, or the "shapes" of real models."""

    what: str
    target: str
    device: str
    profile_name: str = "pagefault-dev"
    known: tuple[Entry, ...] = ()
    trace: Any = None


class Answer(msgspec.Struct):
    """What came of it so far; `complete` once all is done. `results` are fields of `Results`, or the shapes."""

    complete: bool = False
    results: dict[str, Any] = {}
    adapter: tuple[str, str] | None = None
    unavailable: str | None = None


def judge_elsewhere(target: Target, profile_name: str, device: str, ledger: Ledger) -> Results:
    """`judge_target` in a child. A death is CRASH-2; the clauses that were not judged then are told in `Results.ended`.

    Raises `Unavailable` where the target cannot run here.
    """
    order = Order("judge", target.name, device, profile_name, ledger.entries)
    results = Results(target)
    with TemporaryDirectory() as name:
        answer, death = _ask(order, Path(name))
        if answer.unavailable is not None:
            raise Unavailable(answer.unavailable)
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
    """The decodes in the shapes of real models: what is wrong with each by its name, or None. {} if it declares none."""
    with TemporaryDirectory() as name:
        answer, death = _ask(Order("shapes", target_name, device), Path(name))
    if answer.adapter is not None:
        raise AdapterError(*answer.adapter)
    shapes: dict[str, str | None] = answer.results.get("shapes", {})
    if death is not None and shapes:
        shapes[list(shapes)[-1]] = death
    return shapes


def _ask(order: Order, folder: Path) -> tuple[Answer, str | None]:
    """The child's last answer, and how it ended before its time (None: it did not)."""
    (folder / "order").write_bytes(pickle.dumps(order))
    child = subprocess.Popen(
        [sys.executable, "-m", "properties.elsewhere_child", str(folder)], stdin=subprocess.DEVNULL
    )
    try:
        hung = _watch(child, folder)
    finally:
        child.kill()
        child.wait()
    answer = folder / "answer"
    given = pickle.loads(answer.read_bytes()) if answer.exists() else Answer()
    if given.complete:
        return given, None
    if hung:
        return given, f"still running after {HANG_S:g} s: killed"
    return given, _words(child.returncode, folder)


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
    for path in folder.iterdir():
        with suppress(FileNotFoundError):  # a file is replaced meanwhile
            times.append(path.stat().st_mtime)
    return max(times)


def _words(status: int, folder: Path) -> str:
    if status == LOST:
        return (folder / "lost").read_text()
    if status < 0:
        return f"the process died of {signal.Signals(-status).name}"
    return f"the process ended with exit status {status}"


def _finding(order: Order, target: Target, death: str, note: Path, ledger: Ledger) -> Finding:
    """The operations that led to a death, the last one alone if that kills as well."""
    geometry, operations = read_note(note, target)
    flaky = False
    for fewer in dict.fromkeys((operations[-1:], operations)):
        with TemporaryDirectory() as name:
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
    if not note.exists():
        raise AdapterError(
            f"{target.name} ended the process before its first operation",
            "the class or function is called without arguments; it must return and not end the process",
        )
    first, *lines = note.read_bytes().splitlines()
    geometry = msgspec.json.decode(first, type=spec.geometry)
    return geometry, tuple(msgspec.json.decode(line, type=spec.operation) for line in lines)
