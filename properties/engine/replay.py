"""The referee on a recorded history: the same clauses and explanations, after the fact, in memory that does not grow."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from properties.blocks import pool
from properties.contract import AdapterError, Breach
from properties.engine.events import MOST_PROMPT, HistoryError, Line, Reader
from properties.engine.history import (
    Cancelled,
    Closed,
    Finished,
    Forked,
    Opened,
    Stepped,
    Submitted,
    engine_row,
)
from properties.engine.operations import EngineGeometry, Submit
from properties.engine.protocol import EngineCapabilities, Step, StepBatch
from properties.engine.referee import EngineReferee
from properties.engine.state import Flight
from properties.protocol import Copy
from properties.wording import counted

MOST_RUNS = 200_000
"""Interned token runs before those that nothing refers to any more are dropped; then twice what is left."""
TIDY_EVERY = 4096
"""Events between two looks at what can be dropped."""
BATCH_FIELDS = StepBatch._fields


class _Recorded:
    """What the referee asks of a target, answered from the history."""

    def __init__(self, opened: Opened) -> None:
        self.capabilities = EngineCapabilities(
            same_step_sharing=opened.same_step_sharing,
            reserved_blocks=tuple(opened.reserved_blocks),
            chunked_prefill=True,
            max_idle_steps=opened.max_idle_steps,
            look_ahead=opened.look_ahead,
            max_in_flight=opened.max_in_flight,
            salts=True,
            window=True,
            oversized="refused",
            cached_overlaps_free=True,
        )
        self.names: set[str] = set()
        self.known: dict[str, Sequence[int]] = {}

    def open(self, config: EngineGeometry) -> None:
        """Nothing: the engine has run."""

    submit = step = finish = open

    def live(self) -> set[str]:
        return self.names

    def slots(self, name: str) -> Sequence[int]:
        return self.known.get(name, ())


class _HistoryReferee(EngineReferee):
    """Looks only at requests whose slots the last event gave: the others have not changed."""

    def __init__(self, recorded: _Recorded, geometry: EngineGeometry) -> None:
        self.moved: dict[str, Sequence[int]] = {}
        super().__init__(recorded, geometry)

    def _look(self) -> None:
        if not self.moved:
            return
        grown = []
        for name, slots in self.moved.items():
            request = self.state.requests.get(name)
            if request is not None:
                old = request.blocks
                self._moved(request, slots)
                grown.append((request, old))
        self.moved = {}
        for request, old in grown:
            if not request.arriving:
                self._take(request, [block for block in request.blocks if block not in old])


@dataclass
class HistoryVerdict:
    """What judging a history gave.

    `breaches` are the clauses broken, each once, with the line of the event. `error` is set where the history itself is
    wrong; what stands before that line was judged. `cut` says why a history that is not wrong is not whole.
    """

    breaches: list[tuple[Breach, int]] = field(default_factory=list)
    num_events: int = 0
    num_steps: int = 0
    num_requests: int = 0
    live: list[str] = field(default_factory=list)
    judged: dict[str, int] = field(default_factory=dict)
    error: HistoryError | None = None
    cut: str | None = None
    engine: str = ""


def judge_history(lines: Iterable[bytes], progress: Callable[[int], None] = lambda number: None) -> HistoryVerdict:
    """Judge a history, line by line. `progress` is called with line numbers now and then. Nothing is raised for the file."""
    verdict = HistoryVerdict()
    try:
        _Judge(Reader(lines), verdict, progress).run()
    except HistoryError as error:
        verdict.error = error
    return verdict


class _Judge:
    """Plays one history."""

    def __init__(self, reader: Reader, verdict: HistoryVerdict, progress: Callable[[int], None]) -> None:
        self.reader = reader
        self.verdict = verdict
        self.progress = progress
        opened = reader.opened()
        self.block_size = opened.block_size
        self.recorded = _Recorded(opened)
        self.referee = _HistoryReferee(
            self.recorded,
            EngineGeometry(
                block_size=opened.block_size,
                num_blocks=opened.num_blocks,
                num_host_blocks=opened.num_host_blocks,
                max_tokens_per_step=opened.max_tokens_per_step,
                max_rows=opened.max_rows,
                max_in_flight=opened.max_in_flight,
                window=opened.window,
                num_sinks=opened.num_sinks,
            ),
        )
        self.state = self.referee.state
        self.most_runs = MOST_RUNS
        self.flights: dict[int, Flight] = {}
        self.last_step: int | None = None
        self.closed = False
        verdict.engine = opened.engine

    def run(self) -> None:
        """To the end, or to the line that is wrong."""
        verdict, breaches = self.verdict, self.state.breaches
        try:
            for line in self.reader:
                self.state.step = line.number
                seen = len(breaches)
                self._event(line)
                if len(breaches) > seen:
                    verdict.breaches += [(breach, line.number) for breach in breaches[seen:]]
                verdict.num_events += 1
                if not verdict.num_events % TIDY_EVERY:
                    self._tidy()
                    self.progress(line.number)
                if verdict.cut:
                    break
        finally:
            verdict.live = list(self.state.requests)
            verdict.judged = {id: count for id, count in self.state.judged.items() if count}
        if not self.closed and verdict.cut is None:
            verdict.cut = self.reader.cut or "there is no close event"

    def _event(self, line: Line) -> None:
        if self.closed:
            raise HistoryError(line.number, "an event stands behind close", "close is the last one")
        try:
            handler = _HANDLERS.get(type(line.event))
            if handler is None:
                raise HistoryError(
                    line.number, "a second open event", "Write each run of an engine to a file of its own"
                )
            handler(self, line, line.event)
        except AdapterError as error:
            raise HistoryError(line.number, error.problem, "The history contradicts itself") from None

    def _submit(self, line: Line, event: Submitted) -> None:
        self.verdict.num_requests += 1
        self._check_request(line, event)
        state = self.state
        if event.refused is not None:
            if event.name not in state.requests:
                fits = state.can_ever_fit(len(event.tokens), event.max_new_tokens)
                reply = (0,) * event.max_new_tokens if fits else ()  # what fits is short
                self.referee._refused(Submit(event.name, tuple(event.tokens), reply, event.salt), event.refused, fits)
            return
        if event.name in state.requests:
            raise HistoryError(line.number, f"a second request {event.name} while one is live", "Names are unique")
        self.recorded.names.add(event.name)
        self.referee._add(event.name, event.tokens, event.max_new_tokens, (), event.salt)

    def _fork(self, line: Line, event: Forked) -> None:
        state = self.state
        if event.name not in state.requests:
            raise HistoryError(
                line.number, f"request {event.name!r} is forked, but it is not live", "It has ended already?"
            )
        if event.child in state.requests:
            raise HistoryError(line.number, f"a second request {event.child} while one is live", "Names are unique")
        if event.max_new_tokens < 1:
            raise HistoryError(line.number, f"max_new_tokens is {event.max_new_tokens}", "Give at least 1")
        if any(row.name == event.name for flight in state.flights for row in flight.step.rows):
            what = f"request {event.name!r} is forked while a step of it is in flight"
            raise HistoryError(line.number, what, "What it has is known when that is finished")
        self.verdict.num_requests += 1
        self.recorded.names.add(event.child)
        self.referee.forked(event.name, event.child, event.max_new_tokens, ())

    def _check_request(self, line: Line, event: Submitted) -> None:
        name, tokens = event.name, event.tokens
        if not tokens or event.max_new_tokens < 1:
            what = f"request {name} has {counted(len(tokens), 'token')}, {event.max_new_tokens} new"
            raise HistoryError(line.number, what, "Give at least one of each")
        if len(tokens) > MOST_PROMPT:
            raise HistoryError(
                line.number,
                f"request {name} has {counted(len(tokens), 'token')}",
                f"At most {MOST_PROMPT} can be followed",
            )
        if min(tokens) < 0:
            raise HistoryError(line.number, f"request {name} has the token {min(tokens)}", "Tokens are not negative")

    def _step(self, line: Line, event: Stepped) -> None:
        state = self.state
        if self.last_step is not None and event.step <= self.last_step:
            raise HistoryError(line.number, f"step {event.step} comes after step {self.last_step}", "Step numbers rise")
        self.last_step = event.step
        self._check_rows(line, event)
        sampling = [row.name for row in event.rows if row.samples]
        if line.tokens is None:
            self.verdict.cut = self.reader.cut or f"step {event.step} (line {line.number}) is never finished"
            return
        if len(line.tokens) != len(sampling):
            raise HistoryError(
                line.number,
                f"step {event.step} samples {counted(len(sampling), 'token')}, its finish has {len(line.tokens)}",
                "One a row",
            )
        if line.tokens and min(line.tokens) < 0:
            raise HistoryError(
                line.number, f"step {event.step} samples the token {min(line.tokens)}", "Tokens are not negative"
            )
        for name, token in zip(sampling, line.tokens, strict=True):
            request = state.requests.get(name)
            if request is not None and request.sampled < request.max_new_tokens:
                request.reply.append(token)
        self._take_slots(line, event)
        self.verdict.num_steps += 1
        copies = [Copy(copy.src, copy.dst, copy.src_space, copy.dst_space) for copy in event.copies]  # type: ignore[arg-type]
        for copy in event.copies:
            if {copy.src_space, copy.dst_space} - {"device", "host"}:
                raise HistoryError(line.number, f"{copy} names an unknown memory space", 'Use "device" or "host"')
        step = Step([engine_row(row) for row in event.rows], copies)
        flight = self.referee.play(step, _batch_of(event))
        if flight is not None:
            self.flights[event.step] = flight
        if event.free_blocks is not None:
            self._judge_free(event.free_blocks)

    def _judge_free(self, free: list[int]) -> None:
        state = self.state
        if not any(row.name not in state.requests for flight in state.flights for row in flight.step.rows):
            state.free = free
            pool.judge_free(state, free)

    def _check_rows(self, line: Line, event: Stepped) -> None:
        for row in event.rows:
            if not 0 <= row.start <= row.stop:
                raise HistoryError(line.number, f"row {list(row)} is backward or negative", "Give start <= stop")
            if row.name not in self.state.requests and row.name not in self.state.ended:
                raise HistoryError(
                    line.number, f"a row of {row.name!r}, which was never submitted", "Write submit first"
                )

    def _finish(self, line: Line, event: Finished) -> None:
        flight = self.flights.pop(event.step, None)
        if flight is None:
            what = (
                "was finished before"
                if self.last_step is not None and event.step <= self.last_step
                else "was not launched"
            )
            if not event.tokens and what == "was finished before":
                return  # a step without rows
            raise HistoryError(line.number, f"step {event.step} {what}", "One finish for each step, behind it")
        self.state.flights.remove(flight)
        self._take_slots(line, event)
        if len(set(event.ended)) != len(event.ended):
            raise HistoryError(line.number, f"a request ends twice: {event.ended}", "Name each once")
        for name in event.ended:
            if name not in self.state.requests:
                raise HistoryError(
                    line.number, f"request {name!r} ends, but it is not live", "Names of live requests only"
                )
        before = [name for name, _ in flight.sampled]
        self.referee.tell(flight)
        for name in event.ended:
            if name in self.state.requests:
                self.referee._end(name, "released by")
        for name in {*before, *event.ended}:
            if name not in self.state.requests:
                self._forget(name)

    def _cancel(self, line: Line, event: Cancelled) -> None:
        if event.name not in self.state.requests:
            raise HistoryError(
                line.number, f"request {event.name!r} is cancelled, but it is not live", "It has ended already?"
            )
        self.referee._end(event.name, "cancelled:")
        self._forget(event.name)

    def _close(self, line: Line, event: Closed) -> None:
        self.closed = True

    def _forget(self, name: str) -> None:
        self.recorded.names.discard(name)
        self.recorded.known.pop(name, None)

    def _take_slots(self, line: Line, event: Stepped | Finished) -> None:
        both = event.tables.keys() & event.slots.keys()
        if both:
            raise HistoryError(
                line.number, f"both a table and slots of {min(both)!r}", "Give tables, or slots without tables"
            )
        for name, table in event.tables.items():
            self._moved(line, name, self._slots_of(table))
        for name, slots in event.slots.items():
            self._moved(line, name, tuple(slots))

    def _slots_of(self, table: Sequence[int]) -> tuple[int, ...]:
        """As `slots_from_table`, which would remember thousands of long tables."""
        size = self.block_size
        return tuple([slot for block in table for slot in _block_slots(block, size)])

    def _moved(self, line: Line, name: str, slots: Sequence[int]) -> None:
        if name not in self.state.requests:
            raise HistoryError(
                line.number, f"a table of {name!r}, which is not live", "Give tables of live requests only"
            )
        self.recorded.known[name] = slots
        self.referee.moved[name] = slots

    def _tidy(self) -> None:
        """Drop token runs that no slot holds and no live request needs."""
        state = self.state
        if len(state.runs) <= self.most_runs:
            return
        keep = [*state.shadow.run, *state.host.run]
        for request in state.requests.values():
            keep += request.runs
        state.runs.prune(keep)
        self.most_runs = max(MOST_RUNS, 2 * len(state.runs))


def _block_slots(block: int, size: int) -> Sequence[int]:
    return range(block * size, (block + 1) * size) if block >= 0 else (-1,) * size


def _batch_of(event: Stepped) -> StepBatch | None:
    found = [getattr(event, name) for name in BATCH_FIELDS]
    return StepBatch(*found) if any(value is not None for value in found) else None


_Handler = Callable[[_Judge, Line, Any], None]
_HANDLERS: dict[type, _Handler] = {
    Submitted: _Judge._submit,
    Forked: _Judge._fork,
    Stepped: _Judge._step,
    Finished: _Judge._finish,
    Cancelled: _Judge._cancel,
    Closed: _Judge._close,
}
