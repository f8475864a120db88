"""Planted faults of the manager as its engine meets them: hits, evictions, copies, counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fuzz.faults import Fault
from fuzz.faults.engine_variant import Variant, exchange, planter
from paged_impl.block_manager import BlockManager
from paged_impl.prefix_cache import PrefixCache
from paged_impl.scheduler import Request, Scheduler
from properties.engine.protocol import Step, StepBatch

_FOUND: list[Fault] = []
plant = planter(_FOUND)


class _WrongRemainder(BlockManager):
    def can_append(self, name: Any, num_tokens: int) -> bool:
        return self.num_free >= (self.num_tokens(name) % self.block_size == 1)


@plant("CRASH-1", "nano-vllm family: can_append asks for the block at the wrong length")
class CanAppendTestsTheWrongRemainder(Variant):
    """A block is asked for one token too late or too early."""

    def seed(self) -> None:
        exchange(self.manager, _WrongRemainder)


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
        exchange(self.scheduler, _SwapsBothWays)


@plant("SWAP-1", "NVIDIA/TensorRT-LLM#8813")
class SwapInsRunBeforeSwapOuts(SwapsBothWays):
    """The copies of a step are sorted by direction; the order of the calls is lost."""

    def step(self) -> Step:
        step = super().step()
        return step._replace(copies=sorted(step.copies, key=lambda copy: copy.dst_space))


class _NoParent(PrefixCache):
    def find(self, parent: Any, chunk: bytes) -> Any:
        return next((node for node in self._index.values() if node.chunk == chunk and node.alive), self._nowhere)


@plant("HASH-1", "GeeeekExplorer/nano-vllm#163")
class TheHashLeavesOutTheParent(Variant):
    """A block is found by its own tokens, whatever stood before them."""

    def seed(self) -> None:
        exchange(self.manager._cache, _NoParent)


class _PublishesAtOnce(Scheduler):
    def _admit(self, request: Request, draft: Any) -> bool:
        admitted = super()._admit(request, draft)
        if admitted:
            self.manager.computed(request.name, self.manager.num_tokens(request.name))
        return admitted


@plant("HASH-2", "nano-vllm#217: a hit on a block whose chunk is not computed yet")
class BlocksArePublishedBeforeTheyAreComputed(Variant):
    """A prompt can be hit as soon as it has blocks; a chunk, or a cancel, leaves them unwritten."""

    def seed(self) -> None:
        exchange(self.scheduler, _PublishesAtOnce)


class _LeavesAHole(PrefixCache):
    def match(self, data: bytes, chunk_bytes: int, salt: Any) -> list[Any]:
        chain = super().match(data, chunk_bytes, salt)
        return [chain[0], chain[-1], *chain[2:]] if len(chain) > 2 else chain


@plant("HASH-5", "family prefix-cache hash: a lookup that does not stop")
class AHitGoesOnAfterAMiss(Variant):
    """The blocks of a hit are not those of its prefix in order: the first is another one."""

    def seed(self) -> None:
        exchange(self.manager._cache, _LeavesAHole)


@plant("EVICT-1", "vllm-project/vllm#2271, in kind")
class HeldBlocksAreHandedOut(Variant):
    """A block that is hit from the free list stays on it."""

    def seed(self) -> None:
        pool = self.manager._pool
        real = pool.release

        def release(block: int) -> bool:
            last = real(block)
            if not last:
                pool._blank.append(block)
            return bool(last)

        pool.release = release


@plant("REF-1", "Wenyueh/MinivLLM#84")
class HitsAreNotCounted(Variant):
    """A hit does not raise the reference count."""

    def ref_count(self, block: int) -> int:
        return min(1, super().ref_count(block))


@plant("REF-2", "family refcount: a block is freed while it is held")
class HeldBlocksAreOnTheFreeList(Variant):
    """The free list still names a block that is held."""

    def free_blocks(self) -> list[int]:
        held = [b for b in range(self.manager.num_blocks) if self.manager.ref_count(b) > 1]
        return [*super().free_blocks(), *held]


@plant("ALLOC-1", "vllm-project/vllm#32255")
class CancelInFlightLeaks(Variant):
    """The blocks of a request that is cancelled with a step in flight are never given back."""

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


@plant("ALLOC-5", "LMCache and vLLM: an abort that leaves blocks behind")
class AHiddenLeak(_LeaksHidden):
    """One block is lost with each cancelled request, and nothing is offered that would show it."""

    def cancel(self, name: str) -> None:
        table = self.table(name)
        if table:
            self.manager._pool.hold(table[-1])
        super().cancel(name)


@plant("SLOT-1", "family slot mapping: offset off by one")
class SlotsAreNotThoseOfTheTable(Variant):
    """The slot of a position is off by one block offset."""

    def slots(self, name: str) -> Sequence[int]:
        slots = list(super().slots(name))
        return [*slots[1:], *slots[:1]]


@plant("CONTENT-1", "family slot mapping: two tokens write one slot")
class AForeignWrite(Variant):
    """A step writes one slot twice: the second write goes to the place of another token."""

    def batch(self, step: Step) -> StepBatch:
        batch = super().batch(step)
        slots = list(batch.slot_mapping or ())
        if len(slots) > 1:
            slots[-1] = slots[0]
        return batch._replace(slot_mapping=slots)


@plant("CRASH-1", "family crash-or-hang: a second request of one id")
class DuplicatesAreAccepted(Variant):
    """A second request of a live name takes the place of the first."""

    def submit(self, name: str, tokens: Sequence[int], max_new_tokens: int, salt: str | None = None) -> None:
        if name not in self.scheduler._requests:
            super().submit(name, tokens, max_new_tokens, salt)


FAULTS: tuple[Fault, ...] = tuple(_FOUND)
