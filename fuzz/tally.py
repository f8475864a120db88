"""What a campaign did to one target, and which of its cases are still to be run."""

from __future__ import annotations

from typing import Annotated

import msgspec

from fuzz import messages

BLOCK = 64
"""Cases handed out at a time: workers take blocks, so that each case is run once, whatever their number."""

Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
"""A number that a file may hold: more than any campaign reaches, and exact in any reader of JSON."""
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e12)]


class Tally(msgspec.Struct):
    """Counters of one target. `open` are half-open ranges of cases that were handed out and not finished.

    `cases` are generated ones; `saved` counts the saved traces that were run before them.
    """

    cases: Count = 0
    saved: Count = 0
    operations: Count = 0
    refused: Count = 0
    busy_s: Seconds = 0.0
    judged: dict[str, Count] = {}
    marks: dict[str, Count] = {}
    broken: dict[str, Count] = {}
    restarts: Count = 0
    next_block: Count = 0
    open: list[tuple[Count, Count]] = []

    def add(self, counts: messages.Counts, *, saved: bool = False) -> None:
        """Add what a worker reports, of generated cases or of saved traces."""
        if saved:
            self.saved += counts.cases
        else:
            self.cases += counts.cases
        self.operations += counts.operations
        self.refused += counts.refused
        self.busy_s += counts.busy_s
        for mine, more in ((self.judged, counts.judged), (self.marks, counts.marks), (self.broken, counts.broken)):
            for key, count in more.items():
                mine[key] = mine.get(key, 0) + count

    def problem(self, most: int) -> str:
        """What cannot be true of these counters, which were read from a file; "" if they may be. `most` cases in all."""
        if self.next_block > most // BLOCK:
            return f"next_block {self.next_block} is beyond the {most} cases of a campaign"
        for first, stop in self.open:
            if not 0 <= first < stop <= min(first + BLOCK, self.next_block * BLOCK):
                return f"open has [{first}, {stop}), which was never handed out"
        if self.refused > self.operations:
            return f"{self.refused} refused operations of {self.operations}"
        return ""

    @property
    def began(self) -> bool:
        """Whether anything was run."""
        return self.cases + self.saved > 0

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
        for number, (first, stop) in enumerate(self.open):
            if most is None or stop <= most:
                return self.open.pop(number)
            if first < most:
                self.open[number] = (most, stop)
                return first, most
        first = self.next_block * BLOCK
        stop = first + BLOCK if most is None else min(first + BLOCK, most)
        if first >= stop:
            return None
        self.next_block += 1
        return first, stop

    def with_open(self, more: list[tuple[int, int]]) -> Tally:
        """The same counters, with these ranges among those that are still to be run."""
        left = [(first, stop) for first, stop in more if first < stop]
        return msgspec.structs.replace(self, open=[*left, *self.open])

    def give_back(self, first: int, stop: int) -> None:
        """Cases that were handed out and not run."""
        if first < stop:
            self.open.insert(0, (first, stop))
