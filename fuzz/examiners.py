"""Suspects wait here for a thread that confirms and minimises them, one at a time, while the workers go on."""

from __future__ import annotations

import queue
import threading
from collections import deque

from fuzz.evidence import Evidence, Suspect, examine, is_first

FIRST_S = 20.0
"""Seconds that minimising the first case of a clause may take."""
LATER_S = 8.0
"""Seconds for a later one: another fault may stand behind the same clause."""
LATER_SHARE = 0.2
"""Share of the time that later cases may take in all."""
MOST_LATER = 8
"""Later suspects that wait; more are let go, since the next power of two brings another."""


class Examiners:
    """One thread, started when there is something to do. Later cases wait until they fit their share of the time."""

    def __init__(self, device: str, limit_s: float) -> None:
        self._device, self._limit_s = device, limit_s
        self._first: deque[Suspect] = deque()
        self._later: deque[Suspect] = deque()
        self._in: queue.SimpleQueue[tuple[Suspect, float] | None] = queue.SimpleQueue()
        self._out: queue.SimpleQueue[Evidence] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._current: Suspect | None = None
        self._later_s = 0.0
        self._forgotten: set[str] = set()

    @property
    def busy(self) -> bool:
        """Whether a first case is waiting or being examined."""
        return bool(self._first) or (self._current is not None and self._current.target not in self._forgotten)

    @property
    def urgent(self) -> int:
        """First cases of their clause that nothing is known about yet."""
        return len(self._first) + (self._current is not None and is_first(self._current))

    @property
    def waiting(self) -> int:
        """Suspects that nothing is known about yet."""
        return len(self._first) + len(self._later) + (self._current is not None)

    def add(self, suspect: Suspect, elapsed_s: float) -> None:
        """A new suspect."""
        if suspect.target in self._forgotten:
            suspect.path.unlink(missing_ok=True)
            return
        if is_first(suspect):
            self._first.append(suspect)
        elif len(self._later) < MOST_LATER:
            self._later.append(suspect)
        else:
            suspect.path.unlink(missing_ok=True)
        self._go_on(elapsed_s)

    def done(self, elapsed_s: float) -> list[Evidence]:
        """What has been found out since the last call."""
        found = []
        while not self._out.empty():
            evidence = self._out.get()
            self._current = None
            if not is_first(evidence.suspect):
                self._later_s += evidence.seconds
            found.append(evidence)
        self._go_on(elapsed_s)
        return found

    def forget(self, target: str) -> None:
        """The adapter of that target is broken: nothing that it broke is worth knowing."""
        self._forgotten.add(target)
        for waiting in (self._first, self._later):
            for suspect in [suspect for suspect in waiting if suspect.target == target]:
                waiting.remove(suspect)
                suspect.path.unlink(missing_ok=True)

    def drop_later(self) -> None:
        """Time is up: only first cases are still worth it."""
        for suspect in self._later:
            suspect.path.unlink(missing_ok=True)
        self._later.clear()

    def close(self) -> None:
        """No more work; what is being examined is left to its own end."""
        self._in.put(None)

    def _go_on(self, elapsed_s: float) -> None:
        if self._current is not None:
            return
        if self._first:
            self._begin(self._first.popleft(), FIRST_S)
        elif self._later and self._later_s <= LATER_SHARE * elapsed_s:
            self._begin(self._later.popleft(), LATER_S)

    def _begin(self, suspect: Suspect, seconds: float) -> None:
        self._current = suspect
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="examiner", daemon=True)
            self._thread.start()
        self._in.put((suspect, seconds))

    def _work(self) -> None:
        while (job := self._in.get()) is not None:
            self._out.put(examine(job[0], self._device, self._limit_s, job[1]))
