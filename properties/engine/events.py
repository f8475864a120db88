"""Reading a history: lines to events, each with its line number, and each step with the tokens that it will sample.

What is wrong with the *file* is told apart from what is wrong with the engine: a line that cannot be read, an event that
contradicts those before it, a history that ends in the middle.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import msgspec

from properties.contract import UsageError
from properties.engine.history import FORMAT, VERSION, Event, Finished, HistoryEvent, Opened, Stepped

MOST_AHEAD = 100_000
"""Events between the launch of a step and its end at most: beyond that the step was never finished."""
MOST_SLOTS = 1 << 26
"""Slots of the largest pool; each takes about a hundred bytes once it is written."""


MOST_LINE = 64 << 20
"""Bytes of the longest line."""
MOST_PROMPT = 1 << 24
"""Tokens of the longest prompt."""
_OTHER_FILES = {
    b"\x1f\x8b": "It is packed with gzip: gzip -dc FILE | pagefault judge -",
    b"PK": "It is a zip file: unpack it first",
    b"(\xb5": "It is packed with zstd: zstd -dc FILE | pagefault judge -",
    b"\xef\xbb": "It begins with a byte order mark: write UTF-8 without one",
    b"\xff\xfe": "It is UTF-16: write UTF-8",
    b"\xfe\xff": "It is UTF-16: write UTF-8",
}
"""First two bytes of a file that is no JSON Lines -> what to do."""


class HistoryError(UsageError):
    """The history itself is wrong: cut, out of order, or inconsistent. Says nothing about the engine."""

    def __init__(self, line: int, problem: str, remedy: str) -> None:
        super().__init__(f"line {line}: {problem}. {remedy}")
        self.line = line


@dataclass(slots=True)
class Line:
    """One event, where it stands, and for a step: the tokens that its `finish` has, None if it was never finished."""

    number: int
    event: Event
    tokens: list[int] | None = None


class Reader:
    """Events of a history, in order. `cut` says why, where the history ends without a `close`."""

    def __init__(self, lines: Iterable[bytes]) -> None:
        self._lines = enumerate(lines, 1)
        self._decoder = msgspec.json.Decoder(HistoryEvent)
        self._ahead: deque[Line] = deque()
        self._tokens: dict[int, list[int]] = {}
        self._over = False
        self.cut: str | None = None

    def opened(self) -> Opened:
        """The first event. Raises `HistoryError`."""
        line = self._read()
        if line is None:
            what = "its only line is no whole JSON object" if self.cut else "the history is empty"
            raise HistoryError(1, what, "Each line is one JSON object, and the first event is open")
        event = line.event
        if not isinstance(event, Opened):
            raise HistoryError(
                line.number, "the first event is not open", "It says the format and the sizes of the system"
            )
        if event.format != FORMAT:
            raise HistoryError(line.number, f"format is {event.format!r}, not {FORMAT!r}", "See docs/history.md")
        if event.version != VERSION:
            raise HistoryError(
                line.number, f"version is {event.version}, this pagefault reads {VERSION}", "Upgrade pagefault"
            )
        for name in ("block_size", "num_blocks", "max_tokens_per_step", "max_rows", "max_in_flight"):
            if getattr(event, name) < 1:
                raise HistoryError(line.number, f"{name} is {getattr(event, name)}", "It must be at least 1")
        if event.window is not None and event.window < 1:
            raise HistoryError(line.number, f"window is {event.window}", "It must be at least 1, or left out")
        for name in ("num_host_blocks", "max_idle_steps", "look_ahead", "num_sinks"):
            if getattr(event, name) < 0:
                raise HistoryError(line.number, f"{name} is {getattr(event, name)}", "It must not be negative")
        self._check_reserved(line.number, event)
        num_slots = max(event.num_blocks, event.num_host_blocks) * event.block_size
        if num_slots > MOST_SLOTS:
            raise HistoryError(line.number, f"the pool has {num_slots} slots", f"At most {MOST_SLOTS} can be followed")
        return event

    def _check_reserved(self, number: int, event: Opened) -> None:
        outside = [block for block in event.reserved_blocks if not 0 <= block < event.num_blocks]
        if outside:
            raise HistoryError(number, f"block {outside[0]} is reserved", f"Blocks go from 0 to {event.num_blocks - 1}")
        if len(set(event.reserved_blocks)) == event.num_blocks:
            raise HistoryError(number, f"all {event.num_blocks} blocks are reserved", "Some must be left for requests")

    def __iter__(self) -> Iterator[Line]:
        """The events behind the first. Raises `HistoryError` at the line that is wrong."""
        while True:
            line = self._ahead.popleft() if self._ahead else self._read()
            if line is None:
                return
            if isinstance(line.event, Stepped):
                line.tokens = self._sampled(line)
            yield line

    def _sampled(self, line: Line) -> list[int] | None:
        """What a step samples stands in its `finish`, further down. Reads ahead as far as that."""
        event = line.event
        assert isinstance(event, Stepped)
        if not any(row.samples for row in event.rows):
            return []
        while event.step not in self._tokens:
            if len(self._ahead) > MOST_AHEAD:
                raise HistoryError(
                    line.number, f"step {event.step} is not finished within {MOST_AHEAD} events", "Write finish"
                )
            ahead = self._read()
            if ahead is None:
                return None
            self._ahead.append(ahead)
            if isinstance(ahead.event, Finished) and ahead.event.step == event.step and not ahead.event.tokens:
                return []
        return self._tokens.pop(event.step)

    def _read(self) -> Line | None:
        """The next event of the file; keeps the tokens of each `finish` until its step asks for them."""
        if self._over:
            return None
        for number, text in self._lines:
            if not text.strip():
                continue
            line = self._decoded(number, text)
            if line is None:
                break
            if isinstance(line.event, Finished) and line.event.tokens:
                self._tokens[line.event.step] = line.event.tokens
            return line
        self._over = True
        return None

    def _decoded(self, number: int, text: bytes) -> Line | None:
        if len(text) > MOST_LINE:
            raise HistoryError(
                number, f"it is longer than {MOST_LINE >> 20} MiB", "Each event stands on a line of its own"
            )
        if number == 1 and text[:2] in _OTHER_FILES:
            raise HistoryError(number, "not JSON", _OTHER_FILES[text[:2]])
        try:
            return Line(number, self._decoder.decode(text))
        except msgspec.ValidationError as error:
            raise HistoryError(
                number, f"not an event: {error}", "docs/history.schema.json has the form of each"
            ) from None
        except RecursionError:
            raise HistoryError(
                number, "not an event: it is nested too deeply", "Each line is one flat object"
            ) from None
        except msgspec.DecodeError as error:
            if text.endswith(b"\n"):
                raise HistoryError(number, f"not JSON: {error}", "Each line is one JSON object") from None
            self.cut = f"line {number} is cut off"
            return None
