"""Planted faults of the block manager. Each class overrides the one place where its bug sits."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from fuzz.faults import Fault
from paged_impl.block_manager import BlockManager, Copy
from paged_impl.errors import OutOfBlocks, UnknownSequence
from paged_impl.prefix_cache import PrefixCache, PrefixNode, salted
from paged_impl.sequence_state import SequenceState
from properties.protocol import slots_from_table
from properties.targets.ours import PROMISES, OurBlocks

_FOUND: list[Fault] = []


def _plant(catches: str, source: str, unpromised: str = "") -> Callable[[type], type]:
    """Register a manager or an adapter as a fault. The id is the class name in words; `unpromised` is not declared."""

    def register(cls: type) -> type:
        id = "".join("-" + c.lower() if c.isupper() else c for c in cls.__name__).strip("-")
        members: dict[str, Any] = {"__doc__": cls.__doc__}
        if unpromised:
            promises = PROMISES - {unpromised}
            members["capabilities"] = msgspec.structs.replace(OurBlocks.capabilities, promises=promises)
        if issubclass(cls, BlockManager):
            cls_members = {**members, "manager_class": cls}
            _FOUND.append(Fault(id, catches, "blocks", source, type(cls.__name__, (OurBlocks,), cls_members)))
        else:
            _FOUND.append(Fault(id, catches, "blocks", source, type(cls.__name__, (cls,), members)))
        return cls

    return register


# ---- allocation


@_plant(
    "ALLOC-1", "LMCache and SGLang: blocks recorded by tokens, not by blocks, at release (bugs: conservation in pages)"
)
class LeakTail(BlockManager):
    """The last block of a sequence that ends inside a block is never given back."""

    def free(self, name: Any) -> None:
        seq = self._sequence(name)
        if seq.host_table is None and len(seq.tokens) % self.block_size and seq.table:
            self._pool.ref_counts[seq.table.pop()] -= 1
        super().free(name)


@_plant("ALLOC-2", "nano-vllm: the new block is taken one token late when the remainder is tested wrongly")
class GrowLate(BlockManager):
    """Append takes its new block one token too late."""

    def _extend(self, table: list[int], num_tokens: int) -> None:
        super()._extend(table, num_tokens - 1 if table else num_tokens)


@_plant("ALLOC-2P", "vLLM: one block more than needed at exact multiples of the block size")
class SpareBlock(BlockManager):
    """A prompt that ends on a block boundary gets a block that it does not need."""

    def allocate(self, name: Any, tokens: Sequence[int], salt: Any = None) -> int:
        cached = super().allocate(name, tokens, salt)
        if len(tokens) % self.block_size == 0 and self.num_free:
            self._sequences[name].table.append(self._take())
        return cached


@_plant("ALLOC-3", "vllm-project/vllm#11562: a failing allocation left its mark on the cache")
class FailingCallEvicts(BlockManager):
    """A refused allocation has already evicted what it hoped to use."""

    def allocate(self, name: Any, tokens: Sequence[int], salt: Any = None) -> int:
        try:
            return super().allocate(name, tokens, salt)
        except OutOfBlocks:
            self.clear_cache()
            raise


@_plant("ALLOC-4", "mini-vllm 0.1.1: can_allocate_request says yes, allocate fails")
class HopefulAnswer(BlockManager):
    """The can-do answer forgets that a block in use cannot be had."""

    def can_allocate(self, tokens: Sequence[int], salt: Any = None) -> bool:
        return self._blocks_for(len(tokens)) <= self.num_blocks


@_plant("ALLOC-4P", "TensorRT-LLM: one more reusable block was credited than can be reused")
class WrongPrediction(BlockManager):
    """The predicted number of blocks counts a hit on a free block as free of cost."""

    def blocks_needed_allocate(self, tokens: Sequence[int], salt: Any = None) -> int:
        return self._blocks_for(len(tokens)) - self.lookup(tokens, salt) // self.block_size


@_plant("ALLOC-5", "vllm-project/vllm#35541: the advertised whole of the pool cannot be served")
class NeverTheWhole(BlockManager):
    """An allocation of the whole pool is refused."""

    def allocate(self, name: Any, tokens: Sequence[int], salt: Any = None) -> int:
        if self._blocks_for(len(tokens)) == self.num_blocks > 1:
            raise OutOfBlocks(self.num_blocks, self.num_free, self.num_evictable)
        return super().allocate(name, tokens, salt)


@_plant("ALLOC-6", "mini-vllm 0.1.1: append_slot does not evict")
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


@_plant("REF-1", "apache/tvm#16666: a fork does not raise the parent's reference count")
class ForkWithoutReference(BlockManager):
    """The child shares the parent's blocks without counting itself."""

    def fork(self, parent: Any, child: Any) -> None:
        super().fork(parent, child)
        for block in self._sequences[child].table:
            if block >= 0:
                self._pool.ref_counts[block] -= 1


@_plant("REF-2", "vllm-project/vllm#42571: a block goes back to the free queue while it is referenced")
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


@_plant("REF-3", "vllm-project/vllm#42571: the second free of a sequence is believed")
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


@_plant("SLOT-1", "slots filled from the end of a block")
class SlotsBackwards(OurBlocks):
    """Within a block, positions are laid out from the last slot to the first."""

    def slots(self, name: str) -> Sequence[int]:
        size = self.block_size
        forward = slots_from_table(self.manager.table(name), size)
        return tuple(slot if slot < 0 else slot // size * size + size - 1 - slot % size for slot in forward)


@_plant("SLOT-2", "Atlas #1193: a partly filled tail block of a live sequence becomes another's writable tail")
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


# ---- the prefix cache


class _Believing(PrefixCache):
    """Believes the digest: neither the parent nor the tokens are compared."""

    def match(self, data: bytes, chunk_bytes: int, salt: Any) -> list[PrefixNode]:
        node, chain = self.root, [self.root]
        for start in range(0, len(data), chunk_bytes):
            chunk = data[start : start + chunk_bytes]
            found = self._index.get(self._hash(node.digest + (salted(chunk, salt) if start == 0 else chunk)))
            if found is None:
                break
            chain.append(found)
            node = found
        return chain


@_plant("HASH-1", "openvinotoolkit/openvino.genai: on a hit the tokens are not compared; the hash alone decides")
class BelievesTheHash(BlockManager):
    """A collision of the block hash is a hit."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._cache = _Believing(self.num_blocks, kwargs.get("hash_fn"))


@_plant("HASH-2", "ROCm/ATOM: the whole prompt is registered inside allocate, before its KV is written")
class PublishesEarly(BlockManager):
    """Blocks are findable as soon as they are allocated."""

    def allocate(self, name: Any, tokens: Sequence[int], salt: Any = None) -> int:
        cached = super().allocate(name, tokens, salt)
        seq = self._sequences[name]
        seq.num_computed = len(tokens)
        self._publish(seq)
        seq.num_computed = cached
        return cached

    def computed(self, name: Any, upto: int) -> None:
        seq = self._sequences[name]
        seq.num_computed = max(seq.num_computed, upto)
        if upto // self.block_size >= len(seq.chain):
            self._publish(seq)
        if self.window is not None:
            self._slide(seq)


@_plant("HASH-3P", "vLLM: blocks judged unreachable were not cached, and an immediate repeat missed")
class ForgetsToPublish(BlockManager):
    """Appended tokens never make a block findable."""

    def append(self, name: Any, tokens: Sequence[int]) -> None:
        super().append(name, tokens)
        self._sequences[name].salt = f"{name} at {len(self._sequences[name].tokens)}"


@_plant("HASH-4", "nano-vllm#114: the hit covers the whole prompt and no query token is left")
class FullHit(BlockManager):
    """A prompt of full blocks may be hit to its last token."""

    def _match(self, packed: array[int], salt: Any) -> list[PrefixNode]:
        num_tokens = len(packed) // self.block_size * self.block_size
        return self._cache.match(packed[:num_tokens].tobytes(), self.block_size * 8, salt)


@_plant(
    "HASH-5",
    "Megatron-LM: eviction by time stamps alone leaves holes in prefix chains, and the hit goes on behind them",
    "EVICT-2P",
)
class SkipsTheHole(BlockManager):
    """A block of the prefix that was evicted is counted as cached, since the one behind it still is."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._runs: dict[tuple[Any, tuple[int, ...]], int] = {}

    def _release_all(self, blocks: list[int]) -> None:
        for block in blocks:  # parent before leaf: the parent is evicted first
            if block >= 0:
                self._release(block)

    def _forget(self, block: int) -> None:
        super()._forget(block)
        self._runs = {run: kept for run, kept in self._runs.items() if kept != block}

    def cached_blocks(self) -> list[int]:
        return sorted({*super().cached_blocks(), *self._runs.values()})

    def _publish(self, seq: SequenceState) -> None:
        super()._publish(seq)
        for index in range(seq.num_computed // self.block_size):
            self._runs[seq.salt, tuple(seq.tokens[: (index + 1) * self.block_size])] = seq.table[index]

    def allocate(self, name: Any, tokens: Sequence[int], salt: Any = None) -> int:
        cached = super().allocate(name, tokens, salt)
        behind = cached // self.block_size + 1
        stop = (behind + 1) * self.block_size
        kept = self._runs.get((salt, tuple(tokens[:stop])))
        if kept is None or stop >= len(tokens) or self._pool.ref_counts[kept] or self.window:
            return cached
        table, pool = self._sequences[name].table, self._pool
        pool.blank(kept) if kept in pool._evictable else None
        pool._blank.remove(kept)
        pool.ref_counts[kept], pool.ref_counts[table[behind]] = 1, 0
        pool.retire(table[behind], evictable=False)
        table[behind] = kept
        return stop


# ---- forks and copies


@_plant("COW-1", "xLLM: the copy step was not enabled, both sides write the shared tail")
class NoCopyOnWrite(BlockManager):
    """Append writes into the shared tail block."""

    def _make_tail_writable(self, seq: SequenceState) -> None:
        self._cache.forget(seq.table[-1])

    def _append_needs(self, seq: SequenceState, num_new: int) -> int:
        return self._blocks_for(len(seq.tokens) + num_new) - len(seq.table)


@_plant("COW-3P", "a copy is made although nobody shares the block")
class CopiesAlways(BlockManager):
    """Append copies its tail block even when it alone holds it."""

    def _make_tail_writable(self, seq: SequenceState) -> None:
        block = seq.table[-1]
        if self._pool.ref_counts[block] > 1 or not self.num_free:
            super()._make_tail_writable(seq)
            return
        seq.table[-1] = self._take()
        self._copies.append(Copy(block, seq.table[-1], "device", "device"))
        self._release(block)

    def _append_needs(self, seq: SequenceState, num_new: int) -> int:
        writes_tail = num_new > 0 and len(seq.tokens) % self.block_size > 0
        return self._blocks_for(len(seq.tokens) + num_new) - len(seq.table) + writes_tail


@_plant("COW-4", "capacity check without the block that the copy takes")
class CopyNotCounted(BlockManager):
    """The can-do answer for append forgets the copy of a shared tail."""

    def can_append(self, name: Any, num_tokens: int) -> bool:
        seq = self._resident(name)
        return self._blocks_for(len(seq.tokens) + num_tokens) - len(seq.table) <= self.num_free


@_plant("CONTENT-1", "vllm-project/vllm Ascend: source and destination of a block copy are exchanged")
class CopiesBackwards(OurBlocks):
    """Copies on the device are reported with source and destination exchanged."""

    def copies(self) -> Any:
        found = super().copies()
        return [c._replace(src=c.dst, dst=c.src) if c.src_space == c.dst_space else c for c in found]


# ---- eviction, host memory, truncation, window, memory, crashes


@_plant("EVICT-1", "Megatron-LM and vLLM: matched blocks are pinned after the new ones were taken")
class PinsLate(BlockManager):
    """Fresh blocks are taken before the matched ones are held, so that a match may be evicted in the same call."""

    def allocate(self, name: Any, tokens: Sequence[int], salt: Any = None) -> int:
        seq_chain = self._match(array("q", tokens), salt)
        hits = [node.block for node in seq_chain[1:]]
        if not hits or any(self._pool.ref_counts[b] for b in hits) or self._blocks_for(len(tokens)) > self.num_free:
            return super().allocate(name, tokens, salt)
        fresh = [self._pool.take() for _ in range(self._blocks_for(len(tokens)) - len(hits))]
        for block in hits:
            if self._pool.ref_counts[block] == 0:
                self._pool.hold(block)
        cached = len(hits) * self.block_size
        table = hits + fresh
        self._sequences[name] = SequenceState(array("q", tokens), salt, table, seq_chain, cached, len(tokens), 0)
        return cached


@_plant("EVICT-2P", "mini-sglang: a node just used keeps its old time stamp")
class EvictsNewest(BlockManager):
    """The most recently released cached block goes first."""

    def _take(self) -> int:
        pool = self._pool
        if not pool._blank and pool._evictable:
            newest = next(reversed(pool._evictable))
            pool._evictable.move_to_end(newest, last=False)
        return super()._take()


@_plant("SWAP-1", "NVIDIA/TensorRT-LLM: host and device queues are mixed up when blocks come back")
class SwapsInBackwards(BlockManager):
    """The host blocks are brought back in the wrong order."""

    def swap_in(self, name: Any) -> None:
        seq = self._sequences[name]
        if seq.host_table is not None:
            seq.host_table.reverse()
        super().swap_in(name)


@_plant("TRIM-1", "vLLM V1: the block hashes of a request are kept across a truncation")
class KeepsDroppedHashes(BlockManager):
    """The block at the cut stays findable with the tokens that were dropped, and is then written again."""

    def truncate(self, name: Any, num_tokens: int) -> None:
        forget, self._forget = self._forget, lambda block: None  # type: ignore[method-assign]
        try:
            super().truncate(name, num_tokens)
        finally:
            self._forget = forget  # type: ignore[method-assign]

    def _make_tail_writable(self, seq: SequenceState) -> None:
        if self._pool.ref_counts[seq.table[-1]] > 1:
            super()._make_tail_writable(seq)


@_plant("WINDOW-1", "vllm-project/vllm#47282: blocks are freed by the scheduled length, too early")
class WindowTooShort(BlockManager):
    """The window ends one token too late, so that a block goes while its last token is still read."""

    def _window_start(self, num_tokens: int) -> int:
        return super()._window_start(num_tokens + 1)


@_plant("WINDOW-1P", "SGLang: blocks behind the window are never visited")
class WindowNeverFrees(BlockManager):
    """Blocks behind the window are kept to the end."""

    def _slide(self, seq: SequenceState) -> None:
        pass


@_plant("MEM-1", "block size computed for K alone")
class CountsKeysOnly(OurBlocks):
    """The bytes of a block leave out V."""

    def block_bytes(self, num_layers: int, num_kv_heads: int, head_dim: int, itemsize: int) -> int:
        return super().block_bytes(num_layers, num_kv_heads, head_dim, itemsize) // 2


class _RaisesIndexError(BlockManager):
    """An exhausted pool shows as an IndexError."""

    def append(self, name: Any, tokens: Sequence[int]) -> None:
        if self.blocks_needed_append(name, len(tokens)) > self.num_free:
            _pop_from_empty([])
        super().append(name, tokens)


def _pop_from_empty(free: list[int]) -> int:
    return free.pop()


@_plant("CRASH-1", "nano-vllm PR #211: IndexError where the pool is exhausted")
class CrashesWhenFull(_RaisesIndexError):
    """An append to a full pool raises IndexError instead of a refusal."""


@_plant("CRASH-2", "nano-vllm#274 and vLLM: an allocation that can never succeed waits for ever")
class WaitsForever(BlockManager):
    """A refused append tries again and again."""

    def append(self, name: Any, tokens: Sequence[int]) -> None:
        while self.blocks_needed_append(name, len(tokens)) > self.num_free:
            pass
        super().append(name, tokens)


FAULTS: tuple[Fault, ...] = tuple(_FOUND)
