"""A small Triton decode kernel with switches for the bugs that such kernels have had, a store kernel with one, and
kernels that are handed their tensors in other ways than as arguments.

Partition j of row s, head h holds softmax(q k^T) v over its range of tokens, and its log-sum-exp; the merge is done
by a second kernel. With every switch off the pair is correct.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import triton
import triton.language as tl
from msgspec.structs import replace
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from properties.attention.capabilities import AttentionCapabilities
from properties.attention.target import Batch, Output, Pool
from properties.attention.targets.plain import PlainTorch


@triton.jit
def partition_kernel(
    parts_ptr, lse_ptr, q_ptr, k_ptr, v_ptr, table_ptr, lens_ptr, scale, width, num_splits,
    stride_qs, stride_qh, stride_block, stride_token, stride_head, stride_part,
    RATIO: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, SIZE: tl.constexpr, TILE: tl.constexpr,
    MASK_VALUES: tl.constexpr, MASK_TABLE: tl.constexpr, WIDE: tl.constexpr, EMPTY_IS_ZERO: tl.constexpr,
):  # fmt: skip
    row, head, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    length = tl.load(lens_ptr + row)
    per_part = tl.maximum((length + num_splits - 1) // num_splits, 1)
    begin = part * per_part
    end = tl.minimum(begin + per_part, length)
    dim = tl.arange(0, BLOCK_D)
    q = tl.load(q_ptr + row * stride_qs + head * stride_qh + dim, mask=dim < D, other=0.0).to(tl.float32)
    peak = tl.full((), float("-inf"), tl.float32)
    total = tl.zeros((), tl.float32)
    acc = tl.zeros((BLOCK_D,), tl.float32)
    for start in range(begin, end, TILE):
        token = start + tl.arange(0, TILE)
        own = token < end
        if MASK_TABLE:
            block = tl.load(table_ptr + row * width + token // SIZE, mask=own, other=0)
        else:
            block = tl.load(table_ptr + row * width + token // SIZE)  # read past the row
        if WIDE:
            block = block.to(tl.int64)
        offset = block * stride_block + token % SIZE * stride_token + (head // RATIO) * stride_head
        inside = own[:, None] & (dim < D)[None, :]
        k = tl.load(k_ptr + offset[:, None] + dim[None, :], mask=inside, other=0.0).to(tl.float32)
        if MASK_VALUES:
            v = tl.load(v_ptr + offset[:, None] + dim[None, :], mask=inside, other=0.0).to(tl.float32)
        else:
            v = tl.load(v_ptr + offset[:, None] + dim[None, :], mask=(dim < D)[None, :], other=0.0).to(tl.float32)
        score = tl.where(own, tl.sum(k * q[None, :], 1) * scale, float("-inf"))
        new_peak = tl.maximum(peak, tl.max(score, 0))
        kept = tl.exp(peak - new_peak)
        weight = tl.exp(score - new_peak)
        total = total * kept + tl.sum(weight, 0)
        acc = acc * kept + tl.sum(weight[:, None] * v, 0)
        peak = new_peak
    if EMPTY_IS_ZERO:  # noqa: SIM108
        acc = acc / tl.where(total == 0.0, 1.0, total)
    else:
        acc = acc / total  # 0 / 0 in an empty partition
    place = (row * tl.num_programs(1) + head) * num_splits + part * stride_part
    tl.store(parts_ptr + place * BLOCK_D + dim, acc)
    tl.store(lse_ptr + place, peak + tl.log(total))


@triton.jit
def merge_kernel(out_ptr, parts_ptr, lse_ptr, num_splits, stride_part, D: tl.constexpr, BLOCK_D: tl.constexpr):
    row = tl.program_id(0)
    dim = tl.arange(0, BLOCK_D)
    peak = tl.full((), float("-inf"), tl.float32)
    total = tl.zeros((), tl.float32)
    acc = tl.zeros((BLOCK_D,), tl.float32)
    for part in range(num_splits):
        place = row * num_splits + part * stride_part
        lse = tl.load(lse_ptr + place)
        new_peak = tl.maximum(peak, lse)
        floor = tl.where(new_peak == float("-inf"), 0.0, new_peak)
        kept, weight = tl.exp(peak - floor), tl.exp(lse - floor)
        total = total * kept + weight
        acc = acc * kept + weight * tl.load(parts_ptr + place * BLOCK_D + dim)
        peak = new_peak
    acc = acc / tl.where(total == 0.0, 1.0, total)
    tl.store(out_ptr + row * D + dim, acc.to(out_ptr.dtype.element_ty), mask=dim < D)


@triton.jit
def store_kernel(key_ptr, value_ptr, k_ptr, v_ptr, slots_ptr, stride_token, D: tl.constexpr):
    """As in nano-vllm: one program a token, heads x head size as one range, which must be a power of two."""
    token = tl.program_id(0)
    slot = tl.load(slots_ptr + token)
    if slot == -1:
        return
    dim = tl.arange(0, D)
    tl.store(k_ptr + slot * D + dim, tl.load(key_ptr + token * stride_token + dim))
    tl.store(v_ptr + slot * D + dim, tl.load(value_ptr + token * stride_token + dim))


@triton.jit
def put_words_kernel(key_ptr, value_ptr, k_ptr, v_ptr, slots_ptr, count, num_words, SIZE: tl.constexpr):
    """A store that does not know the dtype; the rows of its tokens are twice as far apart."""
    token, word = tl.program_id(0), tl.arange(0, SIZE)
    slot = tl.load(slots_ptr + token)
    if slot == -1:
        return
    source, target = token * num_words * 2 + word, slot * num_words + word
    tl.store(k_ptr + target, tl.load(key_ptr + source, mask=word < count), mask=word < count)
    tl.store(v_ptr + target, tl.load(value_ptr + source, mask=word < count), mask=word < count)


@triton.jit
def copy_kernel(address_ptr, pair_ptr, count, num_bytes, SIZE: tl.constexpr):
    """As in vLLM and SGLang: one launch copies a block in the caches of all layers, told where they begin."""
    cache = tl.load(address_ptr + tl.program_id(0)).to(tl.pointer_type(tl.uint8))
    source, destination = tl.load(pair_ptr), tl.load(pair_ptr + 1)
    for start in range(0, count, SIZE):
        byte = start + tl.arange(0, SIZE)
        value = tl.load(cache + source * num_bytes + byte, mask=byte < count)
        tl.store(cache + destination * num_bytes + byte, value, mask=byte < count)


@triton.jit
def pass_on_kernel(both, count, SIZE: tl.constexpr):
    lane = tl.arange(0, SIZE)
    tl.store(both[1] + lane, tl.load(both[0] + lane, mask=lane < count), mask=lane < count)


@triton.jit
def pass_on_tile_kernel(source, target):
    target.store([0, 0], source.load([0, 0]))


CAPABILITIES = AttentionCapabilities(dtypes=("float32",), num_splits=True, max_context=40, reads_only_owned=True)


@dataclass
class SmallTriton:
    """The kernels as a target. Each switch that is turned off is one bug."""

    mask_values: bool = True
    mask_table: bool = True
    wide_offsets: bool = True
    empty_is_zero: bool = True
    partial_stride: int = 1
    level: Literal["attention"] = "attention"
    name: str = "small-triton"
    capabilities: AttentionCapabilities = CAPABILITIES

    def decode(self, pool: Pool, batch: Batch) -> Output:
        keys, values = pool.flash_views()
        num_rows, num_heads, head_size = batch.q.shape
        splits, block_d = batch.num_splits or 1, triton.next_power_of_2(head_size)
        parts = torch.empty(num_rows * num_heads * splits, block_d)
        lse = torch.empty(num_rows * num_heads * splits)
        tables = batch.padded_block_tables()
        partition_kernel[(num_rows, num_heads, splits)](
            parts, lse, batch.q, keys, values, tables, batch.context_lens_tensor(), batch.scale, tables.shape[1], splits,
            batch.q.stride(0), batch.q.stride(1), *keys.stride()[:3], self.partial_stride,
            num_heads // batch.num_kv_heads, head_size, block_d, batch.block_size, 16,
            self.mask_values, self.mask_table, self.wide_offsets, self.empty_is_zero,
        )  # fmt: skip
        out = torch.empty(batch.q.shape, dtype=batch.q.dtype)
        merge_kernel[(num_rows * num_heads,)](out, parts, lse, splits, self.partial_stride, head_size, block_d)
        return Output(out)

    def store(self, pool: Pool, keys: Tensor, values: Tensor, slot_mapping: Tensor) -> None:
        cache = pool.flash_views()
        elements = keys.shape[1] * keys.shape[2]
        store_kernel[(keys.shape[0],)](keys, values, *cache, slot_mapping, keys.stride(0), elements)


@dataclass
class StoreInWords(SmallTriton):
    """Stores by the same kernel, tokens and caches seen as words of another size. `excess`: words too many, a bug."""

    word: torch.dtype = torch.uint8
    excess: int = 0

    def store(self, pool: Pool, keys: Tensor, values: Tensor, slot_mapping: Tensor) -> None:
        caches = [cache.view(self.word) for cache in pool.flash_views()]
        keys, values = (tokens.contiguous().flatten(1).view(self.word) for tokens in (keys, values))
        words = keys.shape[1]
        keys, values = (torch.nn.functional.pad(tokens, (0, words)) for tokens in (keys, values))
        put_words_kernel[(keys.shape[0],)](
            keys, values, *caches, slot_mapping, words + self.excess, words, triton.next_power_of_2(words + self.excess)
        )


@dataclass
class CopyByAddress(SmallTriton):
    """Copies blocks in all caches by one launch a pair, which gets their addresses in a tensor of integers. `excess`:
    bytes too many, which is a bug.
    """

    excess: int = 0

    def copy_blocks(self, pools: Sequence[Pool], pairs: Sequence[tuple[int, int]]) -> None:
        caches = [cache for pool in pools for cache in (pool.key_cache, pool.value_cache)]
        addresses = torch.tensor([cache.data_ptr() for cache in caches])
        num_bytes = caches[0][0].numel() * caches[0].element_size()
        for pair in pairs:
            copy_kernel[(len(caches),)](addresses, torch.tensor(pair), num_bytes + self.excess, num_bytes, 64)


@dataclass
class PassesOn(SmallTriton):
    """Hands the output of the decode kernels through one more kernel, in a tuple, reinterpreted or by a descriptor.
    `excess`: elements too many, which is a bug.
    """

    way: Literal["tuple", "reinterpreted", "descriptor"] = "tuple"
    excess: int = 0

    def decode(self, pool: Pool, batch: Batch) -> Output:
        source = super().decode(pool, batch).out.reshape(1, -1)
        count, spare = source.numel(), torch.zeros(1, 64)
        source = torch.cat([source, spare], 1)[:, :count]  # what is behind it is memory of this process
        target = torch.cat([torch.empty_like(source), spare], 1)
        size, claimed = triton.next_power_of_2(count + self.excess), count + self.excess
        if self.way == "descriptor":
            tiles = [TensorDescriptor(part, [1, claimed], [claimed, 1], [1, size]) for part in (source, target)]
            pass_on_tile_kernel[(1,)](*tiles)
        else:
            both = (source, target)
            if self.way == "reinterpreted":
                both = tuple(triton.reinterpret(part, tl.int32) for part in both)
            pass_on_kernel[(1,)](both, claimed, size)
        return Output(target[:, :count].reshape(batch.q.shape))


@triton.jit
def peek_kernel(out_ptr, k_ptr, table_ptr, column_ptr, shift, width, stride_block):
    row = tl.program_id(0)
    block = tl.load(table_ptr + row * width + tl.load(column_ptr + row)).to(tl.int64) + shift
    tl.store(out_ptr + row, tl.load(k_ptr + block * stride_block).to(tl.float32))  # the peek


class Peeks(PlainTorch):
    """Right, but for a key of each sequence that is loaded and not used: the first one of the block that the first entry of
    its row of the table names, or the first entry behind its last block, or of the block `shift` ids behind.
    """

    name = "peeks"
    capabilities = replace(PlainTorch.capabilities, reads_only_owned=True)

    def __init__(self, *, behind: bool = False, shift: int = 0) -> None:
        self.behind, self.shift = behind, shift

    def _read(self, pool: Pool, batch: Batch) -> Output:
        tables, keys = batch.padded_block_tables(), pool.flash_views()[0]
        needed = torch.tensor([-(-length // batch.block_size) for length in batch.context_lens], dtype=torch.int32)
        columns = torch.where(needed < tables.shape[1], needed, 0) if self.behind else torch.zeros_like(needed)
        unused, strides = torch.zeros(tables.shape[0]), (tables.stride(0), keys.stride(0))
        peek_kernel[(tables.shape[0],)](unused, keys, tables, columns, self.shift, *strides)
        return super()._read(pool, batch)
