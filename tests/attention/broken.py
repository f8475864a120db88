"""Broken variants of the plain torch target, one bug each: the negative controls of the attention properties.

Every class says which record of the field it copies, and `breaks`: the clause that must catch it.
"""

from collections.abc import Sequence
from typing import ClassVar

import torch
from msgspec.structs import replace
from torch import Tensor

from properties.attention.capabilities import AttentionCapabilities
from properties.attention.target import Batch, Output, Pool
from properties.attention.targets.plain import PlainTorch

WHOLE = PlainTorch.capabilities


def declaring(**changes: object) -> AttentionCapabilities:
    """The plain target's declaration with changes."""
    return replace(WHOLE, **changes)


class Broken(PlainTorch):
    """`breaks`: the expected clause. `clue`: words that the explanation must contain."""

    breaks: ClassVar[str]
    clue: ClassVar[str] = ""


class NoValueMask(Broken):
    """Whole blocks are loaded, scores masked, values not: 0 x NaN (vllm#641, flash-attention#2374)."""

    breaks, clue = "READ-2", "values of slots that no query of the sequence may read"

    def _attend(self, pool: Pool, batch: Batch, table: Tensor, rows: slice, context_len: int) -> tuple[Tensor, Tensor]:
        size = batch.block_size
        full = -(-context_len // size) * size
        keys, values = super()._gather(pool, batch, table, full)
        ratio = batch.q.shape[1] // batch.num_kv_heads
        scores = batch.scale * torch.einsum("thd,nhd->htn", batch.q[rows].float(), keys.repeat_interleave(ratio, 1))
        own = torch.arange(rows.stop - rows.start)[:, None] + context_len - (rows.stop - rows.start)
        position = torch.arange(full)
        scores = scores.masked_fill(position > own, -torch.inf)
        out, lse = self._softmax(scores, values.repeat_interleave(ratio, 1))
        return out.transpose(0, 1).to(batch.q.dtype), lse.transpose(0, 1)

    capabilities = declaring(window=False)


class MaskIsAdded(NoValueMask):
    """The mask is added to the scores: NaN + -inf is NaN (Wan2GP, bugs NUMR-09)."""

    breaks, clue = "READ-2", "keys of slots that no query of the sequence may read"

    def _attend(self, pool: Pool, batch: Batch, table: Tensor, rows: slice, context_len: int) -> tuple[Tensor, Tensor]:
        size = batch.block_size
        full = -(-context_len // size) * size
        keys, values = super()._gather(pool, batch, table, full)
        values[context_len:] = 0
        ratio = batch.q.shape[1] // batch.num_kv_heads
        scores = batch.scale * torch.einsum("thd,nhd->htn", batch.q[rows].float(), keys.repeat_interleave(ratio, 1))
        own = torch.arange(rows.stop - rows.start)[:, None] + context_len - (rows.stop - rows.start)
        scores = scores + torch.zeros_like(scores).masked_fill(torch.arange(full) > own, -torch.inf)
        out, lse = self._softmax(scores, values.repeat_interleave(ratio, 1))
        return out.transpose(0, 1).to(batch.q.dtype), lse.transpose(0, 1)


class SmallWeightForMasked(NoValueMask):
    """A masked slot keeps a tiny weight (exp that saturates above 0, bugs NUMR-11): below every tolerance."""

    breaks, clue = "READ-2", "with a small weight"
    capabilities = declaring(window=False, withstands=("attractor",), dtypes=("float32",))

    def _attend(self, pool: Pool, batch: Batch, table: Tensor, rows: slice, context_len: int) -> tuple[Tensor, Tensor]:
        out, lse = PlainTorch._attend(self, pool, batch, table, rows, context_len)
        size = batch.block_size
        _, values = super()._gather(pool, batch, table, -(-context_len // size) * size)
        stale = values[context_len:].sum(0).repeat_interleave(batch.q.shape[1] // batch.num_kv_heads, 0)
        return out + 3e-8 * stale, lse


class UnmaskedTableRead(Broken):
    """Every entry of the padded table row is followed (vLLM's Triton kernel reads past a row's blocks)."""

    breaks, clue = "READ-2", "block-table entries behind the last block"

    def _gather(self, pool: Pool, batch: Batch, table: Tensor, context_len: int) -> tuple[Tensor, Tensor]:
        keys, values = (cache[table].flatten(0, 1)[:context_len].float() for cache in pool.flash_views())
        return keys, values


class PaddingWeighsALittle(Broken):
    """The id behind the last block is read, and reaches the output below every tolerance."""

    breaks, clue = "READ-2", "other block-table entries behind the last block"
    capabilities = declaring(dtypes=("float32",))

    def _attend(self, pool: Pool, batch: Batch, table: Tensor, rows: slice, context_len: int) -> tuple[Tensor, Tensor]:
        out, lse = super()._attend(pool, batch, table, rows, context_len)
        behind = table[-(-context_len // batch.block_size) :].clamp(-1, 1)
        return out + 1e-7 * behind.sum() * (out + 1), lse


class Int32Offsets(Broken):
    """block id x stride in 32 bits (vllm#47671, vllm#50427, FlashInfer#3136)."""

    breaks, clue = "READ-3", "passes 2**31"

    def _gather(self, pool: Pool, batch: Batch, table: Tensor, context_len: int) -> tuple[Tensor, Tensor]:
        tokens = []
        for cache in pool.flash_views():
            blocks = []
            for block in table[: -(-context_len // batch.block_size)].tolist():
                offset = (block * cache.stride(0) + 2**31) % 2**32 - 2**31  # as int32 arithmetic wraps
                start = cache.storage_offset() + offset
                blocks.append(cache.as_strided(cache.shape[1:], cache.stride()[1:], start))
            tokens.append(torch.cat(blocks)[:context_len].float())
        return tokens[0], tokens[1]


class SixteenBitBlockIds(Broken):
    """Block ids cut to 16 bits (ROCm/ATOM#702)."""

    breaks, clue = "READ-3", "ids from 65536"

    def _gather(self, pool: Pool, batch: Batch, table: Tensor, context_len: int) -> tuple[Tensor, Tensor]:
        return super()._gather(pool, batch, table & 0xFFFF, context_len)


class MergesDescendingBlocks(Broken):
    """Two neighbouring blocks are copied from the lower address, whatever their order (vllm-ascend#14039)."""

    breaks, clue = "READ-1", ""

    def _gather(self, pool: Pool, batch: Batch, table: Tensor, context_len: int) -> tuple[Tensor, Tensor]:
        used = table[: -(-context_len // batch.block_size)].clone()
        for i in range(0, len(used) - 1, 2):
            if used[i] == used[i + 1] + 1:
                used[i], used[i + 1] = used[i + 1].clone(), used[i].clone()
        return super()._gather(pool, batch, used, context_len)


class IgnoresTheTable(Broken):
    """The pool is read as contiguous memory (bugs META-08, META-10)."""

    breaks, clue = "READ-1", "identity block table"

    def _gather(self, pool: Pool, batch: Batch, table: Tensor, context_len: int) -> tuple[Tensor, Tensor]:
        identity = torch.arange(table.numel()) % pool.flash_views()[0].shape[0]
        return super()._gather(pool, batch, identity, context_len)

    capabilities = declaring(withstands=("attractor",))


class SwappedPage(Broken):
    """The second block is read from its neighbour."""

    breaks, clue = "READ-1", "read in place of block"
    capabilities = declaring(withstands=("attractor",))

    def _gather(self, pool: Pool, batch: Batch, table: Tensor, context_len: int) -> tuple[Tensor, Tensor]:
        used = table[: -(-context_len // batch.block_size)].clone()
        if len(used) > 1:
            used[1] = (used[1] + 1) % pool.flash_views()[0].shape[0]
        return super()._gather(pool, batch, used, context_len)


class WrongKVHead(Broken):
    """Query head h reads KV head h % num_kv_heads."""

    breaks, clue = "READ-1", "KV head h % num_kv_heads"

    def _per_query_head(self, tokens: Tensor, num_heads: int) -> Tensor:
        return tokens.repeat(1, num_heads // tokens.shape[1], 1)


class LastTokenDropped(Broken):
    """The context length is one short."""

    breaks, clue = "READ-1", "the last token dropped"
    capabilities = declaring(num_splits=False, lse_base=None)

    def decode(self, pool: Pool, batch: Batch) -> Output:
        out, lse = torch.zeros_like(batch.q), torch.zeros(batch.q.shape[:2])
        tables = batch.padded_block_tables().long()
        for s, length in enumerate(batch.context_lens):
            if length:
                rows = slice(s, s + 1)
                shorter = max(length - 1, 1)
                out[rows], lse[rows] = self._attend(pool, batch, tables[s], rows, shorter)
        return Output(out, None)


class StaleTokenAdded(LastTokenDropped):
    """One slot behind the context takes part."""

    breaks, clue = "READ-1", "one stale token added"
    capabilities = declaring(num_splits=False, lse_base=None, withstands=("attractor",), window=False)

    def decode(self, pool: Pool, batch: Batch) -> Output:
        out = torch.zeros_like(batch.q)
        tables = batch.padded_block_tables().long()
        for s, length in enumerate(batch.context_lens):
            if length:
                rows = slice(s, s + 1)
                longer = min(length + 1, -(-length // batch.block_size) * batch.block_size)
                out[rows], _ = self._attend(pool, batch, tables[s], rows, longer)
        return Output(out, None)


class NoMaximum(Broken):
    """Exponentials of the bare scores: infinite from 89 on (the reason for the running maximum, arXiv:1805.02867)."""

    breaks = "READ-1"

    def _softmax(self, scores: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        maximum = self._maximum(scores)
        weights = torch.exp(scores - maximum)
        total = weights.sum(2, keepdim=True)
        out = torch.einsum("htn,nhd->htd", weights / total.masked_fill(total == 0, 1.0), values)
        return out, (torch.log(total) + maximum)[..., 0]

    def _maximum(self, scores: Tensor) -> Tensor:
        return torch.zeros_like(scores[..., :1])


class MaximumOfTheFirstTile(NoMaximum):
    """The running maximum does not run: later tiles do not raise it."""

    def _maximum(self, scores: Tensor) -> Tensor:
        first = scores[..., :4].amax(2, keepdim=True)
        return first.masked_fill(first == -torch.inf, 0.0)


class ScaleIgnored(Broken):
    """The scale argument is lost on the way (FlashInfer#1023)."""

    breaks, clue = "READ-1", "head_size ** -0.5"

    def _read(self, pool: Pool, batch: Batch) -> Output:
        from dataclasses import replace as with_fields

        return super()._read(pool, with_fields(batch, scale=batch.q.shape[2] ** -0.5))


class WindowIgnored(Broken):
    """The sliding window has no effect in the first block (bugs SWIN-10)."""

    breaks, clue = "READ-1", "window"
    capabilities = declaring(withstands=())

    def _read(self, pool: Pool, batch: Batch) -> Output:
        from dataclasses import replace as with_fields

        return super()._read(pool, with_fields(batch, window=None if batch.window is None else batch.window + 1))


class FreedBlocksNotMasked(Broken):
    """What lies before the window is hidden by its scores alone: 0 x whatever a freed block holds by now."""

    breaks, clue = "READ-2", "values of slots that no query of the sequence may read"
    capabilities = declaring(num_splits=False)

    def _attend(self, pool: Pool, batch: Batch, table: Tensor, rows: slice, context_len: int) -> tuple[Tensor, Tensor]:
        if batch.window is None:
            return super()._attend(pool, batch, table, rows, context_len)
        keys, values = (
            self._per_query_head(t, batch.q.shape[1]) for t in self._gather(pool, batch, table, context_len)
        )
        scores = batch.scale * torch.einsum("thd,nhd->htn", batch.q[rows].float(), keys)
        position, own = (
            torch.arange(context_len),
            torch.arange(rows.stop - rows.start) + context_len - (rows.stop - rows.start),
        )
        hidden = (position > own[:, None]) | (position <= own[:, None] - batch.window)
        values[: self.first_loaded(int(own[0]) - batch.window + 1, batch.block_size)] = 0
        out, lse = self._softmax(scores.masked_fill(hidden, -torch.inf), values)
        return out.transpose(0, 1).to(batch.q.dtype), lse.transpose(0, 1)

    def first_loaded(self, first_seen: int, block_size: int) -> int:
        """The first position whose values are multiplied, if only by 0."""
        return 0


class CausalAtTopLeft(Broken):
    """The causal mask is aligned at the first token, not the last (a cached prefix makes them differ)."""

    breaks, clue = "READ-1", "aligned at the top left"
    capabilities = declaring(window=False, lse_base=None)

    def prefill(self, pool: Pool, batch: Batch) -> Output:
        out, begin = torch.zeros_like(batch.q), 0
        tables = batch.padded_block_tables().long()
        for s, (query_len, length) in enumerate(zip(batch.query_lens, batch.context_lens, strict=True)):
            for token in range(query_len):
                row = slice(begin + token, begin + token + 1)
                out[row], _ = self._attend(pool, batch, tables[s], row, token + 1)
            begin += query_len
            assert length >= query_len
        return Output(out)


class CachedPrefixLeftOut(Broken):
    """Prefill attends to the tokens of this step alone (bugs META-08)."""

    breaks, clue = "READ-1", "the cached prefix left out"
    capabilities = declaring(window=False, lse_base=None)

    def prefill(self, pool: Pool, batch: Batch) -> Output:
        out, begin = torch.zeros_like(batch.q), 0
        tables = batch.padded_block_tables().long()
        for s, (query_len, length) in enumerate(zip(batch.query_lens, batch.context_lens, strict=True)):
            rows = slice(begin, begin := begin + query_len)
            if query_len:
                keys, values = (t[length - query_len :] for t in self._gather(pool, batch, tables[s], length))
                ratio = batch.q.shape[1] // batch.num_kv_heads
                scores = batch.scale * torch.einsum(
                    "thd,nhd->htn", batch.q[rows].float(), keys.repeat_interleave(ratio, 1)
                )
                scores = scores.masked_fill(torch.ones(query_len, query_len).triu(1).bool(), -torch.inf)
                out_HTD, _ = self._softmax(scores, values.repeat_interleave(ratio, 1))
                out[rows] = out_HTD.transpose(0, 1).to(out.dtype)
        return Output(out)


class EmptyPartitionIsNaN(Broken):
    """-inf minus -inf in the merge (pegainfer#21, FlashInfer#4051)."""

    breaks, clue = "READ-4", "num_splits"
    capabilities = declaring(ratios=(1,))

    def _merge(self, outs: Tensor, lses: Tensor) -> tuple[Tensor, Tensor]:
        empty = torch.full_like(lses[:1], -torch.inf)  # one partition more than there are tokens
        if lses.shape[0] > 2:
            lses, outs = torch.cat([empty, lses]), torch.cat([torch.zeros_like(outs[:1]), outs])
            running, total = lses[0], torch.zeros_like(lses[0])
            for lse in lses:
                new = torch.maximum(running, lse)
                total = total * torch.exp(running - new) + torch.exp(lse - new)  # NaN while both are -inf
                running = new
            merged = running + torch.log(total)
            return (torch.exp(lses - merged)[..., None] * outs).sum(0), merged
        return super()._merge(outs, lses)


class PartialsOverwriteEachOther(Broken):
    """All partitions write their partial result to one place (stride 0)."""

    breaks, clue = "READ-4", "num_splits"

    def _merge(self, outs: Tensor, lses: Tensor) -> tuple[Tensor, Tensor]:
        return super()._merge(outs[-1:].expand_as(outs), lses)


class PartialsAveraged(Broken):
    """Without the LSE the partitions are averaged (FlashInfer#50)."""

    breaks, clue = "READ-4", "without asking for the LSE"

    def _read(self, pool: Pool, batch: Batch) -> Output:
        self.averages = not batch.want_lse
        return super()._read(pool, batch)

    def _merge(self, outs: Tensor, lses: Tensor) -> tuple[Tensor, Tensor]:
        return (outs.mean(0), lses[0]) if self.averages else super()._merge(outs, lses)


class PartialsNotDivided(Broken):
    """Partial results are kept undivided, and merged as if they were divided (LightLLM's gqa_flash_decoding_vsm)."""

    breaks, clue = "READ-1", "what a (token, head) is divided by is not the sum of its weights"

    def _softmax(self, scores: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        out, lse = super()._softmax(scores, values)
        total = torch.exp(lse - scores.amax(2))
        return out * total.nan_to_num(1.0)[..., None], lse


class LseInBaseTwo(Broken):
    """The LSE is returned in base 2 and declared in base e."""

    breaks, clue = "READ-4", "it is the LSE in base 2, declared is lse_base='e'"

    def _read(self, pool: Pool, batch: Batch) -> Output:
        out, lse = super()._read(pool, batch)
        return Output(out, None if lse is None else lse / 0.6931471805599453)


class LengthOfTheFirstRow(Broken):
    """A kernel loop is bounded by the first row's length (bugs SPLT-03, META-07)."""

    breaks, clue = "READ-5", ""

    def _attend(self, pool: Pool, batch: Batch, table: Tensor, rows: slice, context_len: int) -> tuple[Tensor, Tensor]:
        bound = max(batch.context_lens[0], rows.stop - rows.start)
        return super()._attend(pool, batch, table, rows, min(context_len, bound))


class SplitsByBatchSize(Broken):
    """The number of partitions depends on the batch: legal, unless bit-exactness is promised."""

    breaks, clue = "READ-5P", "other bits"
    capabilities = declaring(num_splits=False, dtypes=("float32",))

    def _read(self, pool: Pool, batch: Batch) -> Output:
        from dataclasses import replace as with_fields

        return super()._read(pool, with_fields(batch, num_splits=len(batch.context_lens)))


class AccumulatesInBlockIdOrder(Broken):
    """Blocks are visited in the order of their ids: legal, unless bit-exact placement is promised."""

    breaks, clue = "READ-3P", "other bits"
    capabilities = declaring(window=False)

    def _attend(self, pool: Pool, batch: Batch, table: Tensor, rows: slice, context_len: int) -> tuple[Tensor, Tensor]:
        out, lse = super()._attend(pool, batch, table, rows, context_len)
        return torch.nextafter(out, out + 1) if len(table) > 1 and table[0] > table[1] else out, lse


class EmptyRowIsNaN(Broken):
    """A row of length 0 divides 0 by 0 (FlashInfer, bugs NUMR-14)."""

    breaks, clue = "READ-6", "NaN"

    def _read(self, pool: Pool, batch: Batch) -> Output:
        out, lse = super()._read(pool, batch)
        starts = batch.cu_seqlens_q().tolist()
        for s, length in enumerate(batch.context_lens):
            if length == 0:
                out[starts[s] : starts[s + 1]] = torch.nan
        return Output(out, lse)


class OneTokenUsesAStaleBuffer(Broken):
    """A context of one token takes a path of its own that never writes its result."""

    breaks, clue = "READ-6", "NaN"

    def _attend(self, pool: Pool, batch: Batch, table: Tensor, rows: slice, context_len: int) -> tuple[Tensor, Tensor]:
        out, lse = super()._attend(pool, batch, table, rows, context_len)
        return (torch.empty_like(out) if context_len == 1 else out), lse


class PaddingRowShiftsTheRest(Broken):
    """Rows of length 0 are skipped when the outputs are placed."""

    breaks, clue = "BATCH-3", "padding rows"

    def decode(self, pool: Pool, batch: Batch) -> Output:
        out, lse = super().decode(pool, batch)
        empty = [s for s, length in enumerate(batch.context_lens) if length == 0]
        if len(empty) in (0, len(batch.context_lens)) or max(batch.block_tables[empty[0]], default=-1) < 0:
            return Output(out, lse)
        return Output(torch.cat([out[1:], out[:1]]), lse)


class QueryAssumedContiguous(Broken):
    """The strides of the queries are ignored."""

    breaks, clue = "READ-7", "fused projection"

    def _read(self, pool: Pool, batch: Batch) -> Output:
        from dataclasses import replace as with_fields

        q, inner = batch.q, batch.q.shape[1] * batch.q.shape[2]
        flat = q.as_strided(q.shape, (inner, q.shape[2], 1))
        return super()._read(pool, with_fields(batch, q=flat))


class PoolAssumedContiguous(Broken):
    """The stride of a block is taken to be its size (FlashInfer#527)."""

    breaks, clue = "READ-7", "gaps between the blocks"
    capabilities = declaring(layouts=("flash",))

    def _gather(self, pool: Pool, batch: Batch, table: Tensor, context_len: int) -> tuple[Tensor, Tensor]:
        dense = [
            cache.as_strided(cache.shape, (cache[0].numel(), *cache.stride()[1:]), cache.storage_offset())
            for cache in (pool.key_cache, pool.value_cache)
        ]
        return super()._gather(Pool(dense[0], dense[1], pool.layout), batch, table, context_len)


class ValuesWithStridesOfKeys(Broken):
    """One stride is passed for both caches."""

    breaks, clue = "READ-7", "gaps between the blocks"
    capabilities = declaring(layouts=("flash",))

    def _gather(self, pool: Pool, batch: Batch, table: Tensor, context_len: int) -> tuple[Tensor, Tensor]:
        values = pool.value_cache.as_strided(
            pool.value_cache.shape, pool.key_cache.stride(), pool.value_cache.storage_offset()
        )
        return super()._gather(Pool(pool.key_cache, values, pool.layout), batch, table, context_len)


class LayoutMixedUp(Broken):
    """An HND cache is read as if it were flash."""

    breaks, clue = "LAYOUT-1", "hnd"

    def _gather(self, pool: Pool, batch: Batch, table: Tensor, context_len: int) -> tuple[Tensor, Tensor]:
        shape = pool.flash_views()[0].shape[1:]
        blocks = table[: -(-context_len // batch.block_size)]
        keys, values = (
            cache[blocks].reshape(-1, *shape).flatten(0, 1)[:context_len].float()
            for cache in (pool.key_cache, pool.value_cache)
        )
        return keys, values


class WritesWhileReading(Broken):
    """A read uses a slot of the pool as scratch memory."""

    breaks, clue = "STORE-1", "a read writes nothing"

    def _read(self, pool: Pool, batch: Batch) -> Output:
        output = super()._read(pool, batch)
        pool.key_cache[-1] = 0
        return output


class ScalesQueriesInPlace(Broken):
    """The scale is multiplied into the caller's queries, which other layers' code still holds."""

    breaks, clue = "STORE-1", "bytes of the queries"

    def _read(self, pool: Pool, batch: Batch) -> Output:
        output = super()._read(pool, batch)
        batch.q.mul_(0.5)
        return output


class StoreClearsItsTokens(Broken):
    """The caller's values serve as scratch memory once they are stored."""

    breaks, clue = "STORE-1", "changed its values"

    def store(self, pool: Pool, keys: Tensor, values: Tensor, slot_mapping: Tensor) -> None:
        super().store(pool, keys, values, slot_mapping)
        values.zero_()


class StoreShiftsItsSlots(Broken):
    """The slot mapping is advanced in place for the next step."""

    breaks, clue = "STORE-1", "changed its slots"

    def store(self, pool: Pool, keys: Tensor, values: Tensor, slot_mapping: Tensor) -> None:
        super().store(pool, keys, values, slot_mapping)
        slot_mapping.add_(1)


class Crashes(Broken):
    """A legal shape is refused (head counts that are no power of two, nano-vllm)."""

    breaks, clue = "CRASH-1", "power of two"

    def _read(self, pool: Pool, batch: Batch) -> Output:
        if batch.num_kv_heads & (batch.num_kv_heads - 1):
            raise ValueError(f"num_kv_heads={batch.num_kv_heads} must be a power of two")
        return super()._read(pool, batch)


class MinusOneIsTheLastSlot(Broken):
    """-1 // size and -1 % size index the last slot (vllm#43810)."""

    breaks, clue = "SLOT-3", "whose slot is -1"

    def store(self, pool: Pool, keys: Tensor, values: Tensor, slot_mapping: Tensor) -> None:
        for cache, tokens in zip(pool.flash_views(), (keys, values), strict=True):
            block_size = cache.shape[1]
            cache[slot_mapping // block_size, slot_mapping % block_size] = tokens


class MinusOneIsSlotZero(Broken):
    """Padding is clamped to slot 0 (sglang#36207)."""

    breaks, clue = "SLOT-3", "whose slot is -1"

    def store(self, pool: Pool, keys: Tensor, values: Tensor, slot_mapping: Tensor) -> None:
        clamped = slot_mapping.clamp_min(0)
        for cache, tokens in zip(pool.flash_views(), (keys, values), strict=True):
            cache[clamped // cache.shape[1], clamped % cache.shape[1]] = tokens


class ValuesNotStored(Broken):
    """Only the keys are written."""

    breaks, clue = "STORE-1", "not written"

    def store(self, pool: Pool, keys: Tensor, values: Tensor, slot_mapping: Tensor) -> None:
        super().store(Pool(pool.key_cache, pool.value_cache.clone(), pool.layout), keys, values, slot_mapping)


class StoresThroughFloat(Broken):
    """Values pass through arithmetic: NaN payloads and subnormals do not survive."""

    breaks, clue = "STORE-1", "other bits than its token"

    def store(self, pool: Pool, keys: Tensor, values: Tensor, slot_mapping: Tensor) -> None:
        super().store(pool, keys * 1.5 / 1.5, values, slot_mapping)


class StoreReachesTooFar(Broken):
    """One slot more than asked for is written (a padded vector store)."""

    breaks, clue = "STORE-1", "changed, though no token goes there"

    def store(self, pool: Pool, keys: Tensor, values: Tensor, slot_mapping: Tensor) -> None:
        super().store(pool, keys, values, slot_mapping)
        last = int(slot_mapping.max()) + 1
        for cache in pool.flash_views():
            if 0 < last < cache.shape[0] * cache.shape[1]:
                cache[last // cache.shape[1], last % cache.shape[1]] = 0


class StoreLeavesThePool(Broken):
    """The block behind the pool is written."""

    breaks, clue = "STORE-1", "outside the pool"
    capabilities = declaring(layouts=("flash",))

    def store(self, pool: Pool, keys: Tensor, values: Tensor, slot_mapping: Tensor) -> None:
        super().store(pool, keys, values, slot_mapping)
        cache = pool.value_cache
        end = cache.storage_offset() + (cache.shape[0] - 1) * cache.stride(0) + cache[0].numel()
        cache.as_strided((1,), (1,), end).fill_(0)


class StoreWrapsAt32Bits(Broken):
    """slot x stride in 32 bits (nano-vllm's store kernel)."""

    breaks, clue = "STORE-1", "not written"

    def store(self, pool: Pool, keys: Tensor, values: Tensor, slot_mapping: Tensor) -> None:
        for cache, tokens in zip(pool.flash_views(), (keys, values), strict=True):
            for token, slot in zip(tokens, slot_mapping.tolist(), strict=True):
                if slot >= 0:
                    offset = slot // cache.shape[1] * cache.stride(0) + slot % cache.shape[1] * cache.stride(1)
                    wrapped = (offset + 2**31) % 2**32 - 2**31
                    place = cache.as_strided(token.shape, cache.stride()[2:], cache.storage_offset() + wrapped)
                    place.copy_(token)


class StoresInAnotherLayout(Broken):
    """The writer uses another layout than the reader (vLLM ROCm, bugs NUMR-23)."""

    breaks, clue = "LAYOUT-1", "read in the hnd layout"
    capabilities = declaring(layouts=("flash",))

    def store(self, pool: Pool, keys: Tensor, values: Tensor, slot_mapping: Tensor) -> None:
        def as_hnd(cache: Tensor) -> Tensor:
            blocks, size, heads, dim = cache.shape
            strides = (cache.stride(0), dim, size * dim, 1)
            return cache.as_strided((blocks, size, heads, dim), strides, cache.storage_offset())

        mixed = Pool(as_hnd(pool.key_cache), as_hnd(pool.value_cache), pool.layout)
        super().store(mixed, keys, values, slot_mapping)


class KeysNotCopied(Broken):
    """A block copy copies the values alone."""

    breaks, clue = "COW-2", "keys of block"

    def copy_blocks(self, pools: Sequence[Pool], pairs: Sequence[tuple[int, int]]) -> None:
        for pool in pools:
            for source, destination in pairs:
                pool.value_cache[destination] = pool.value_cache[source]


class OneLayerCopied(Broken):
    """A block copy reaches the first layer alone."""

    breaks, clue = "COW-2", "layer 1"

    def copy_blocks(self, pools: Sequence[Pool], pairs: Sequence[tuple[int, int]]) -> None:
        super().copy_blocks(pools[:1], pairs)


class CopiesOutOfOrder(Broken):
    """All copies read before any is written: a block that is copied on is copied stale."""

    breaks, clue = "COW-2", "was not copied"

    def copy_blocks(self, pools: Sequence[Pool], pairs: Sequence[tuple[int, int]]) -> None:
        for pool in pools:
            for cache in (pool.key_cache, pool.value_cache):
                read = [cache[source].clone() for source, _ in pairs]
                for (_, destination), block in zip(pairs, read, strict=True):
                    cache[destination] = block


def all_broken() -> list[type[Broken]]:
    """Every variant, in the order of this file."""
    found: list[type[Broken]] = []
    waiting = list(Broken.__subclasses__())
    while waiting:
        cls = waiting.pop(0)
        found += [cls] * (cls.__module__ == __name__)  # tests derive others, which are no controls
        waiting = [*cls.__subclasses__(), *waiting]
    return found
