"""What the model knows of an engine while a trace runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from paged_ref.ownership import LiveSequence
from properties.blocks.state import State
from properties.engine.operations import EngineGeometry
from properties.engine.protocol import EngineCapabilities, Row, Step
from properties.wording import counted


@dataclass(slots=True)
class Request(LiveSequence):
    """One request. `tokens` and `runs` hold its prompt and all that was sampled for it, in flight or told already.

    Positions below `computed` are claimed to be written at its present slots; those below `verified` were found right, and
    no write has touched them since. `arriving` is set until the first row on its present blocks: that row's `start` says
    what was taken from the cache. `new_blocks` are those of its blocks of which that is not known yet. `away` says how it
    lost its blocks the last time, at launch number `left_at`. `forked` is set while all its blocks are those of the fork,
    `twice` while it has a slot at two positions, so that its writes may go over what it has written.
    """

    prompt: int = 0
    max_new_tokens: int = 0
    reply: list[int] = field(default_factory=list)
    sampled: int = 0
    told: int = 0
    verified: int = 0
    arriving: bool = True
    away: str = ""
    forked: bool = False
    twice: bool = False
    left_at: int = 0
    new_blocks: tuple[int, ...] = ()


@dataclass(slots=True)
class Flight:
    """A step in flight: what the target returned, and the token of each row that samples, in row order."""

    number: int
    step: Step
    sampled: list[tuple[str, int]]


MOST_STEPS = 4
"""Steps of one operation that are told: the last ones."""


def rows_in_words(rows: Sequence[Row]) -> str:
    """The rows of a step: whose positions were computed, and who samples.

    >>> rows_in_words([Row("A", 0, 4, True), Row("B", 2, 4, False)])
    'A [0, 4) samples, B [2, 4)'
    """
    told = [f"{row.name} [{row.start}, {row.stop}){' samples' if row.samples else ''}" for row in rows]
    return ", ".join(told) or "no rows"


def _joined(steps: list[str]) -> str:
    left_out = len(steps) - MOST_STEPS
    before = [counted(left_out, "step")] if left_out > 0 else []
    return "; then ".join(before + steps[-MOST_STEPS:])


class EngineState(State):
    """The model's side of one trace on an engine.

    `requests` are the live ones (the same as `live`). `ended` are the names that were live once. `from_host[block]` is the
    launch that filled the block from host memory, `taker[block]` the request that it was last handed to. `since_progress`
    counts steps since a token was told or the set of requests changed; `idle` the last empty steps in a row with nothing
    in flight. `tables_told`: some step of this trace came with block tables.
    """

    geometry: EngineGeometry
    capabilities: EngineCapabilities

    def __init__(self, geometry: EngineGeometry, capabilities: EngineCapabilities, offers: frozenset[str]) -> None:
        super().__init__(geometry, capabilities, offers)
        self.requests: dict[str, Request] = {}
        self.live = self.requests  # type: ignore[assignment]  # the judges of the pool read it, and change nothing
        self.ended: dict[str, int] = {}
        self.flights: list[Flight] = []
        self.from_host: dict[int, int] = {}
        self.taker: dict[int, str] = {}
        self.num_launched = 0
        self.since_progress = 0
        self.idle = 0
        self.tables_told = False
        self.launched: list[tuple[int, tuple[Row, ...]]] = []
        """Operation and rows of every step that was launched for it."""
        self.filling = False
        """The request that fills the pool is running: what blocks it now is a leak (ALLOC-5)."""

    @property
    def outcomes(self) -> dict[int, str]:
        """Operation -> what it came to: a refusal, or the rows that were computed."""
        rows: dict[int, list[str]] = {}
        for operation, step in self.launched:
            rows.setdefault(operation, []).append(rows_in_words(step))
        return self.refusals | {operation: _joined(steps) for operation, steps in rows.items()}

    def first_read(self, position: int) -> int:
        """The first position, sinks apart, that the query at `position` reads: 0, or where its window begins."""
        window = self.geometry.window
        return 0 if window is None else max(0, position - window + 1)

    def is_read(self, position: int, start: int) -> bool:
        """Whether a row that starts at `start` reads a position before it: inside its window, or a sink."""
        return position >= self.first_read(start) or position < self.geometry.num_sinks

    def blocks_for_request(self, num_prompt: int, num_new: int) -> int:
        """Blocks that a request needs at its end: the last token is sampled, but its KV is never computed."""
        return self.blocks_for(num_prompt + num_new - 1)

    @property
    def room(self) -> int:
        """Blocks that one request may have at most."""
        return len(self.usable) - self.capabilities.watermark_blocks

    def can_ever_fit(self, num_prompt: int, num_new: int) -> bool:
        """Whether a request of that size can be served with the whole pool to itself."""
        most = self.capabilities.max_tokens
        if most is not None and num_prompt + num_new > most:
            return False
        return self.blocks_for_request(num_prompt, num_new) <= self.room
