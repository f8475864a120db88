"""Write the keys and values of new tokens into a paged cache.

    for each token t with slot_mapping[t] >= 0, head h, component j:
        block, offset = divmod(slot_mapping[t], block_size)
        k_cache[block, offset, h, j] = key[t, h, j]                      flash layout
        k_cache[block, h, j // x, offset, j % x] = key[t, h, j]          packed layout (vLLM), x elements = 16 bytes
        v_cache[block, offset, h, j] or v_cache[block, h, j, offset] = value[t, h, j]

Slots are widened to int64 before they are multiplied: slot * stride passes 2**31 in pools of a few GB. A program copies
a tile of (token, head) rows, so that neither the number of heads nor the head dim need be a power of two.
"""

import torch
import triton
import triton.language as tl

from paged_impl import checks
from paged_impl.kernels import rules, runtime


@triton.jit
def store_kernel(
    key_ptr, value_ptr, k_cache_ptr, v_cache_ptr, slots_ptr,
    num_rows, num_slots,
    stride_key_token, stride_key_head, stride_value_token, stride_value_head,
    stride_k_block, stride_k_token, stride_k_head, stride_k_chunk,
    stride_v_block, stride_v_token, stride_v_head, stride_v_dim,
    NUM_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr, PACK: tl.constexpr,
    BLOCK_ROWS: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    token, head = row // NUM_HEADS, row % NUM_HEADS
    slot = tl.load(slots_ptr + token, mask=row < num_rows, other=-1).to(tl.int64)
    dim = tl.arange(0, BLOCK_D)
    # A slot past the pool is refused by the caller's check; where that was waived it still must not touch foreign memory.
    written = ((slot >= 0) & (slot < num_slots))[:, None] & (dim < HEAD_DIM)[None, :]

    key = tl.load(key_ptr + (token * stride_key_token + head * stride_key_head)[:, None] + dim[None, :], mask=written)
    value = tl.load(
        value_ptr + (token * stride_value_token + head * stride_value_head)[:, None] + dim[None, :],
        mask=written,
    )
    k_row = (slot // BLOCK_SIZE) * stride_k_block + (slot % BLOCK_SIZE) * stride_k_token + head * stride_k_head
    v_row = (slot // BLOCK_SIZE) * stride_v_block + (slot % BLOCK_SIZE) * stride_v_token + head * stride_v_head
    k_dim = (dim // PACK) * stride_k_chunk + dim % PACK if PACK > 0 else dim
    v_dim = dim * stride_v_dim
    tl.store(k_cache_ptr + k_row[:, None] + k_dim[None, :], key, mask=written)
    tl.store(v_cache_ptr + v_row[:, None] + v_dim[None, :], value, mask=written)


def store(
    key: torch.Tensor,
    value: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    *,
    check_values: bool | None = None,
) -> None:
    """Copy key and value `[tokens, Hkv, d]` into the slots `slot_mapping` names; `-1` skips a token. Modifies the
    caches in place.

    Caches: flash layout, both `[blocks, block size, Hkv, d]` (a permuted view of `[blocks, Hkv, block size, d]` will
    do), or packed layout, K `[blocks, Hkv, d // x, block size, x]` with `x = 16 // itemsize` and V `[blocks, Hkv, d,
    block size]`. Key and value may be strided (slices of a fused projection); their last dimension is dense.
    slot_mapping: int32 or int64 `[tokens]`; no slot twice. Raises ValueError before anything is written;
    `check_values=False` waives reading the slots (a wait for the device on a GPU).
    """
    block_size = checks.check_store(key, value, k_cache, v_cache, slot_mapping)
    checks.check_kernel_dtype("key", key)
    runtime.require_runnable(key)
    num_slots = k_cache.shape[0] * block_size
    if checks.should_check_values(check_values, key.device):
        checks.check_slot_values(slot_mapping, num_slots)
    num_tokens, num_heads, head_dim = key.shape
    if key.numel() == 0:
        return
    # (block, token, head, chunk) and (block, token, head, dim): the packed layouts order their axes differently.
    packed = k_cache.dim() == 5
    k_strides = [k_cache.stride(axis) for axis in ((0, 3, 1, 2) if packed else (0, 1, 2, 3))]
    v_strides = [v_cache.stride(axis) for axis in ((0, 3, 1, 2) if packed else (0, 1, 2, 3))]
    rule = rules.store_rule(head_dim, key.dtype, runtime.interpreted())
    num_rows = num_tokens * num_heads
    store_kernel[(triton.cdiv(num_rows, rule.block_rows),)](
        *(runtime.as_bits(tensor) for tensor in (key, value, k_cache, v_cache)), slot_mapping,
        num_rows, num_slots,
        key.stride(0), key.stride(1), value.stride(0), value.stride(1),
        *k_strides, *v_strides,
        NUM_HEADS=num_heads, HEAD_DIM=head_dim, BLOCK_SIZE=block_size, PACK=k_cache.shape[4] if packed else 0,
        BLOCK_ROWS=rule.block_rows, BLOCK_D=rules.padded_head_dim(head_dim), num_warps=rule.num_warps,
    )  # fmt: skip
