"""What the pool holds while a recorded workload runs, and the judges of that.

At this size the referee's account, token by token, would be larger than the pool. What is kept instead is one number for
each block: which prefix it holds (`Chains`), or that a request's own, unshared tokens are in it.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice

from fuzz.trace_file import CHUNK_TOKENS
from properties.blocks.probe import Probe
from properties.contract import Breach
from properties.wording import counted

EMPTY = -1
MOST_COUNTS = 10_000
"""Reference counts that one look at the pool compares."""
NUM_POINTS = 2000
"""Points of the curve of blocks in use, at most twice as many."""


@dataclass
class WorkloadResult:
    """What a workload gave. `curve` has `(operation, blocks in use)`; `breaches` the first of each clause.

    `num_skipped` are requests that never fitted, `num_cut` replies that ended early for want of room, `longest_blocks` what the
    longest request needs at its end. `evictions` counts blocks that held a full block of some prompt when they were handed
    out for other tokens: one count for each block, whether a lookup could still have found it or not, spare copies
    included; it means nothing where the target declares no `prefix_cache`. `target_s` is the part of `elapsed_s` that was
    spent inside the target. `ended` says why a run stopped early, "" where it did not.
    """

    target: str
    block_size: int
    num_blocks: int
    num_requests: int = 0
    num_skipped: int = 0
    num_cut: int = 0
    longest_blocks: int = 0
    num_operations: int = 0
    num_pool_checks: int = 0
    prompt_tokens: int = 0
    hit_tokens: int = 0
    expected_hit_tokens: int | None = None
    peak_blocks: int = 0
    evictions: int = 0
    prefix_cache: bool = True
    refusals: int = 0
    elapsed_s: float = 0.0
    target_s: float = 0.0
    ended: str = ""
    curve: list[tuple[int, int]] = field(default_factory=list)
    breaches: list[Breach] = field(default_factory=list)

    @property
    def hit_rate(self) -> float:
        return self.hit_tokens / max(1, self.prompt_tokens)

    @property
    def num_served(self) -> int:
        """Requests that ran."""
        return self.num_requests - self.num_skipped


class Pool:
    """What each block holds and how many requests hold it, and the judges of that."""

    def __init__(self, result: WorkloadResult, reserved: Sequence[int], on_breach: Callable[[], None]) -> None:
        self.result = result
        self.on_breach = on_breach
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
            self.on_breach()

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
                    self.report(
                        "EVICT-1",
                        f"block {block} was handed to {name} while it is held by {counted(held[block], 'request')}",
                    )
                if content[block] >= 0:
                    self.result.evictions += 1
                content[block] = keys[index]
            if not held[block]:
                self.in_use += 1
            held[block] += 1
        if len(set(blocks)) != len(blocks):
            self.report("ALLOC-2", f"request {name} has a block twice")
        self.result.peak_blocks = max(self.result.peak_blocks, self.in_use)

    def exchange(self, name: str, blocks: list[int], new: Sequence[int], keys: Sequence[int]) -> None:
        """A call put other blocks in the place of those that a request had: equal ones, or its KV is elsewhere."""
        for index, block in enumerate(new):
            old = blocks[index]
            if block == old:
                continue
            if self.content[block] != keys[index]:
                self.report(
                    "CONTENT-1",
                    f"request {name}, block {index} was moved from block {old} to block {block} without a copy; that holds "
                    f"{_in_words(self.content[block])} and not {_in_words(keys[index])}",
                )
            self._count(old, -1)
            self._count(block, 1)
            blocks[index] = block

    def release(self, name: str, blocks: Sequence[int], keys: Sequence[int]) -> None:
        """A request ends: everything that it wrote or hit must still be there."""
        for index, block in enumerate(blocks):
            if self.content[block] != keys[index]:
                self.report(
                    "CONTENT-1",
                    f"request {name}, block {index} (block {block} of the pool) holds "
                    f"{_in_words(self.content[block])} at its end, and not {_in_words(keys[index])}",
                )
            self._count(block, -1)

    def _count(self, block: int, change: int) -> None:
        before = self.held[block]
        self.held[block] = before + change
        self.in_use += (before + change > 0) - (before > 0)

    def point(self) -> None:
        """A point of the curve, thinned out as it grows."""
        result = self.result
        if result.num_operations % self._every == 0:
            result.curve.append((result.num_operations, self.in_use))
            if len(result.curve) >= 2 * NUM_POINTS:
                del result.curve[::2]
                self._every *= 2

    def check(self, probe: Probe) -> None:
        """The pool as a whole: conservation and reference counts. Raises `AdapterError` for answers of a wrong type."""
        self.result.num_pool_checks += 1
        held = {block for block, count in enumerate(self.held) if count}
        if "free_blocks" in probe.offers:
            cached = probe.ids("cached_blocks") if "cached_blocks" in probe.offers else []
            self._check_free(probe.ids("free_blocks"), cached, held)
        if "ref_count" in probe.offers:
            self._check_counts(probe, held)

    def _check_free(self, free: Sequence[int], cached: Sequence[int], held: set[int]) -> None:
        there = set(free)
        if len(there) != len(free):
            self.report("ALLOC-1", "a block is on the free list twice")
        if there & held:
            self.report("REF-2", f"block {min(there & held)} is held and on the free list at once")
        accounted = there.union(held, cached, self.reserved)
        outside = [block for block in accounted if not 0 <= block < self.result.num_blocks]
        if outside:
            self.report(
                "ALLOC-1",
                f"block {outside[0]} is free or cached, and outside the pool (0 to {self.result.num_blocks - 1})",
            )
        lost = self.result.num_blocks - len(accounted) + len(outside)
        if lost:
            self.report("ALLOC-1", f"neither free, nor held, nor cached: {counted(lost, 'block')}")

    def _check_counts(self, probe: Probe, held: set[int]) -> None:
        for block in islice(held, MOST_COUNTS):
            stored = probe.number("ref_count", block)
            if stored != self.held[block]:
                self.report(
                    "REF-1",
                    f"block {block} has a reference count of {stored}, and is held by {counted(self.held[block], 'request')}",
                )
                return


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
