"""`pagefault workload`: a recorded production workload through a target, with the invariants on.

At this size the referee's account, token by token, would be larger than the pool. What is kept instead is one number for
each block: which prefix it holds (`Chains`), or that a request's own, unshared tokens are in it. Cheap invariants are judged
at every operation, the whole pool now and then.
"""

from __future__ import annotations

import time
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from fuzz.trace_file import CHUNK_TOKENS, Chains, Request, expected_hits, prompt_tokens
from properties.blocks.operations import Geometry
from properties.blocks.probe import Crashed, Probe, Refused
from properties.contract import Breach, UsageError

EMPTY = -1
POOL_CHECK_SHARE = 0.05
"""Share of the time that may go into looking at the whole pool."""
NUM_POINTS = 2000
"""Points of the curve of blocks in use, at most twice as many."""
OWN_TOKENS = 1 << 50
"""First of the tokens that requests generate: each is unlike any other."""


@dataclass
class WorkloadResult:
    """What a workload gave. `curve` has `(operation, blocks in use)`; `breaches` the first of each clause.

    `evictions` counts full prompt blocks that were overwritten, spare copies included. `target_s` is the part of `elapsed_s`
    that was spent inside the target.
    """

    target: str
    block_size: int
    num_blocks: int
    num_requests: int = 0
    num_skipped: int = 0
    num_operations: int = 0
    num_pool_checks: int = 0
    prompt_tokens: int = 0
    hit_tokens: int = 0
    expected_hit_tokens: int | None = None
    peak_blocks: int = 0
    evictions: int = 0
    refusals: int = 0
    elapsed_s: float = 0.0
    target_s: float = 0.0
    curve: list[tuple[int, int]] = field(default_factory=list)
    breaches: list[Breach] = field(default_factory=list)

    @property
    def hit_rate(self) -> float:
        return self.hit_tokens / max(1, self.prompt_tokens)


class Pool:
    """What each block holds and how many requests hold it, and the judges of that."""

    def __init__(self, result: WorkloadResult, reserved: Sequence[int]) -> None:
        self.result = result
        self.content = array("q", [EMPTY]) * result.num_blocks
        self.held = array("i", [0]) * result.num_blocks
        self.reserved = frozenset(reserved)
        self.in_use = 0
        self._every = 1
        self._broken: set[str] = set()

    def report(self, id: str, message: str) -> None:
        """The first breach of each clause."""
        if id not in self._broken:
            self._broken.add(id)
            self.result.breaches.append(Breach(id, message, self.result.num_operations))

    def hold(self, name: str, blocks: Sequence[int], num_hit: int, keys: Sequence[int]) -> None:
        """A request got `blocks`, the first `num_hit` from the cache, the others to be written with `keys`."""
        content, held = self.content, self.held
        for index, block in enumerate(blocks):
            if index < num_hit:
                if content[block] != keys[index]:
                    self.report(
                        "HASH-1",
                        f"request {name}, block {index} of its prefix is hit in block {block}, which holds "
                        f"{_in_words(content[block])} and not {_in_words(keys[index])}",
                    )
            else:
                if held[block]:
                    self.report("EVICT-1", f"block {block} was handed to {name} while {held[block]} requests hold it")
                if content[block] >= 0:
                    self.result.evictions += 1
                content[block] = keys[index]
            if not held[block]:
                self.in_use += 1
            held[block] += 1
        if len(set(blocks)) != len(blocks):
            self.report("ALLOC-2", f"request {name} has a block twice")
        self.result.peak_blocks = max(self.result.peak_blocks, self.in_use)

    def release(self, name: str, blocks: Sequence[int], keys: Sequence[int]) -> None:
        """A request ends: everything that it wrote or hit must still be there."""
        content, held = self.content, self.held
        for index, block in enumerate(blocks):
            if content[block] != keys[index]:
                self.report(
                    "CONTENT-1",
                    f"request {name}, block {index} (block {block} of the pool) holds "
                    f"{_in_words(content[block])} at its end, and not {_in_words(keys[index])}",
                )
            held[block] -= 1
            if not held[block]:
                self.in_use -= 1

    def point(self) -> None:
        """A point of the curve, thinned out as it grows."""
        result = self.result
        if result.num_operations % self._every == 0:
            result.curve.append((result.num_operations, self.in_use))
            if len(result.curve) >= 2 * NUM_POINTS:
                del result.curve[::2]
                self._every *= 2

    def check(self, target: Any, offers: frozenset[str]) -> None:
        """The pool as a whole: conservation and reference counts."""
        self.result.num_pool_checks += 1
        held = {block for block, count in enumerate(self.held) if count}
        if "free_blocks" in offers:
            free = list(target.free_blocks())
            there = set(free)
            if len(there) != len(free):
                self.report("ALLOC-1", "a block is on the free list twice")
            if there & held:
                self.report("REF-2", f"block {min(there & held)} is held and on the free list at once")
            cached = set(target.cached_blocks()) if "cached_blocks" in offers else set()
            lost = self.result.num_blocks - len(there | held | cached | self.reserved)
            if lost:
                self.report("ALLOC-1", f"{lost} blocks are neither free, nor held, nor cached")
        if "ref_count" in offers:
            for block in islice(held, 10_000):
                if target.ref_count(block) != self.held[block]:
                    self.report(
                        "REF-1",
                        f"block {block} has a reference count of {target.ref_count(block)}, and "
                        f"{self.held[block]} requests hold it",
                    )
                    break


def _in_words(key: int) -> str:
    if key == EMPTY:
        return "nothing"
    return f"prefix block {key}" if key >= 0 else f"a request's own tokens ({-key})"


def block_keys(number: int, chain: Sequence[int], num_prompt: int, num_blocks: int, block_size: int) -> list[int]:
    """What each block of a request holds: a shared number for full prompt blocks, its own for all others."""
    per_chunk = CHUNK_TOKENS // block_size
    full = num_prompt // block_size
    shared = [chain[i // per_chunk] * per_chunk + i % per_chunk for i in range(min(full, num_blocks))]
    own = -((number + 1) << 20) - 2
    return shared + [own - i for i in range(len(shared), num_blocks)]


def pool_for_all(requests: Iterator[Request], block_size: int) -> int:
    """Blocks that never have to be evicted: distinct prompt blocks, and each request's own."""
    chains, full = Chains(), dict[int, int]()
    own = 0
    for request in requests:
        for index, node in enumerate(chains.of(request)):
            length = min(CHUNK_TOKENS, request.input_length - index * CHUNK_TOKENS)
            full[node] = max(full.get(node, 0), length // block_size)
        own += -(-request.output_length // block_size) + 2
    return sum(full.values()) + own


def check_block_size(block_size: int) -> None:
    """Raises `UsageError` for a block size that the ids of the file cannot be cut into."""
    if block_size < 1 or CHUNK_TOKENS % block_size:
        raise UsageError(f"block size {block_size} does not divide {CHUNK_TOKENS}: give 16, 32, 64, 128, 256 or 512")


class BlocksRun:
    """The workload through a blocks target: requests in order, `num_live` of them alive at once."""

    def __init__(
        self, target: Any, result: WorkloadResult, num_live: int, tell: Callable[[WorkloadResult], None]
    ) -> None:
        self.probe = Probe(target)
        self.target = target
        self.result = result
        self.num_live = num_live
        self.tell = tell
        self.pool = Pool(result, self.probe.capabilities.reserved_blocks)
        self.live: deque[tuple[str, list[int], list[int]]] = deque()
        self.checked_s = 0.0
        self.started = time.perf_counter()
        self.probe.call("open", Geometry(block_size=result.block_size, num_blocks=result.num_blocks))

    def run(self, requests: Iterator[Request]) -> None:
        """All requests, then the end. A crash of the target ends it as CRASH-1."""
        chains = Chains()
        try:
            for number, request in enumerate(requests):
                self._request(number, request, chains.of(request))
                self._look_now_and_then()
            while self.live:
                self._free_oldest()
            self.pool.check(self.target, self.probe.offers)
        except Crashed as crash:
            self.pool.report("CRASH-1", str(crash))
        self.result.elapsed_s = time.perf_counter() - self.started

    def _request(self, number: int, request: Request, chain: list[int]) -> None:
        result, name, tokens = self.result, f"r{number}", prompt_tokens(request)
        while len(self.live) >= self.num_live:
            self._free_oldest()
        cached = self._with_room("admit", name, tokens)
        result.num_requests += 1
        if cached is None:
            result.num_skipped += 1
            return
        result.prompt_tokens += request.input_length
        result.hit_tokens += cached
        if cached >= request.input_length:
            self.pool.report(
                "HASH-4", f"request {name} has {request.input_length} tokens and {cached} are said to be cached"
            )
        blocks = self._table(name)
        keys = block_keys(number, chain, request.input_length, len(blocks), result.block_size)
        self.pool.hold(name, blocks, cached // result.block_size, keys)
        self._reply(number, request, name, blocks, keys)
        self.live.append((name, blocks, keys))

    def _reply(self, number: int, request: Request, name: str, blocks: list[int], keys: list[int]) -> None:
        """The generated tokens, a block at a time."""
        size, first, length = self.result.block_size, OWN_TOKENS + (number << 20), request.input_length
        done = 0
        while done < request.output_length:
            count = min(size - length % size, request.output_length - done)
            if self._with_room("append", name, array("q", range(first + done, first + done + count))) is None:
                return
            done, length = done + count, length + count
            if length > len(blocks) * size or count == size:
                self._grown(number, name, blocks, keys)

    def _grown(self, number: int, name: str, blocks: list[int], keys: list[int]) -> None:
        table = self._table(name)
        if table[: len(blocks)] != blocks:
            self.pool.report("CONTENT-1", f"request {name} was moved to other blocks by an append, without a copy")
        new = table[len(blocks) :]
        own = -((number + 1) << 20) - 2
        more = [own - i for i in range(len(blocks), len(table))]
        self.pool.hold(name, new, 0, more)
        blocks += new
        keys += more

    def _with_room(self, method: str, name: str, tokens: array[int]) -> int | None:
        """Call until it is not refused; the oldest request makes room. None where nothing is left to make it."""
        while True:
            started = time.perf_counter()
            try:
                answer = self.probe.call(method, name, tokens)
            except Refused:
                self.result.refusals += 1
                if not self.live:
                    return None
                self._free_oldest()
                continue
            finally:
                self.result.target_s += time.perf_counter() - started
                self._operation()
            return answer if isinstance(answer, int) else 0

    def _free_oldest(self) -> None:
        name, blocks, keys = self.live.popleft()
        self.pool.release(name, blocks, keys)
        started = time.perf_counter()
        self.probe.call("free", name)
        self.result.target_s += time.perf_counter() - started
        self._operation()

    def _operation(self) -> None:
        self.result.num_operations += 1
        self.pool.point()

    def _table(self, name: str) -> list[int]:
        if "table" in self.probe.offers:
            return list(self.probe.call("table", name))
        return [slot // self.result.block_size for slot in self.probe.call("slots", name)[:: self.result.block_size]]

    def _look_now_and_then(self) -> None:
        now = time.perf_counter()
        if self.checked_s <= POOL_CHECK_SHARE * (now - self.started):
            self.pool.check(self.target, self.probe.offers)
            self.checked_s += time.perf_counter() - now
        self.result.elapsed_s = now - self.started
        self.tell(self.result)


def run_blocks(
    name: str,
    target: Any,
    requests: Callable[[], Iterator[Request]],
    block_size: int,
    num_blocks: int | None,
    num_live: int,
    tell: Callable[[WorkloadResult], None],
) -> WorkloadResult:
    """A workload through a blocks target. `num_blocks` None = a pool that never evicts, and hits are compared with a count.

    `requests()` gives the requests from the start each time. Raises `UsageError` for a block size that does not fit.
    """
    check_block_size(block_size)
    result = WorkloadResult(name, block_size, num_blocks or pool_for_all(requests(), block_size))
    BlocksRun(target, result, num_live, tell).run(requests())
    if num_blocks is None and target.capabilities.prefix_cache:
        judge_hit_count(result, sum(expected_hits(requests(), block_size)))
    return result


def judge_hit_count(result: WorkloadResult, expected: int) -> None:
    """With a pool that never evicts, hits follow from the file alone: more are wrong; fewer are reported, not judged."""
    result.expected_hit_tokens = expected
    if result.hit_tokens > expected:
        result.breaches.append(
            Breach("HASH-1", f"{result.hit_tokens} tokens were hit; the file allows {expected}", result.num_operations)
        )
