"""Planted faults of the block manager: the prefix cache, copies, eviction, host memory, truncation, windows."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

from fuzz.faults import Fault
from fuzz.faults.blocks_variant import planter
from paged_impl.block_manager import BlockManager, Copy
from paged_impl.prefix_cache import PrefixCache, PrefixNode, salted
from paged_impl.sequence_state import SequenceState
from properties.targets.ours import OurBlocks

_FOUND: list[Fault] = []
plant = planter(_FOUND)


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


@plant("HASH-1", "openvinotoolkit/openvino.genai: on a hit the tokens are not compared; the hash alone decides")
class BelievesTheHash(BlockManager):
    """A collision of the block hash is a hit."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._cache = _Believing(self.num_blocks, kwargs.get("hash_fn"))


@plant("HASH-2", "ROCm/ATOM: the whole prompt is registered inside allocate, before its KV is written")
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


@plant("HASH-3P", "vLLM: blocks judged unreachable were not cached, and an immediate repeat missed")
class ForgetsToPublish(BlockManager):
    """Appended tokens never make a block findable."""

    def append(self, name: Any, tokens: Sequence[int]) -> None:
        super().append(name, tokens)
        self._sequences[name].salt = f"{name} at {len(self._sequences[name].tokens)}"


@plant("HASH-4", "nano-vllm#114: the hit covers the whole prompt and no query token is left")
class FullHit(BlockManager):
    """A prompt of full blocks may be hit to its last token."""

    def _match(self, packed: array[int], salt: Any) -> list[PrefixNode]:
        num_tokens = len(packed) // self.block_size * self.block_size
        return self._cache.match(packed[:num_tokens].tobytes(), self.block_size * 8, salt)


@plant(
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


@plant("COW-1", "xLLM: the copy step was not enabled, both sides write the shared tail")
class NoCopyOnWrite(BlockManager):
    """Append writes into the shared tail block."""

    def _make_tail_writable(self, seq: SequenceState) -> None:
        self._cache.forget(seq.table[-1])

    def _append_needs(self, seq: SequenceState, num_new: int) -> int:
        return self._blocks_for(len(seq.tokens) + num_new) - len(seq.table)


@plant("COW-3P", "a copy is made although nobody shares the block")
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


@plant("COW-4", "capacity check without the block that the copy takes")
class CopyNotCounted(BlockManager):
    """The can-do answer for append forgets the copy of a shared tail."""

    def can_append(self, name: Any, num_tokens: int) -> bool:
        seq = self._resident(name)
        return self._blocks_for(len(seq.tokens) + num_tokens) - len(seq.table) <= self.num_free


@plant("CONTENT-1", "vllm-project/vllm Ascend: source and destination of a block copy are exchanged")
class CopiesBackwards(OurBlocks):
    """Copies on the device are reported with source and destination exchanged."""

    def copies(self) -> Any:
        found = super().copies()
        return [c._replace(src=c.dst, dst=c.src) if c.src_space == c.dst_space else c for c in found]


# ---- eviction, host memory, truncation, window, memory, crashes


@plant("EVICT-1", "Megatron-LM and vLLM: matched blocks are pinned after the new ones were taken")
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


@plant("EVICT-2P", "mini-sglang: a node just used keeps its old time stamp")
class EvictsNewest(BlockManager):
    """The most recently released cached block goes first."""

    def _take(self) -> int:
        pool = self._pool
        if not pool._blank and pool._evictable:
            newest = next(reversed(pool._evictable))
            pool._evictable.move_to_end(newest, last=False)
        return super()._take()


@plant("SWAP-1", "NVIDIA/TensorRT-LLM: host and device queues are mixed up when blocks come back")
class SwapsInBackwards(BlockManager):
    """The host blocks are brought back in the wrong order."""

    def swap_in(self, name: Any) -> None:
        seq = self._sequences[name]
        if seq.host_table is not None:
            seq.host_table.reverse()
        super().swap_in(name)


@plant("TRIM-1", "vLLM V1: the block hashes of a request are kept across a truncation")
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


@plant("WINDOW-1", "vllm-project/vllm#47282: blocks are freed by the scheduled length, too early")
class WindowTooShort(BlockManager):
    """The window ends one token too late, so that a block goes while its last token is still read."""

    def _window_start(self, num_tokens: int) -> int:
        return super()._window_start(num_tokens + 1)


@plant("WINDOW-1P", "SGLang: blocks behind the window are never visited")
class WindowNeverFrees(BlockManager):
    """Blocks behind the window are kept to the end."""

    def _slide(self, seq: SequenceState) -> None:
        pass


@plant("MEM-1", "block size computed for K alone")
class CountsKeysOnly(OurBlocks):
    """The bytes of a block leave out V."""

    def block_bytes(self, num_layers: int, num_kv_heads: int, head_dim: int, itemsize: int) -> int:
        return super().block_bytes(num_layers, num_kv_heads, head_dim, itemsize) // 2


FAULTS: tuple[Fault, ...] = tuple(_FOUND)
