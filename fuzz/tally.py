"""What a campaign did to one target, and which of its cases are still to be run."""

from __future__ import annotations

import msgspec

from fuzz import messages

BLOCK = 64
"""Cases handed out at a time: workers take blocks, so that each case is run once, whatever their number."""


class Tally(msgspec.Struct):
    """Counters of one target. `open` are half-open ranges of cases that were handed out and not finished."""

    cases: int = 0
    operations: int = 0
    refused: int = 0
    busy_s: float = 0.0
    judged: dict[str, int] = {}
    marks: dict[str, int] = {}
    broken: dict[str, int] = {}
    restarts: int = 0
    flaky: dict[str, int] = {}
    next_block: int = 0
    open: list[tuple[int, int]] = []

    def add(self, counts: messages.Counts) -> None:
        """Add what a worker reports."""
        self.cases += counts.cases
        self.operations += counts.operations
        self.refused += counts.refused
        self.busy_s += counts.busy_s
        for mine, more in ((self.judged, counts.judged), (self.marks, counts.marks), (self.broken, counts.broken)):
            for key, count in more.items():
                mine[key] = mine.get(key, 0) + count

    @property
    def per_second(self) -> float:
        """Judged operations a second of a worker's time."""
        return self.operations / self.busy_s if self.busy_s else 0.0

    @property
    def succeeded(self) -> float:
        """Share of operations that were not refused."""
        return 1 - self.refused / self.operations if self.operations else 0.0

    def take(self, most: int | None) -> tuple[int, int] | None:
        """The next range of cases, below `most`; None where there is none left."""
        if self.open:
            return self.open.pop(0)
        first = self.next_block * BLOCK
        stop = first + BLOCK if most is None else min(first + BLOCK, most)
        if first >= stop:
            return None
        self.next_block += 1
        return first, stop

    def give_back(self, first: int, stop: int) -> None:
        """Cases that were handed out and not run."""
        if first < stop:
            self.open.insert(0, (first, stop))
