"""Planted faults of the block manager: allocation, reference counts, slots, crashes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fuzz.faults import Fault
from fuzz.faults.blocks_variant import planter
from paged_impl.block_manager import BlockManager
from paged_impl.errors import OutOfBlocks, UnknownSequence
from properties.protocol import slots_from_table
from properties.targets.ours import OurBlocks

_FOUND: list[Fault] = []
plant = planter(_FOUND)


# ---- allocation


@plant(
    "ALLOC-1", "LMCache and SGLang: blocks recorded by tokens, not by blocks, at release (bugs: conservation in pages)"
)
class LeakTail(BlockManager):
    """The last block of a sequence that ends inside a block is never given back."""

    def free(self, name: Any) -> None:
        seq = self._sequence(name)
        if seq.host_table is None and len(seq.tokens) % self.block_size and seq.table:
            self._pool.ref_counts[seq.table.pop()] -= 1
        super().free(name)


@plant("ALLOC-2", "nano-vllm: the new block is taken one token late when the remainder is tested wrongly")
class GrowLate(BlockManager):
    """Append takes its new block one token too late."""

    def _extend(self, table: list[int], num_tokens: int) -> None:
        super()._extend(table, num_tokens - 1 if table else num_tokens)


@plant("ALLOC-2P", "vLLM: one block more than needed at exact multiples of the block size")
class SpareBlock(BlockManager):
    """A prompt that ends on a block boundary gets a block that it does not need."""

    def allocate(self, name: Any, tokens: Sequence[int], salt: Any = None) -> int:
        cached = super().allocate(name, tokens, salt)
        if len(tokens) % self.block_size == 0 and self.num_free:
            self._sequences[name].table.append(self._take())
        return cached


@plant("ALLOC-3", "vllm-project/vllm#11562: a failing allocation left its mark on the cache")
class FailingCallEvicts(BlockManager):
    """A refused allocation has already evicted what it hoped to use."""

    def allocate(self, name: Any, tokens: Sequence[int], salt: Any = None) -> int:
        try:
            return super().allocate(name, tokens, salt)
        except OutOfBlocks:
            self.clear_cache()
            raise


@plant("ALLOC-4", "mini-vllm 0.1.1: can_allocate_request says yes, allocate fails")
class HopefulAnswer(BlockManager):
    """The can-do answer forgets that a block in use cannot be had."""

    def can_allocate(self, tokens: Sequence[int], salt: Any = None) -> bool:
        return self._blocks_for(len(tokens)) <= self.num_blocks


@plant("ALLOC-4P", "TensorRT-LLM: one more reusable block was credited than can be reused")
class WrongPrediction(BlockManager):
    """The predicted number of blocks counts a hit on a free block as free of cost."""

    def blocks_needed_allocate(self, tokens: Sequence[int], salt: Any = None) -> int:
        return self._blocks_for(len(tokens)) - self.lookup(tokens, salt) // self.block_size


@plant("ALLOC-5", "vllm-project/vllm#35541: the advertised whole of the pool cannot be served")
class NeverTheWhole(BlockManager):
    """An allocation of the whole pool is refused."""

    def allocate(self, name: Any, tokens: Sequence[int], salt: Any = None) -> int:
        if self._blocks_for(len(tokens)) == self.num_blocks > 1:
            raise OutOfBlocks(self.num_blocks, self.num_free, self.num_evictable)
        return super().allocate(name, tokens, salt)


@plant("ALLOC-6", "mini-vllm 0.1.1: append_slot does not evict")
class AppendDoesNotEvict(BlockManager):
    """Append sees only blank blocks, not those that keep an evictable prefix."""

    def append(self, name: Any, tokens: Sequence[int]) -> None:
        needed = self.blocks_needed_append(name, len(tokens))
        blank = self.num_free - self.num_evictable
        if needed > blank:
            raise OutOfBlocks(needed, blank, self.num_evictable)
        super().append(name, tokens)

    def can_append(self, name: Any, num_tokens: int) -> bool:
        return self.blocks_needed_append(name, num_tokens) <= self.num_free - self.num_evictable


# ---- reference counts


@plant("REF-1", "apache/tvm#16666: a fork does not raise the parent's reference count")
class ForkWithoutReference(BlockManager):
    """The child shares the parent's blocks without counting itself."""

    def fork(self, parent: Any, child: Any) -> None:
        super().fork(parent, child)
        for block in self._sequences[child].table:
            if block >= 0:
                self._pool.ref_counts[block] -= 1


@plant("REF-2", "vllm-project/vllm#42571: a block goes back to the free queue while it is referenced")
class FreeWhileHeld(OurBlocks):
    """A block that two sequences share is listed as free as soon as one of them leaves."""

    def open(self, config: Any) -> None:
        super().open(config)
        self.early: set[int] = set()

    def free(self, name: str) -> None:
        shared = {block for block in self.manager.table(name) if block >= 0 and self.manager.ref_count(block) > 1}
        super().free(name)
        self.early |= shared

    def free_blocks(self) -> list[int]:
        free = super().free_blocks()
        return free + [block for block in sorted(self.early) if self.manager.ref_count(block)]


@plant("REF-3", "vllm-project/vllm#42571: the second free of a sequence is believed")
class BelievesSecondFree(OurBlocks):
    """A free of a sequence that has ended ends another one."""

    def free(self, name: str) -> None:
        try:
            super().free(name)
        except UnknownSequence:
            for other in list(self.manager._sequences):
                super().free(str(other))
                return


# ---- slots


@plant("SLOT-1", "slots filled from the end of a block")
class SlotsBackwards(OurBlocks):
    """Within a block, positions are laid out from the last slot to the first."""

    def slots(self, name: str) -> Sequence[int]:
        size = self.block_size
        forward = slots_from_table(self.manager.table(name), size)
        return tuple(slot if slot < 0 else slot // size * size + size - 1 - slot % size for slot in forward)


@plant("SLOT-2", "Atlas #1193: a partly filled tail block of a live sequence becomes another's writable tail")
class SharedTail(BlockManager):
    """A prompt that continues a live sequence inside its last block takes that block as its own tail."""

    def allocate(self, name: Any, tokens: Sequence[int], salt: Any = None) -> int:
        cached = super().allocate(name, tokens, salt)
        seq, size = self._sequences[name], self.block_size
        start = len(seq.tokens) // size * size
        for donor in self._sequences.values():
            resident = donor is not seq and donor.host_table is None and donor.num_computed == len(donor.tokens)
            same = resident and donor.salt == salt and donor.tokens[: len(seq.tokens)] == seq.tokens
            if same and cached <= start < len(seq.tokens) and len(donor.table) == len(seq.table) and not self.window:
                self._release(seq.table.pop())
                self._pool.hold(donor.table[-1])
                seq.table.append(donor.table[-1])
                break
        return cached


# ---- crashes and hangs


class _RaisesIndexError(BlockManager):
    """An exhausted pool shows as an IndexError."""

    def append(self, name: Any, tokens: Sequence[int]) -> None:
        if self.blocks_needed_append(name, len(tokens)) > self.num_free:
            _pop_from_empty([])
        super().append(name, tokens)


def _pop_from_empty(free: list[int]) -> int:
    return free.pop()


@plant("CRASH-1", "nano-vllm PR #211: IndexError where the pool is exhausted")
class CrashesWhenFull(_RaisesIndexError):
    """An append to a full pool raises IndexError instead of a refusal."""


@plant("CRASH-2", "nano-vllm#274 and vLLM: an allocation that can never succeed waits for ever")
class WaitsForever(BlockManager):
    """A refused append tries again and again."""

    def append(self, name: Any, tokens: Sequence[int]) -> None:
        while self.blocks_needed_append(name, len(tokens)) > self.num_free:
            pass
        super().append(name, tokens)


FAULTS: tuple[Fault, ...] = tuple(_FOUND)
