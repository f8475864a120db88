"""How long a supervisor waits for a worker before it takes its target for hung."""

from __future__ import annotations

from typing import NamedTuple

from fuzz.campaign_state import Worker
from fuzz.child import READY_LIMIT_S
from fuzz.values import DEFAULT_LIMIT_S
from properties.targets import BUILTIN, WITH_PATH
from properties.wording import unreturned

STUCK_S = 2.0
"""Seconds after which a call that has not returned when the time is up is waited for."""
MOVES, LONGER = 20, 20
"""Once the journal was seen to move so often, a call may take so many times the longest time between two such moments."""
LEAST_CONFIRM_S = 15.0
"""Seconds that a call may take at least when a hang is confirmed: once more, and not by accident."""


class Overdue(NamedTuple):
    """how: what is said of it. confirm_s: seconds a call gets when that is confirmed; None = those of every call."""

    how: str
    confirm_s: float | None = None


def overdue(worker: Worker, given_s: float) -> Overdue | None:
    """Whether a worker has been silent for too long. given_s: the limit that the user gave (or its default)."""
    if worker.child.ready is None:
        limit_s = _to_be_ready(worker)
        return Overdue(unreturned(limit_s)) if worker.child.making_s() > limit_s else None
    limit_s = _of_a_call(worker, given_s)
    if worker.busy is None or worker.child.silent_s(worker.journal) <= limit_s:
        return None
    shown = limit_s < worker.run.limit_s  # by other calls, not by the user: confirmed with more time
    return Overdue(unreturned(limit_s), max(LEAST_CONFIRM_S, 1.5 * limit_s) if shown else None)


def is_stuck(worker: Worker) -> bool:
    """Whether it seems to be in a call that does not return."""
    silent = worker.busy is not None and worker.child.ready is not None
    return silent and worker.child.silent_s(worker.journal) > STUCK_S


def _of_a_call(worker: Worker, given_s: float) -> float:
    """Seconds for a call. The limit of a level of slow calls is for the slowest targets: others show what they need."""
    child, most = worker.child, worker.run.limit_s
    if given_s != DEFAULT_LIMIT_S or child.num_moves < MOVES:
        return most
    return min(most, max(DEFAULT_LIMIT_S, round(LONGER * child.longest_s, 1)))


def _to_be_ready(worker: Worker) -> float:
    """How long a target may be imported, or its adapter be made."""
    child, ours = worker.child, {*BUILTIN, *WITH_PATH}
    if child.making is None or worker.run.name.partition(":")[0] in ours:
        return READY_LIMIT_S
    return max(worker.run.limit_s, child.making.limit_s)
