"""A recorded workload through an engine target: requests are submitted in order, and its scheduler does the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from fuzz.trace_file import Chains, Request, prompt_tokens
from fuzz.workload_base import NoWatch, Survey, Tell, Unusable, Watch, WorkloadRun, new_result
from fuzz.workload_pool import WorkloadResult, block_keys
from properties.blocks.probe import Refused
from properties.contract import AdapterError
from properties.engine.operations import EngineGeometry
from properties.engine.probe import EngineProbe
from properties.engine.protocol import Row, Step
from properties.wording import counted

TOKENS_PER_STEP = 8192
"""Token budget of a step where the target chunks; else the longest request."""
MOST_IDLE = 1000
"""Empty steps in a row before the engine counts as stuck."""
MOST_STILL = 100_000
"""Steps in a row without a sampled token before it counts as stuck: the longest prompt needs far fewer."""


@dataclass(slots=True)
class _Live:
    """A request that has not ended. `keys` say what its blocks hold, as far as it has grown."""

    number: int
    request: Request
    chain: list[int]
    first_own: int = 0
    told: int = 0
    computed: int = 0
    blocks: list[int] = field(default_factory=list)
    keys: list[int] = field(default_factory=list)

    @property
    def num_new(self) -> int:
        """Tokens that are sampled for it."""
        return max(1, self.request.output_length)

    @property
    def num_tokens(self) -> int:
        """Tokens that it has now."""
        return self.request.input_length + self.told


class EngineRun(WorkloadRun):
    """The workload through an engine target, `num_live` requests submitted and not ended at once."""

    probe_class = EngineProbe
    probe: EngineProbe

    def __init__(
        self,
        target: Any,
        result: WorkloadResult,
        survey: Survey,
        num_live: int,
        tell: Tell,
        watch: Watch | None = None,
    ) -> None:
        super().__init__(target, result, survey, num_live, tell, watch or NoWatch())
        caps = self.probe.capabilities
        self.live: dict[str, _Live] = {}
        self.ended: set[str] = set()
        self.idle = self.still = 0
        budget = TOKENS_PER_STEP if caps.chunked_prefill else max(TOKENS_PER_STEP, survey.longest_tokens)
        _, most_rows = caps.max_batch_rows
        self.room = result.num_blocks - len(set(caps.reserved_blocks)) - caps.watermark_blocks
        self._open(
            EngineGeometry(
                block_size=result.block_size,
                num_blocks=result.num_blocks,
                max_tokens_per_step=budget,
                max_rows=max(most_rows, num_live),
            )
        )

    def _all(self, requests: Iterator[Request]) -> None:
        chains = Chains()
        waiting = enumerate(requests)
        more = True
        while more or self.live:
            while more and len(self.live) < self.num_live:
                number, request = next(waiting, (0, None))
                more = request is not None
                if request is not None:
                    self._submit(number, request, chains.of(request))
            if self.live:
                self._step()
            self._look_now_and_then()

    def _submit(self, number: int, request: Request, chain: list[int]) -> None:
        self.result.num_requests += 1
        name, live = f"r{number}", _Live(number, request, chain)
        if self._can_never_fit(live):
            self.result.num_skipped += 1  # what a target does with it is its own affair: it is not tried
            return
        try:
            with self._operation("submit", name):
                self.probe.call("submit", name, prompt_tokens(request).tolist(), live.num_new)
        except Refused as refusal:
            self.result.refusals += 1
            self.result.num_skipped += 1
            self.pool.report("LIVE-1", f"submit of {name} was refused with {refusal}, though the whole pool is enough")
            return
        self.result.prompt_tokens += request.input_length
        live.first_own = self._own_tokens(live.num_new)
        self.live[name] = live

    def _can_never_fit(self, live: _Live) -> bool:
        caps, total = self.probe.capabilities, live.request.input_length + live.num_new
        too_long = caps.max_tokens is not None and total > caps.max_tokens
        return too_long or -(-(total - 1 + caps.look_ahead) // self.result.block_size) > self.room

    # ---- a step ------------------------------------------------------------------------------------------------------

    def _step(self) -> None:
        """One step, launched and finished. Raises `Unusable` where nothing moves any more."""
        with self._operation("step", counted(len(self.live), "request")):
            step = self.probe.step()
        self._judge_pace(step)
        if not self.result.num_operations % 8 or self.pool.in_use >= self.result.num_blocks * 0.9:
            self._lost_blocks()  # a preemption needs a full pool: what it misses shows as soon as a block is used again
        self._check_rows(step.rows)
        for row in step.rows:
            self._row(row)
        sampling = [row.name for row in step.rows if row.samples]
        if step.rows:
            with self._operation("finish", counted(len(step.rows), "row")):
                self.probe.call("finish", step, [self._token(name) for name in sampling])
        for name in sampling:
            self._told(name)

    def _judge_pace(self, step: Step) -> None:
        self.idle = 0 if step.rows else self.idle + 1
        self.still = 0 if any(row.samples for row in step.rows) else self.still + 1
        for count, most, what in ((self.idle, MOST_IDLE, "were empty"), (self.still, MOST_STILL, "sampled no token")):
            if count > most:
                self.pool.report(
                    "LIVE-1", f"{counted(count, 'step')} in a row {what}; live: {counted(len(self.live), 'request')}"
                )
                raise Unusable("nothing moves any more")

    def _check_rows(self, rows: Sequence[Row]) -> None:
        seen = set()
        for row in rows:
            live = self.live.get(row.name)
            if live is None and row.name in self.ended:
                self.pool.report(
                    "SLOT-2", f"the step computes {row.name}, which has ended: its slots are no longer its own"
                )
                raise Unusable(f"request {row.name} cannot be followed")
            if live is None:
                raise AdapterError(
                    f"step returned a row of {row.name!r}, which is not live", "return the names that submit was given"
                )
            problem = "has two rows in one step" if row.name in seen else ""
            if row.stop > live.num_tokens:
                problem = (
                    f"has {counted(live.num_tokens, 'token')}, and the step computes positions "
                    f"{row.start} to {row.stop - 1}"
                )
            if problem:
                self.pool.report("BATCH-2", f"request {row.name} {problem}")
                raise Unusable(f"request {row.name} cannot be followed")
            if row.samples and row.stop < live.num_tokens:
                self.pool.report(
                    "BATCH-4",
                    f"a token is sampled for request {row.name} after position {row.stop - 1}, but it has "
                    f"{counted(live.num_tokens, 'token')}: the others are not read",
                )
                raise Unusable(f"request {row.name} cannot be followed")
            seen.add(row.name)

    def _told(self, name: str) -> None:
        live = self.live[name]
        live.told += 1
        if live.told == live.num_new:
            self.pool.release(name, live.blocks, live.keys)
            del self.live[name]
            self.ended.add(name)

    def _lost_blocks(self) -> None:
        """Requests that do not have their blocks any more: preempted, and perhaps back on others that no row has used."""
        for name, live in self.live.items():
            if live.blocks and self._table(name, 0, live.blocks)[: len(live.blocks)] != live.blocks:
                self.pool.release(name, live.blocks, live.keys)
                live.blocks, live.keys, live.computed = [], [], 0

    def _look_at_pool(self) -> None:
        """Besides what rows have shown, requests hold blocks that no row has used yet: given to those that wait, or ahead."""
        self._lost_blocks()
        held = self.pool.held
        ahead = [
            block for name, live in self.live.items() for block in self._table(name, 0, live.blocks)[len(live.blocks) :]
        ]
        for block in ahead:
            held[block] += 1
        super()._look_at_pool()
        for block in ahead:
            held[block] -= 1

    def _hold(self, name: str, blocks: Sequence[int], num_hit: int, keys: Sequence[int]) -> None:
        """As `Pool.hold`; where a block to be written is held already, it is asked first who has lost blocks."""
        held = self.pool.held
        if any(held[block] for block in blocks[num_hit:]):
            self._lost_blocks()
        self.pool.hold(name, blocks, num_hit, keys)

    def _row(self, row: Row) -> None:
        live, pool, size = self.live[row.name], self.pool, self.result.block_size
        needed = -(-row.stop // size)
        if row.start >= live.computed and needed <= len(live.blocks) and live.blocks:
            live.computed = row.stop
            return
        table = self._table(row.name, row.stop, live.blocks)
        keys = block_keys(live.number, live.chain, live.request.input_length, len(table), size)
        if live.blocks and table[: len(live.blocks)] == live.blocks:
            self._hold(row.name, table[len(live.blocks) :], 0, keys[len(live.blocks) :])
        else:
            if live.blocks:
                pool.release(row.name, live.blocks, live.keys)
            elif not live.told:
                self.result.hit_tokens += row.start
            self._hold(row.name, table, row.start // size, keys)
        live.blocks, live.keys, live.computed = table, keys, row.stop

    def _token(self, name: str) -> int:
        live = self.live[name]
        return live.first_own + live.told


def run_engine(
    name: str,
    target: Any,
    requests: Callable[[], Iterator[Request]],
    block_size: int,
    num_blocks: int | None,
    num_live: int,
    tell: Tell,
    watch: Watch | None = None,
) -> WorkloadResult:
    """A workload through an engine target; as `run_blocks`. Hits depend on what runs side by side, so they are not counted."""
    result, survey = new_result(name, requests, block_size, num_blocks)
    EngineRun(target, result, survey, num_live, tell, watch).run(requests())
    return result
