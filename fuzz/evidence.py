"""From a broken clause to evidence: confirm it in a fresh process, minimise it, judge the result once more."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from fuzz import child, messages
from properties.blocks.opening import NOT_THE_ADAPTER, RESET
from properties.case import Case, decode, encode, read
from properties.contract import UsageError
from properties.minimise import REPEATS

ANSWER_S = 60.0
"""Seconds beyond its own limits after which a job's process is given up."""
NOT_EACH_TIME = (
    "it failed again, but in {} of {} more fresh processes not, or at another step: the target is not deterministic"
)
KEEPS_STATE = f"state is kept between cases: {RESET}. {NOT_THE_ADAPTER}"


@dataclass(frozen=True)
class Suspect:
    """A case that broke a clause in a worker, saved at `path`. `death` says that its process died or hung.

    limit_s: what a call may take while this one is confirmed; None: as for all.
    """

    target: str
    path: Path
    property: str
    occurrence: int
    preceding: tuple[tuple[int, int], ...] = ()
    death: str = ""
    signal: int = 0
    limit_s: float | None = None


def is_first(suspect: Suspect) -> bool:
    """Whether it is the first of its clause."""
    return suspect.occurrence == 1


@dataclass(frozen=True)
class Evidence:
    """What became of a suspect: "finding", "flaky", "leaks", "gone" or "error" (`detail` says why)."""

    suspect: Suspect
    how: str
    case: Case | None
    detail: str = ""
    seconds: float = 0.0


def examine(suspect: Suspect, device: str, limit_s: float, seconds: float) -> Evidence:
    """Confirm and minimise a suspect; minimising takes at most about `seconds`. Never fails."""
    started, limit_s = time.monotonic(), suspect.limit_s or limit_s
    case = None
    try:
        case = read(suspect.path)
        how, case, detail = _examine(suspect, case, device, limit_s, seconds)
    except Exception as error:  # in a thread: whatever it is must reach the user, with the case
        how, detail = "error", f"{type(error).__name__}: {error}"
    return Evidence(suspect, how, case, detail, time.monotonic() - started)


def _examine(suspect: Suspect, case: Case, device: str, limit_s: float, seconds: float) -> tuple[str, Case, str]:
    worker = child.start(suspect.target, device)
    try:
        command = messages.Confirm(case=encode(case).decode(), limit_s=limit_s, preceding=suspect.preceding)
        confirmed = child.ask(worker, command, 5 * ANSWER_S + 20 * limit_s)
        if not isinstance(confirmed, messages.Confirmed):
            return "error", case, getattr(confirmed, "message", f"unexpected answer {confirmed}")
        if confirmed.how != "failed":
            return confirmed.how, case, confirmed.detail
        if confirmed.case:  # something is kept in the process: candidates that share one say nothing
            return _minimise(worker, decode(confirmed.case.encode()), limit_s, seconds, together=False)
        return _minimise(worker, case, limit_s, seconds)
    finally:
        worker.stop()


def _minimise(
    worker: child.Child, case: Case, limit_s: float, seconds: float, *, together: bool = True
) -> tuple[str, Case, str]:
    """The smallest case that still fails in a fresh process: tried together first, then each candidate by itself."""
    for isolated in (False, True) if together else (True,):
        text = encode(case).decode()
        command = messages.Minimise(case=text, limit_s=limit_s, seconds=seconds, isolated=isolated)
        try:
            reply = child.ask(worker, command, ANSWER_S + seconds + 6 * limit_s)
        except child.Ended:
            break
        if isinstance(reply, messages.Smaller):
            smaller = decode(reply.case.encode())
            if reply.missed:
                return "flaky", case, NOT_EACH_TIME.format(reply.missed, REPEATS - 1)
            if reply.held or isolated:
                return "finding", smaller, ""
    return "finding", case, "it could not be made smaller"


def minimised(case: Case, device: str, limit_s: float, seconds: float) -> Case:
    """A smaller case. Raises `UsageError` where the case does not fail here, or not each time."""
    worker = child.start(case.target, device)
    try:
        command = messages.Confirm(case=encode(case).decode(), limit_s=limit_s)
        confirmed = child.ask(worker, command, ANSWER_S + 6 * limit_s)
        if isinstance(confirmed, messages.Confirmed) and confirmed.how == "failed":
            how, smaller, why = _minimise(worker, case, limit_s, seconds)
            if how == "flaky":
                raise UsageError(
                    f"the case breaks {case.property} on {case.target} by chance here ({why}): nothing to minimise"
                )
            return smaller
        if isinstance(confirmed, messages.Unusable):
            raise UsageError(confirmed.message)
        what = getattr(confirmed, "detail", "")
        raise UsageError(f"the case does not break {case.property} on {case.target} here ({what}): nothing to minimise")
    except child.Ended as how:
        raise UsageError(f"{case.target}: {how}") from None
    finally:
        worker.stop()
