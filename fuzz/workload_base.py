"""What both runs of a recorded workload are made of: timed calls that somebody watches, tables, looks at the pool."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

from fuzz.trace_file import CHUNK_TOKENS, Chains, Request
from fuzz.workload_pool import Pool, WorkloadResult
from properties.blocks.operations import Geometry
from properties.blocks.probe import Crashed, Probe, Refused
from properties.contract import AdapterError, UsageError
from properties.protocol import slots_from_table
from properties.wording import counted

POOL_CHECK_SHARE = 0.05
"""Share of the time that may go into looking at the whole pool."""

Tell = Callable[[WorkloadResult], None]


class Survey(NamedTuple):
    """What a run must know of a file: the longest request in tokens, and the first token behind all that prompts have.

    Each token that is generated has a number of its own from there on, so that tokens stay below 2**31 where ids allow it:
    engines keep them in 32 bits.
    """

    longest_tokens: int
    first_own: int


class Watch(Protocol):
    """Is told which call of the target is under way, so that one which does not return is noticed."""

    def begin(self, method: str, name: str) -> None:
        """A call begins."""

    def end(self) -> None:
        """It has returned, or raised."""


class NoWatch:
    """Nobody watches: the caller is in the same process."""

    def begin(self, method: str, name: str) -> None:
        """Nothing."""

    def end(self) -> None:
        """Nothing."""


class Unusable(Exception):
    """A request's blocks cannot be followed any further: what is wrong with them was reported, and the run ends."""


class WorkloadRun:
    """A workload through one target, up to `num_live` requests at once. Subclasses say how requests get on.

    `run` never raises for what the target does wrong, but `AdapterError` for an adapter that breaks its protocol.
    """

    probe_class: type[Probe] = Probe

    def __init__(
        self, target: Any, result: WorkloadResult, survey: Survey, num_live: int, tell: Tell, watch: Watch
    ) -> None:
        self.watch = watch
        self.probe = self.probe_class(target)
        self.result = result
        self.num_live = num_live
        self.tell = tell
        result.prefix_cache = self.probe.capabilities.prefix_cache
        self.pool = Pool(result, self.probe.capabilities.reserved_blocks, lambda: tell(result))
        self.next_own = survey.first_own
        self.checked_s = 0.0
        self.started = time.perf_counter()

    def run(self, requests: Iterator[Request]) -> None:
        """All requests, then the end. A crash of the target ends it as CRASH-1."""
        try:
            self._all(requests)
            self._look_at_pool()
        except Crashed as crash:
            self.pool.report("CRASH-1", str(crash))
            self.result.ended = "the target crashed"
        except Refused as refusal:
            self.pool.report("CRASH-1", f"refused with {refusal}, in a call that asks for no room")
            self.result.ended = "the target crashed"
        except Unusable as what:
            self.result.ended = str(what)
        self.result.elapsed_s = time.perf_counter() - self.started
        self._close()

    def _all(self, requests: Iterator[Request]) -> None:
        raise NotImplementedError

    def _own_tokens(self, count: int) -> int:
        """The first of that many tokens that nobody else has."""
        first = self.next_own
        self.next_own += count
        return first

    # ---- calls -------------------------------------------------------------------------------------------------------

    def _open(self, geometry: Geometry) -> None:
        try:
            self._ask("open", geometry)
        except (Refused, Crashed) as failure:
            raise AdapterError(
                f"open({geometry}) failed: {failure}", "declare the block and pool sizes it accepts in capabilities"
            ) from None
        self.tell(self.result)  # from here on, a process that dies leaves a finding

    def _close(self) -> None:
        """Give the target the chance to release what `open` took."""
        if "close" not in self.probe.offers:
            return
        try:
            self._ask("close")
        except (Refused, Crashed) as failure:
            raise AdapterError(f"close() failed: {failure}", "close() must not fail") from None

    @contextmanager
    def _operation(self, method: str, name: str) -> Iterator[None]:
        """A call that is an operation: timed, watched and counted."""
        started = time.perf_counter()
        self.watch.begin(method, name)
        try:
            yield
        finally:
            self.watch.end()
            self.result.target_s += time.perf_counter() - started
            self.result.num_operations += 1
            self.pool.point()

    def _ask(self, method: str, *args: Any) -> Any:
        """A call that only asks."""
        self.watch.begin(method, str(args[0]) if args else "everything")
        try:
            return self.probe.call(method, *args)
        finally:
            self.watch.end()

    # ---- looking -----------------------------------------------------------------------------------------------------

    def _table(self, name: str, num_tokens: int, known: Sequence[int] = ()) -> list[int]:
        """The blocks of a request of that many tokens. Those in `known` were looked at before, where they are the same.

        Raises `Unusable` after it has reported a table that is too short or leaves the pool, `AdapterError` for one of a
        wrong type.
        """
        if "table" in self.probe.offers:
            answer = self._ask("table", name)
            if type(answer) is not list and type(answer) is not tuple:
                answer = self.probe.whole("table", answer)
            first = len(known) if list(answer[: len(known)]) == list(known) else 0
            table = [*answer[:first], *self.probe.whole("table", answer[first:])]
        else:
            table, first = self._blocks_of_slots(name), 0
        while len(table) > first and table[-1] == -1:
            table.pop()
        self._check_table(name, num_tokens, table, table[first:])
        return table

    def _blocks_of_slots(self, name: str) -> list[int]:
        size = self.result.block_size
        slots = self.probe.whole("slots", self._ask("slots", name))
        table = [slot // size for slot in slots[::size]]
        if slots != tuple(slots_from_table(tuple(table), size))[: len(slots)]:
            raise UsageError(
                f"the slots of request {name} are not whole blocks of {size}, one after another: a workload follows blocks. "
                "If the target has block tables, offer table(name); else it can be driven with `pagefault run` only"
            )
        return table

    def _check_table(self, name: str, num_tokens: int, table: Sequence[int], new: Sequence[int]) -> None:
        size, num_blocks = self.result.block_size, self.result.num_blocks
        if new and not 0 <= min(new) <= max(new) < num_blocks:
            wrong = next(block for block in new if not 0 <= block < num_blocks)
            self.pool.report(
                "ALLOC-1" if wrong != -1 else "ALLOC-2",
                f"request {name}, block {list(table).index(wrong)} of its table is {wrong}"
                + (
                    f", outside the pool of {counted(num_blocks, 'block')}"
                    if wrong != -1
                    else ": its tokens have no place"
                ),
            )
            raise Unusable(f"request {name} has blocks that cannot be followed")
        if len(table) * size < num_tokens:
            self.pool.report(
                "ALLOC-2",
                f"request {name} has {counted(num_tokens, 'token')}, but only {counted(len(table), 'block')} "
                f"of {size} for them",
            )
            raise Unusable(f"request {name} has too few blocks")

    def _look_at_pool(self) -> None:
        started = time.perf_counter()
        self.watch.begin("free_blocks, cached_blocks and ref_count", "the pool")
        try:
            self.pool.check(self.probe)
        finally:
            self.watch.end()
        self.checked_s += time.perf_counter() - started

    def _look_now_and_then(self) -> None:
        now = time.perf_counter()
        if self.checked_s <= POOL_CHECK_SHARE * (now - self.started):
            self._look_at_pool()
        self.result.elapsed_s = now - self.started
        self.tell(self.result)


def new_result(
    name: str, requests: Callable[[], Iterator[Request]], block_size: int, num_blocks: int | None
) -> tuple[WorkloadResult, Survey]:
    """An empty result, with a pool that never evicts where none is given. Raises `UsageError` for a wrong block size."""
    check_block_size(block_size)
    result = WorkloadResult(name, block_size, num_blocks or pool_for_all(requests(), block_size))
    longest, largest_id = 0, 0
    for request in requests():
        longest = max(longest, request.input_length + request.output_length)
        largest_id = max(largest_id, *request.hash_ids)
    result.longest_blocks = -(-longest // block_size)
    return result, Survey(longest, (largest_id + 1) * CHUNK_TOKENS)


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
