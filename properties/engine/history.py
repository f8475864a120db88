"""The history of an engine: its event stream as JSON Lines, to be judged after the fact. `docs/history.md` explains it.

An engine in any language writes one event a line, in the order in which things happened. `Recorder` writes one for a target.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, BinaryIO, NamedTuple

import msgspec

from properties.engine.operations import EngineGeometry
from properties.engine.protocol import Row, Step, StepBatch, offered
from properties.protocol import Copy

FORMAT = "pagefault history"
VERSION = 1
Whole = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
"""A whole number of 64 bits: what lies outside is a mistake of the writer, and of no engine."""


class Event(msgspec.Struct, tag_field="event", omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """One line of a history."""


class HistoryRow(NamedTuple):
    """`[name, start, stop, samples]`: positions `[start, stop)` are computed; is a token sampled after the last?"""

    name: str
    start: Whole
    stop: Whole
    samples: bool


class HistoryCopy(NamedTuple):
    """`[src, dst, src_space, dst_space]`: a block is copied; spaces are "device" and "host"."""

    src: Whole
    dst: Whole
    src_space: str
    dst_space: str


class Opened(Event, tag="open"):
    """The first event: the format, and the system that the history is of.

    `same_step_sharing`: a row may read what another row of the same step writes. `reserved_blocks` are never handed out.
    With `window`, the query at position p reads positions (p - window, p] and the first `num_sinks`.
    `engine` is a name for people. `max_idle_steps` and `look_ahead` as in `EngineCapabilities`.
    """

    format: str
    version: Whole
    block_size: Whole
    num_blocks: Whole
    max_tokens_per_step: Whole
    max_rows: Whole
    num_host_blocks: Whole = 0
    max_in_flight: Whole = 1
    same_step_sharing: bool = False
    reserved_blocks: list[Whole] = []
    max_idle_steps: Whole = 3
    look_ahead: Whole = 0
    window: Whole | None = None
    num_sinks: Whole = 0
    engine: str = ""


class Submitted(Event, tag="submit"):
    """A request arrives; it ends when `max_new_tokens` were sampled. `refused` says why, where it was not accepted."""

    name: str
    tokens: list[Whole]
    max_new_tokens: Whole
    salt: str | None = None
    refused: str | None = None


class Forked(Event, tag="fork"):
    """`child` goes on from all the tokens that request `name` has; no step of that is in flight."""

    name: str
    child: str
    max_new_tokens: Whole


class Stepped(Event, tag="step"):
    """A step is launched. `step` numbers are the engine's own, and rise.

    `tables` has the block table of each request whose table changed since it was given last; `[]` = it has lost its blocks.
    An engine without tables gives `slots`, one a position, in the same way. The rest is the engine's own metadata of the
    step and its account of the pool, as far as it has them.
    """

    step: Whole
    rows: list[HistoryRow]
    copies: list[HistoryCopy] = []
    tables: dict[str, list[Whole]] = {}
    slots: dict[str, list[Whole]] = {}
    free_blocks: list[Whole] | None = None
    input_ids: list[Whole] | None = None
    positions: list[Whole] | None = None
    slot_mapping: list[Whole] | None = None
    cu_seqlens_q: list[Whole] | None = None
    cu_seqlens_k: list[Whole] | None = None
    max_seqlen_q: Whole | None = None
    max_seqlen_k: Whole | None = None
    context_lens: list[Whole] | None = None
    block_tables: list[list[Whole]] | None = None


class Finished(Event, tag="finish"):
    """A step is done: the token of each row that samples, in row order. `ended` are requests that end early (a stop token)."""

    step: Whole
    tokens: list[Whole] = []
    ended: list[str] = []
    tables: dict[str, list[Whole]] = {}
    slots: dict[str, list[Whole]] = {}


class Cancelled(Event, tag="cancel"):
    """A request ends now, wherever it is."""

    name: str


class Closed(Event, tag="close"):
    """The last event of a whole history. Without it, the history was cut."""


HistoryEvent = Opened | Submitted | Forked | Stepped | Finished | Cancelled | Closed


def json_schema() -> dict[str, Any]:
    """The JSON Schema of one line."""
    schema = msgspec.json.schema(HistoryEvent)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "One event of a pagefault history",
        **schema,
    }


class Recorder:
    """Stands before an engine target and writes its history; use it in the place of the target.

    `file` is binary and stays the caller's. Every event is written before the next call.
    """

    level = "engine"

    def __init__(self, target: Any, file: BinaryIO, engine: str = "") -> None:
        self._target = target
        self._file = file
        self._engine = engine or type(target).__name__
        self._offers = offered(target)
        self.capabilities = target.capabilities
        for name in {"cancel", "fork"} - self._offers:
            setattr(self, name, None)  # what the target does not offer, it does not offer on record

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    def open(self, config: EngineGeometry) -> None:
        self._target.open(config)
        self._given: dict[str, tuple[int, ...]] = {}
        self._numbers: dict[int, tuple[int, Step]] = {}
        self._num_steps = 0
        caps = self.capabilities
        self._write(
            Opened(
                format=FORMAT,
                version=VERSION,
                block_size=config.block_size,
                num_blocks=config.num_blocks,
                max_tokens_per_step=config.max_tokens_per_step,
                max_rows=config.max_rows,
                num_host_blocks=config.num_host_blocks,
                max_in_flight=config.max_in_flight,
                window=config.window,
                num_sinks=config.num_sinks,
                same_step_sharing=caps.same_step_sharing,
                reserved_blocks=list(caps.reserved_blocks),
                max_idle_steps=caps.max_idle_steps,
                engine=self._engine,
            )
        )

    def submit(self, name: str, tokens: Sequence[int], max_new_tokens: int, **salted: str | None) -> None:
        event = Submitted(name=name, tokens=list(tokens), max_new_tokens=max_new_tokens, salt=salted.get("salt"))
        try:
            self._target.submit(name, tokens, max_new_tokens, **salted)
        except self.capabilities.refusals as refusal:
            event.refused = str(refusal) or type(refusal).__name__
            raise
        finally:
            self._write(event)

    def fork(self, parent: str, child: str, max_new_tokens: int) -> None:
        self._target.fork(parent, child, max_new_tokens)
        self._write(Forked(name=parent, child=child, max_new_tokens=max_new_tokens))

    def cancel(self, name: str) -> None:
        self._target.cancel(name)
        self._given.pop(name, None)
        self._write(Cancelled(name=name))

    def step(self) -> Step:
        step: Step = self._target.step()
        self._num_steps += 1
        self._numbers[id(step.handle)] = (self._num_steps, step)
        batch = self._target.batch(step) if "batch" in self._offers else StepBatch()
        tables, slots = self._changed()
        self._write(
            Stepped(
                step=self._num_steps,
                rows=[HistoryRow(*row) for row in step.rows],
                copies=[HistoryCopy(*_in_blocks(copy)) for copy in step.copies],
                tables=tables,
                slots=slots,
                free_blocks=list(self._target.free_blocks()) if "free_blocks" in self._offers else None,
                **{key: _plain(value) for key, value in batch._asdict().items() if value is not None},
            )
        )
        return step

    def finish(self, step: Step, tokens: Sequence[int]) -> None:
        self._target.finish(step, tokens)
        number, _ = self._numbers.pop(id(step.handle))
        tables, slots = self._changed()
        self._write(Finished(step=number, tokens=list(tokens), tables=tables, slots=slots))

    def close(self) -> None:
        self._write(Closed())
        if "close" in self._offers:
            self._target.close()

    def _changed(self) -> tuple[dict[str, list[int]], dict[str, list[int]]]:
        """The tables, or slots, of the live requests that have others than were given last."""
        ask = self._target.table if "table" in self._offers else self._target.slots
        changed = {}
        live = list(self._target.live())
        for name in live:
            found = tuple(ask(name))
            if found != self._given.get(name, ()):
                self._given[name] = found
                changed[name] = list(found)
        for name in self._given.keys() - set(live):
            del self._given[name]
        return (changed, {}) if "table" in self._offers else ({}, changed)

    def _write(self, event: Event) -> None:
        self._file.write(msgspec.json.encode(event) + b"\n")


def _in_blocks(copy: Copy) -> tuple[int, int, str, str]:
    if copy.unit != "block":
        raise ValueError(f"{copy} copies a slot; a history has copies of whole blocks")
    return copy.src, copy.dst, copy.src_space, copy.dst_space


def _plain(value: Any) -> Any:
    if isinstance(value, int):
        return value
    return [list(item) if isinstance(item, Sequence) else item for item in value]


def engine_row(row: HistoryRow) -> Row:
    """The row as the referee takes it."""
    return Row(row.name, row.start, row.stop, row.samples)
