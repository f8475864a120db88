"""Seeded faults: variants of our engine with one bug each, and the clause that must catch it.

Each is a bug known from the field; the source stands with it.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from paged_impl import scheduler as scheduler_module
from paged_impl.batch import Batch, BatchPreparer
from paged_impl.block_manager import BlockManager
from paged_impl.prefix_cache import PrefixCache
from paged_impl.scheduler import Request, ScheduledRow, ScheduledStep, Scheduler
from properties.engine.operations import EngineGeometry
from properties.engine.protocol import Step, StepBatch
from properties.targets.engine_ours import OurEngine

FAULTS: dict[str, tuple[type[OurEngine], str]] = {}
"""Name of each fault -> the target with it, and the clause that must be broken."""


def fault(clause: str) -> Callable[[type[OurEngine]], type[OurEngine]]:
    """Register a variant."""

    def register(cls: type[OurEngine]) -> type[OurEngine]:
        FAULTS[cls.__name__] = (cls, clause)
        return cls

    return register


class Variant(OurEngine):
    """Our engine with some of its parts exchanged."""

    def open(self, config: EngineGeometry) -> None:
        super().open(config)
        self.scheduler: Any = self.engine.scheduler
        self.manager: Any = self.engine.manager
        self.batches: Any = self.engine.batches
        self.seed()

    def seed(self) -> None:
        """Put the fault in."""


def _swap_class(part: object, cls: type) -> None:
    part.__class__ = cls


# ---- batch preparation


@fault("BATCH-2")
class DecodeSlotOneTooFar(Variant):
    """block_table[-1] * block_size + last_block_num_tokens, without the - 1."""

    def batch(self, step: Step) -> StepBatch:
        batch = super().batch(step)
        slots = list(batch.slot_mapping or ())
        first = 0
        for row in step.rows:
            if row.stop - row.start == 1:
                slots[first] += 1
            first += row.stop - row.start
        return batch._replace(slot_mapping=slots)


@fault("BATCH-4")
class ChunkReadsToTheEnd(Variant):
    """The key length of a chunk is the whole sequence (GeeeekExplorer/nano-vllm#213)."""

    def batch(self, step: Step) -> StepBatch:
        lengths = [len(self.scheduler.tokens(row.name)) for row in step.rows]
        sums = [0, *np.cumsum(lengths).tolist()]
        return super().batch(step)._replace(cu_seqlens_k=sums, context_lens=lengths)


class _NeverRefreshed(BatchPreparer):
    def set_table(self, name: Any, table: Sequence[int]) -> None:
        if not self.num_blocks(name):
            super().set_table(name, table)


@fault("BATCH-4")
class StaleTableRow(Variant):
    """A preempted request comes back, and its row of the persistent table is the old one."""

    def seed(self) -> None:
        _swap_class(self.batches, _NeverRefreshed)


@fault("BATCH-4")
class NoTablesWithACachedPrefix(Variant):
    """On a hit the block tables are not passed on (tanishqkumar/ssd#22)."""

    def batch(self, step: Step) -> StepBatch:
        batch = super().batch(step)
        decodes = all(row.stop - row.start == 1 for row in step.rows)
        return batch if decodes else batch._replace(block_tables=None)


@fault("BATCH-1")
class PositionIsTheLength(Variant):
    """Positions of decode counted from 1 (GeeeekExplorer/nano-vllm#67)."""

    def batch(self, step: Step) -> StepBatch:
        batch = super().batch(step)
        shift = 1 if all(row.stop - row.start == 1 for row in step.rows) else 0
        return batch._replace(positions=[p + shift for p in batch.positions or ()])


@fault("BATCH-1")
class MaxLengthOfTheFirstRow(Variant):
    """max_seqlen_k taken from one row only."""

    def batch(self, step: Step) -> StepBatch:
        return super().batch(step)._replace(max_seqlen_k=step.rows[0].stop if step.rows else 0)


@fault("SLOT-3")
class PaddingWritesTheLastSlot(Variant):
    """-1 becomes the last block and the last offset (vllm-project/vllm#43810)."""

    def batch(self, step: Step) -> StepBatch:
        batch: Batch = self.batches.prepare(step.handle.rows, num_padding_tokens=2)
        last = self.manager.num_blocks * self.block_size - 1
        slots = [last if slot == -1 else slot for slot in batch.slot_mapping.tolist()]
        return super().batch(step)._replace(slot_mapping=slots)


@fault("BATCH-3")
class PaddingRowReads(Variant):
    """A row of padding keeps the context length of the request that had the row before."""

    def batch(self, step: Step) -> StepBatch:
        batch = super().batch(step)
        tables = [*(batch.block_tables or ()), [0]]
        return batch._replace(context_lens=[*(batch.context_lens or ()), 3], block_tables=tables)


# ---- scheduler


class _TokensBeforeTheHit(Scheduler):
    def _add_row(self, request: Request, num_new: int, draft: Any) -> None:
        if request.name in draft.admitted:
            num_new = len(request.tokens)
        start = request.num_scheduled
        super()._add_row(request, num_new, draft)
        if start + num_new > len(request.tokens):
            request.num_scheduled = len(request.tokens)
            request.waits_for_sample = True
            draft.rows[-1] = ScheduledRow(request.name, start, start + num_new, True)

    def _row_done(self, request: Request, row: ScheduledRow, token: int | None) -> None:
        super()._row_done(request, row._replace(stop=min(row.stop, len(request.tokens))), token)


@fault("BATCH-2")
class TokensScheduledBeforeTheHitIsKnown(Variant):
    """The number of tokens is taken before allocate() says how many are cached (GeeeekExplorer/nano-vllm#207)."""

    def seed(self) -> None:
        _swap_class(self.scheduler, _TokensBeforeTheHit)

    def batch(self, step: Step) -> StepBatch:
        return StepBatch()


class _PromptOnly(Scheduler):
    def _continue(self, request: Request, draft: Any) -> None:
        before = len(draft.rows)
        super()._continue(request, draft)
        if request.name in draft.admitted and request.num_sampled and len(draft.rows) > before:
            row = draft.rows[-1]
            draft.rows[-1] = row._replace(stop=max(row.start, min(row.stop, request.num_prompt)))


@fault("PREEMPT-1")
class PreemptedRequestsArePrefilledFromTheirPrompt(Variant):
    """After a preemption only the prompt is computed again (GeeeekExplorer/nano-vllm#144 b, turned round)."""

    def seed(self) -> None:
        _swap_class(self.scheduler, _PromptOnly)


class _ZeroTokens(Scheduler):
    def _add_row(self, request: Request, num_new: int, draft: Any) -> None:
        super()._add_row(request, num_new, draft)
        row = draft.rows[-1]
        if request.name in draft.admitted and row.samples and row.start:
            draft.rows[-1] = row._replace(start=row.stop)


@fault("HASH-4")
class AFullHitComputesNothing(Variant):
    """All tokens of a prompt are taken as cached: no query is left (GeeeekExplorer/nano-vllm#144)."""

    def seed(self) -> None:
        _swap_class(self.scheduler, _ZeroTokens)


class _OverBudget(Scheduler):
    def schedule(self) -> ScheduledStep:
        step = super().schedule()
        self.limits.max_tokens_per_step += 1
        return step


@fault("BATCH-1")
class TheBudgetGrows(Variant):
    """A step computes more tokens than its buffers hold."""

    def seed(self) -> None:
        _swap_class(self.scheduler, _OverBudget)


class _NoBlockForNewTokens(Scheduler):
    def _continue(self, request: Request, draft: Any) -> None:
        if not request.waits_for_sample and not draft.is_full:
            self._add_row(request, min(len(request.tokens) - request.num_scheduled, draft.tokens_left), draft)

    def _row_done(self, request: Request, row: ScheduledRow, token: int | None) -> None:
        missing = request.tokens[self.manager.num_tokens(request.name) :]
        if missing and self.manager.can_append(request.name, len(missing)):
            self.manager.append(request.name, missing)
        if self.manager.num_tokens(request.name) >= row.stop:
            super()._row_done(request, row, token)


@fault("ALLOC-2")
class TokensWithoutABlock(Variant):
    """A row is scheduled first, its block comes later."""

    def seed(self) -> None:
        _swap_class(self.scheduler, _NoBlockForNewTokens)

    def step(self) -> Step:
        return _step_without_lanes(self)

    def finish(self, step: Step, tokens: Sequence[int]) -> None:
        self.scheduler.finish(step.handle, tokens)

    def batch(self, step: Step) -> StepBatch:
        return StepBatch()


def _step_without_lanes(target: Any) -> Step:
    from properties.engine.protocol import Row

    step = target.scheduler.schedule()
    return Step([Row(*row) for row in step.rows], (), step)


class _Forgetful(Scheduler):
    def _preempt(self, request: Request) -> None:
        super()._preempt(request)
        self._waiting.remove(request)
        del self._requests[request.name]


@fault("LIVE-1")
class PreemptedRequestsAreLost(Variant):
    """A preempted request is in no queue."""

    def seed(self) -> None:
        _swap_class(self.scheduler, _Forgetful)


class _HeadOnly(Scheduler):
    def _admit(self, request: Request, draft: Any) -> bool:
        if len(request.tokens) > self.limits.max_tokens_per_step:
            return False
        return super()._admit(request, draft)


@fault("LIVE-1")
class LongPromptsStarve(Variant):
    """A prompt longer than the budget is never admitted, and never refused (vllm-project/vllm#39734)."""

    def seed(self) -> None:
        _swap_class(self.scheduler, _HeadOnly)


class _TakesAnything(Scheduler):
    def submit(self, name: Any, tokens: Sequence[int], max_new_tokens: int, salt: Any = None) -> None:
        if name in self._requests:
            raise scheduler_module.RequestRefused("in use")
        request = Request(name, self._num_arrived, array("q", tokens), len(tokens), max_new_tokens, salt)
        self._num_arrived += 1
        self._requests[name] = request
        self._waiting.append(request)


@fault("LIVE-1")
class RequestsThatNeverFitAreAccepted(Variant):
    """A request larger than the pool waits for ever (GeeeekExplorer/nano-vllm#274)."""

    def seed(self) -> None:
        _swap_class(self.scheduler, _TakesAnything)


class _SamplesTwice(Scheduler):
    def _end(self, request: Request) -> None:
        if request.num_sampled == request.max_new_tokens:
            request.max_new_tokens += 1
            return
        super()._end(request)


@fault("LIVE-1")
class RequestsGoOnAfterTheirEnd(Variant):
    """A request does not end at its last token."""

    def seed(self) -> None:
        _swap_class(self.scheduler, _SamplesTwice)


@fault("SLOT-2")
class CancelledRequestsGoOn(Variant):
    """Rows of a request that was cancelled are scheduled once more (vllm-project/tpu-inference#3449)."""

    def seed(self) -> None:
        self.zombies: list[str] = []

    def cancel(self, name: str) -> None:
        super().cancel(name)
        self.zombies.append(name)

    def step(self) -> Step:
        step = super().step()
        zombies, self.zombies = self.zombies, []
        live = set(self.live())
        from properties.engine.protocol import Row

        rows = [Row(name, 0, 1, False) for name in zombies if name not in live]
        return step._replace(rows=[*step.rows, *rows])


# ---- manager


class _WrongRemainder(BlockManager):
    def can_append(self, name: Any, num_tokens: int) -> bool:
        return self.num_free >= (self.num_tokens(name) % self.block_size == 1)


@fault("CRASH-1")
class CanAppendTestsTheWrongRemainder(Variant):
    """A block is asked for one token too late or too early."""

    def seed(self) -> None:
        _swap_class(self.manager, _WrongRemainder)


class _SwapsBothWays(Scheduler):
    """Right, if unfair: the shortest comes back first, in the very step that preempts a longer one."""

    def _preempt(self, request: Request) -> None:
        super()._preempt(request)
        self._waiting.sort(key=lambda waiting: len(waiting.tokens))

    def _make_room(self, request: Request, draft: Any) -> bool:
        made = super()._make_room(request, draft)
        draft.preempted = False
        return made

    def _num_spare(self) -> int:
        return 0


class SwapsBothWays(Variant):
    """No fault yet: the control of the next one."""

    def seed(self) -> None:
        _swap_class(self.scheduler, _SwapsBothWays)


@fault("SWAP-1")
class SwapInsRunBeforeSwapOuts(SwapsBothWays):
    """The copies of a step are sorted by direction; the order of the calls is lost (NVIDIA/TensorRT-LLM#8813)."""

    def step(self) -> Step:
        step = super().step()
        return step._replace(copies=sorted(step.copies, key=lambda copy: copy.dst_space))


class _NoParent(PrefixCache):
    def find(self, parent: Any, chunk: bytes) -> Any:
        return next((node for node in self._index.values() if node.chunk == chunk and node.alive), self._nowhere)


@fault("HASH-1")
class TheHashLeavesOutTheParent(Variant):
    """A block is found by its own tokens, whatever stood before them (GeeeekExplorer/nano-vllm#163)."""

    def seed(self) -> None:
        _swap_class(self.manager._cache, _NoParent)


class _PublishesAtOnce(Scheduler):
    def _admit(self, request: Request, draft: Any) -> bool:
        admitted = super()._admit(request, draft)
        if admitted:
            self.manager.computed(request.name, self.manager.num_tokens(request.name))
        return admitted


@fault("HASH-2")
class BlocksArePublishedBeforeTheyAreComputed(Variant):
    """A prompt can be hit as soon as it has blocks; a chunk, or a cancel, leaves them unwritten."""

    def seed(self) -> None:
        _swap_class(self.scheduler, _PublishesAtOnce)


class _LeavesAHole(PrefixCache):
    def match(self, data: bytes, chunk_bytes: int, salt: Any) -> list[Any]:
        chain = super().match(data, chunk_bytes, salt)
        return [chain[0], chain[-1], *chain[2:]] if len(chain) > 2 else chain


@fault("HASH-5")
class AHitGoesOnAfterAMiss(Variant):
    """The blocks of a hit are not those of its prefix in order: the first is another one."""

    def seed(self) -> None:
        _swap_class(self.manager._cache, _LeavesAHole)


@fault("EVICT-1")
class HeldBlocksAreHandedOut(Variant):
    """A block that is hit from the free list stays on it (vllm-project/vllm#2271, in kind)."""

    def seed(self) -> None:
        pool = self.manager._pool
        real = pool.release

        def release(block: int) -> bool:
            last = real(block)
            if not last:
                pool._blank.append(block)
            return bool(last)

        pool.release = release


@fault("REF-1")
class HitsAreNotCounted(Variant):
    """A hit does not raise the reference count (Wenyueh/MinivLLM#84)."""

    def ref_count(self, block: int) -> int:
        return min(1, super().ref_count(block))


@fault("REF-2")
class HeldBlocksAreOnTheFreeList(Variant):
    """The free list still names a block that is held."""

    def free_blocks(self) -> list[int]:
        held = [b for b in range(self.manager.num_blocks) if self.manager.ref_count(b) > 1]
        return [*super().free_blocks(), *held]


@fault("ALLOC-1")
class CancelInFlightLeaks(Variant):
    """The blocks of a request that is cancelled with a step in flight are never given back (vllm-project/vllm#32255)."""

    def cancel(self, name: str) -> None:
        request = self.scheduler._requests[name]
        if request.num_in_flight:
            for block in self.manager.table(name):
                self.manager._pool.hold(block)
        super().cancel(name)

    def ref_count(self, block: int) -> int:
        return super().ref_count(block)


class _LeaksHidden(Variant):
    """No look into the pool is offered: only a request for the whole pool shows the leak."""

    ref_count = None  # type: ignore[assignment]
    free_blocks = None  # type: ignore[assignment]
    cached_blocks = None  # type: ignore[assignment]


@fault("ALLOC-5")
class AHiddenLeak(_LeaksHidden):
    """One block is lost with each cancelled request, and nothing is offered that would show it."""

    def cancel(self, name: str) -> None:
        table = self.table(name)
        if table:
            self.manager._pool.hold(table[-1])
        super().cancel(name)


@fault("SLOT-1")
class SlotsAreNotThoseOfTheTable(Variant):
    """The slot of a position is off by one block offset."""

    def slots(self, name: str) -> Sequence[int]:
        slots = list(super().slots(name))
        return [*slots[1:], *slots[:1]]


@fault("CONTENT-1")
class AForeignWrite(Variant):
    """A step writes one slot twice: the second write goes to the place of another token."""

    def batch(self, step: Step) -> StepBatch:
        batch = super().batch(step)
        slots = list(batch.slot_mapping or ())
        if len(slots) > 1:
            slots[-1] = slots[0]
        return batch._replace(slot_mapping=slots)


@fault("CRASH-1")
class DuplicatesAreAccepted(Variant):
    """A second request of a live name takes the place of the first."""

    def submit(self, name: str, tokens: Sequence[int], max_new_tokens: int, salt: str | None = None) -> None:
        if name not in self.scheduler._requests:
            super().submit(name, tokens, max_new_tokens, salt)
