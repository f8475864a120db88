"""`pagefault workload`: a recorded production workload through a blocks target, with the invariants on.

Cheap invariants are judged at every operation, the whole pool now and then.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from fuzz.trace_file import Chains, Request, expected_hits, prompt_tokens
from fuzz.workload_base import NoWatch, Survey, Tell, Watch, WorkloadRun, new_result
from fuzz.workload_pool import WorkloadResult, block_keys
from properties.blocks.operations import Geometry
from properties.blocks.probe import Refused
from properties.contract import AdapterError, Breach
from properties.wording import counted


class BlocksRun(WorkloadRun):
    """The workload through a blocks target: requests in order, the oldest ends when a newcomer needs its place."""

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
        self.live: deque[tuple[str, list[int], list[int]]] = deque()
        self.most_live = min(num_live, caps.max_sequences or num_live)
        self.most_append = caps.max_append or result.block_size
        self.room = result.num_blocks - len(set(caps.reserved_blocks)) - caps.watermark_blocks
        self._open(Geometry(block_size=result.block_size, num_blocks=result.num_blocks))

    def _all(self, requests: Iterator[Request]) -> None:
        chains = Chains()
        for number, request in enumerate(requests):
            self._request(number, request, chains.of(request))
            self._look_now_and_then()
        while self.live:
            self._free_oldest()

    def _request(self, number: int, request: Request, chain: list[int]) -> None:
        result, name, length = self.result, f"r{number}", request.input_length
        while len(self.live) >= self.most_live:
            self._free_oldest()
        result.num_requests += 1
        cached = self._admit(name, request)
        if cached is None:
            result.num_skipped += 1
            return
        result.prompt_tokens += length
        result.hit_tokens += cached
        if cached >= length and not self.probe.capabilities.recomputes_hits:
            self.pool.report(
                "HASH-4", f"request {name} has {counted(length, 'token')} and {cached} are said to be cached"
            )
        blocks = self._table(name, length)
        keys = block_keys(number, chain, length, len(blocks), result.block_size)
        self.pool.hold(name, blocks, cached // result.block_size, keys)
        self._reply(number, request, name, blocks, keys)
        self.live.append((name, blocks, keys))

    def _admit(self, name: str, request: Request) -> int | None:
        """Tokens taken from the cache; None for a request that does not fit."""
        length, most = request.input_length, self.probe.capabilities.max_tokens
        if most is not None and length > most:
            return None
        tokens = prompt_tokens(request)
        cached = self._with_room("admit", name, length, lambda: self.probe.number("admit", name, tokens))
        if cached is None:
            return None
        if not 0 <= cached <= length:
            raise AdapterError(
                f"admit({name}) returned {cached} cached tokens of {length}", "return how many leading tokens hit"
            )
        return cached

    def _reply(self, number: int, request: Request, name: str, blocks: list[int], keys: list[int]) -> None:
        """The generated tokens, up to a block at a time."""
        size, first, length = self.result.block_size, self._own_tokens(request.output_length), request.input_length
        most = self.probe.capabilities.max_tokens
        stop = request.output_length if most is None else min(request.output_length, most - length)
        done = 0
        while done < stop:
            count = min(size - length % size, stop - done, self.most_append)
            tokens = array("q", range(first + done, first + done + count))
            if self._with_room("append", name, length + count, partial(self._append, name, tokens)) is None:
                break
            done, length = done + count, length + count
            if length > len(blocks) * size or length % size == 0:
                self._grown(number, name, length, blocks, keys)
        self.result.num_cut += done < request.output_length

    def _grown(self, number: int, name: str, length: int, blocks: list[int], keys: list[int]) -> None:
        table = self._table(name, length, blocks)
        if table[: len(blocks)] != blocks:
            self.pool.exchange(name, blocks, table[: len(blocks)], keys)
        own = -((number + 1) << 20) - 2
        more = [own - i for i in range(len(blocks), len(table))]
        self.pool.hold(name, table[len(blocks) :], 0, more)
        blocks += table[len(blocks) :]
        keys += more

    def _append(self, name: str, tokens: array[int]) -> int:
        self.probe.call("append", name, tokens)
        return len(tokens)

    def _with_room(self, method: str, name: str, length: int, call: Callable[[], int]) -> int | None:
        """The answer of a call, made until it is not refused; the oldest request makes room. None where nothing helps.

        `length` is what the request has afterwards: with nobody else there, the pool is enough for it or it is not.
        """
        while True:
            try:
                with self._operation(method, name):
                    return call()
            except Refused as refusal:
                self.result.refusals += 1
                if self.live:
                    self._free_oldest()
                    continue
                self._judge_refusal(method, name, length, str(refusal))
                return None

    def _judge_refusal(self, method: str, name: str, length: int, refusal: str) -> None:
        needed = -(-(length + self.probe.capabilities.look_ahead) // self.result.block_size)
        if needed <= self.room:
            self.pool.report(
                "ALLOC-6",
                f"{method} of {name} was refused with {refusal}, though no other request is live: it needs "
                f"{counted(needed, 'block')} "
                f"of {self.room} that can be used",
            )

    def _free_oldest(self) -> None:
        name, blocks, keys = self.live.popleft()
        self.pool.release(name, blocks, keys)
        with self._operation("free", name):
            self.probe.call("free", name)


def run_blocks(
    name: str,
    target: Any,
    requests: Callable[[], Iterator[Request]],
    block_size: int,
    num_blocks: int | None,
    num_live: int,
    tell: Tell,
    watch: Watch | None = None,
) -> WorkloadResult:
    """A workload through a blocks target. `num_blocks` None = a pool that never evicts, and hits are compared with a count.

    `requests()` gives the requests from the start each time. Raises `UsageError` for a block size that does not fit.
    """
    result, survey = new_result(name, requests, block_size, num_blocks)
    run = BlocksRun(target, result, survey, num_live, tell, watch)
    run.run(requests())
    caps = run.probe.capabilities
    if num_blocks is None and caps.prefix_cache and not caps.recomputes_hits and not result.ended:
        judge_hit_count(result, sum(expected_hits(requests(), block_size)))
    return result


def judge_hit_count(result: WorkloadResult, expected: int) -> None:
    """With a pool that never evicts, hits follow from the file alone: more are wrong; fewer are reported, not judged."""
    result.expected_hit_tokens = expected
    if result.hit_tokens > expected:
        result.breaches.append(
            Breach(
                "HASH-1",
                f"hits cover {counted(result.hit_tokens, 'token')}; the file allows {expected}",
                result.num_operations,
            )
        )
