"""A recorded workload through an engine target: requests are submitted in order, and its scheduler does the rest."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from fuzz.trace_file import Chains, Request, prompt_tokens
from fuzz.workload import (
    OWN_TOKENS,
    POOL_CHECK_SHARE,
    Pool,
    WorkloadResult,
    block_keys,
    check_block_size,
    pool_for_all,
)
from properties.blocks.probe import Crashed, Refused
from properties.engine.operations import EngineGeometry
from properties.engine.probe import EngineProbe
from properties.engine.protocol import Row

TOKENS_PER_STEP = 8192
"""Token budget of a step where the target chunks; else the longest request."""
MOST_IDLE = 1000
"""Empty steps in a row before the engine counts as stuck."""


@dataclass(slots=True)
class _Live:
    """A request that has not ended. `keys` say what its blocks hold, as far as it has grown."""

    number: int
    request: Request
    chain: list[int]
    told: int = 0
    computed: int = 0
    blocks: list[int] = field(default_factory=list)
    keys: list[int] = field(default_factory=list)


class EngineRun:
    """The workload through an engine target, `num_live` requests submitted and not ended at once."""

    def __init__(
        self,
        target: Any,
        result: WorkloadResult,
        num_live: int,
        max_tokens_per_step: int,
        tell: Callable[[WorkloadResult], None],
    ) -> None:
        self.probe = EngineProbe(target)
        self.target = target
        self.result = result
        self.num_live = num_live
        self.tell = tell
        self.pool = Pool(result, self.probe.capabilities.reserved_blocks)
        self.live: dict[str, _Live] = {}
        self.idle = 0
        self.checked_s = 0.0
        self.started = time.perf_counter()
        _, most_rows = self.probe.capabilities.max_batch_rows
        self.probe.call(
            "open",
            EngineGeometry(
                block_size=result.block_size,
                num_blocks=result.num_blocks,
                max_tokens_per_step=max_tokens_per_step,
                max_rows=max(most_rows, num_live),
            ),
        )

    def run(self, requests: Iterator[Request]) -> None:
        """All requests, then to idle. A crash of the target ends it as CRASH-1, a standstill as LIVE-1."""
        chains, number = Chains(), 0
        waiting = iter(requests)
        more = True
        try:
            while more or self.live:
                while more and len(self.live) < self.num_live:
                    request = next(waiting, None)
                    more = request is not None
                    if request is not None:
                        self._submit(number, request, chains.of(request))
                        number += 1
                if self.live and not self._step():
                    break
                self._look_now_and_then()
            self.pool.check(self.target, self.probe.offers)
        except (Crashed, Refused) as crash:
            self.pool.report("CRASH-1", str(crash))
        self.result.elapsed_s = time.perf_counter() - self.started

    def _submit(self, number: int, request: Request, chain: list[int]) -> None:
        self.result.num_requests += 1
        name, num_new = f"r{number}", max(1, request.output_length)
        try:
            self._timed("submit", name, prompt_tokens(request).tolist(), num_new)
        except Refused:
            self.result.refusals += 1
            self.result.num_skipped += 1
            return
        self.result.prompt_tokens += request.input_length
        self.live[name] = _Live(number, request, chain)

    def _step(self) -> bool:
        """One step, launched and finished. False where nothing moves any more."""
        started = time.perf_counter()
        step = self.probe.step()
        self.result.target_s += time.perf_counter() - started
        self.idle = 0 if step.rows else self.idle + 1
        if self.idle > MOST_IDLE:
            self.pool.report("LIVE-1", f"{self.idle} steps in a row were empty; {len(self.live)} requests are live")
            return False
        self._lost_blocks()
        for row in step.rows:
            self._row(row)
        tokens = [self._token(row.name) for row in step.rows if row.samples]
        if step.rows:
            self._timed("finish", step, tokens)
        for row in step.rows:
            live = self.live[row.name]
            live.told += row.samples
            if live.told == max(1, live.request.output_length):
                self.pool.release(row.name, live.blocks, live.keys)
                del self.live[row.name]
        return True

    def _lost_blocks(self) -> None:
        """Requests that have no blocks any more: preempted."""
        if self.result.num_operations % 8 and self.pool.in_use < self.result.num_blocks * 0.9:
            return  # a preemption needs a full pool
        for name, live in self.live.items():
            if live.blocks and not self.probe.call("slots" if "table" not in self.probe.offers else "table", name):
                self.pool.release(name, live.blocks, live.keys)
                live.blocks, live.keys, live.computed = [], [], 0

    def _row(self, row: Row) -> None:
        live, pool, size = self.live[row.name], self.pool, self.result.block_size
        needed = -(-row.stop // size)
        if row.start >= live.computed and needed <= len(live.blocks) and live.blocks:
            live.computed = row.stop
            return
        table = self._table(row.name)
        keys = block_keys(live.number, live.chain, live.request.input_length, len(table), size)
        if live.blocks and table[: len(live.blocks)] == live.blocks:
            pool.hold(row.name, table[len(live.blocks) :], 0, keys[len(live.blocks) :])
        else:
            if live.blocks:
                pool.release(row.name, live.blocks, live.keys)
            elif not live.told:
                self.result.hit_tokens += row.start
            pool.hold(row.name, table, row.start // size, keys)
        live.blocks, live.keys, live.computed = table, keys, row.stop

    def _token(self, name: str) -> int:
        live = self.live[name]
        return OWN_TOKENS + (live.number << 20) + live.told

    def _table(self, name: str) -> list[int]:
        if "table" in self.probe.offers:
            return list(self.probe.call("table", name))
        return [slot // self.result.block_size for slot in self.probe.call("slots", name)[:: self.result.block_size]]

    def _timed(self, method: str, *args: Any) -> None:
        started = time.perf_counter()
        try:
            self.probe.call(method, *args)
        finally:
            self.result.target_s += time.perf_counter() - started
            self.result.num_operations += 1
            self.pool.point()

    def _look_now_and_then(self) -> None:
        now = time.perf_counter()
        if self.checked_s <= POOL_CHECK_SHARE * (now - self.started):
            self.pool.check(self.target, self.probe.offers)
            self.checked_s += time.perf_counter() - now
        self.result.elapsed_s = now - self.started
        self.tell(self.result)


def run_engine(
    name: str,
    target: Any,
    requests: Callable[[], Iterator[Request]],
    block_size: int,
    num_blocks: int | None,
    num_live: int,
    tell: Callable[[WorkloadResult], None],
) -> WorkloadResult:
    """A workload through an engine target; as `run_blocks`. Hits depend on what runs side by side, so they are not counted."""
    check_block_size(block_size)
    result = WorkloadResult(name, block_size, num_blocks or pool_for_all(requests(), block_size))
    longest = max((request.input_length + request.output_length for request in requests()), default=1)
    budget = TOKENS_PER_STEP if target.capabilities.chunked_prefill else max(TOKENS_PER_STEP, longest)
    EngineRun(target, result, num_live, budget, tell).run(requests())
    return result
