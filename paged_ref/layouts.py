"""Cache layouts: where the key and the value of (block, position, KV head, dimension) lie in memory.

Letters: B blocks, P positions in a block (the block size), G KV heads, D head size, X elements in 16 bytes.

| layout | keys                | values       | used by                                     |
|--------|---------------------|--------------|---------------------------------------------|
| flash  | [B, P, G, D]        | [B, P, G, D] | flash-attn, FlashInfer "NHD", nano-vllm     |
| hnd    | [B, G, P, D]        | [B, G, P, D] | FlashInfer "HND", TensorRT-LLM              |
| vllm   | [B, G, D/X, P, X]   | [B, G, D, P] | vLLM's CUDA paged attention                 |

X packs 16 bytes of one key, so that a thread loads them at once. The flash layout is the neutral one:
everything in this package computes on it, and the other two are defined by packing from it and unpacking to
it.
"""

from enum import StrEnum

import torch
from torch import Tensor


class Layout(StrEnum):
    """The name of a cache layout; see the table above."""

    FLASH = "flash"
    HND = "hnd"
    VLLM = "vllm"


def elements_per_16_bytes(dtype: torch.dtype) -> int:
    """X of vLLM's key layout: 8 for 16-bit types, 4 for float32."""
    return 16 // dtype.itemsize


def key_shape(
    layout: Layout,
    *,
    num_blocks: int,
    block_size: int,
    num_kv_heads: int,
    head_size: int,
    dtype: torch.dtype,
) -> tuple[int, ...]:
    """Shape of a key cache. Raises ValueError where the head size does not pack (vllm layout only)."""
    if layout is Layout.FLASH:
        return num_blocks, block_size, num_kv_heads, head_size
    if layout is Layout.HND:
        return num_blocks, num_kv_heads, block_size, head_size
    x = elements_per_16_bytes(dtype)
    if head_size % x:
        raise ValueError(
            f"head_size={head_size} cannot be packed in the vllm layout: with {dtype} it must be a multiple "
            f"of {x} (16 bytes). Use the flash layout."
        )
    return num_blocks, num_kv_heads, head_size // x, block_size, x


def value_shape(
    layout: Layout, *, num_blocks: int, block_size: int, num_kv_heads: int, head_size: int
) -> tuple[int, ...]:
    """Shape of a value cache."""
    if layout is Layout.FLASH:
        return num_blocks, block_size, num_kv_heads, head_size
    if layout is Layout.HND:
        return num_blocks, num_kv_heads, block_size, head_size
    return num_blocks, num_kv_heads, head_size, block_size


def block_size_of(key_cache: Tensor, layout: Layout) -> int:
    """Tokens per block of a key cache."""
    return key_cache.shape[{Layout.FLASH: 1, Layout.HND: 2, Layout.VLLM: 3}[layout]]


def pack_keys(keys_BPGD: Tensor, layout: Layout) -> Tensor:
    """A new contiguous key cache in `layout` that holds `keys_BPGD`."""
    if layout is Layout.FLASH:
        return keys_BPGD.clone(memory_format=torch.contiguous_format)
    if layout is Layout.HND:
        return keys_BPGD.transpose(1, 2).contiguous()
    num_blocks, block_size, num_kv_heads, head_size = keys_BPGD.shape
    shape = key_shape(
        layout,
        num_blocks=num_blocks,
        block_size=block_size,
        num_kv_heads=num_kv_heads,
        head_size=head_size,
        dtype=keys_BPGD.dtype,
    )
    split_BPGDX = keys_BPGD.reshape(num_blocks, block_size, num_kv_heads, shape[2], shape[4])
    return split_BPGDX.permute(0, 2, 3, 1, 4).contiguous()


def pack_values(values_BPGD: Tensor, layout: Layout) -> Tensor:
    """A new contiguous value cache in `layout` that holds `values_BPGD`."""
    if layout is Layout.FLASH:
        return values_BPGD.clone(memory_format=torch.contiguous_format)
    if layout is Layout.HND:
        return values_BPGD.transpose(1, 2).contiguous()
    return values_BPGD.permute(0, 2, 3, 1).contiguous()


def unpack_keys(key_cache: Tensor, layout: Layout) -> Tensor:
    """The keys as [B, P, G, D]: a view for flash and hnd, a copy for vllm (X lies apart from D/X)."""
    if layout is Layout.FLASH:
        return key_cache
    if layout is Layout.HND:
        return key_cache.transpose(1, 2)
    return key_cache.permute(0, 3, 1, 2, 4).flatten(3, 4)


def unpack_values(value_cache: Tensor, layout: Layout) -> Tensor:
    """The values as [B, P, G, D]: always a view."""
    if layout is Layout.FLASH:
        return value_cache
    if layout is Layout.HND:
        return value_cache.transpose(1, 2)
    return value_cache.permute(0, 3, 1, 2)
