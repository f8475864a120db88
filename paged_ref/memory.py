"""How much memory a KV cache takes: per token, per block, and what is wasted with and without paging.

A KV cache stores one key and one value vector per token, layer and KV head: 2 * layers * KV heads * head size elements.
Sizes are in bytes; `itemsize` is bytes per element (2 for fp16 and bf16).
"""

from __future__ import annotations

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


def kv_bytes_per_token(num_layers: int, num_kv_heads: int, head_dim: int, itemsize: int) -> int:
    """Bytes of K and V that one token occupies over all layers.

    LLaMA-2-7B (32 layers, 32 KV heads, head size 128, fp16) and Qwen3-0.6B (28, 8, 128, bf16):

    >>> kv_bytes_per_token(32, 32, 128, 2), kv_bytes_per_token(32, 32, 128, 2) // KIB
    (524288, 512)
    >>> kv_bytes_per_token(28, 8, 128, 2), kv_bytes_per_token(28, 8, 128, 2) // KIB
    (114688, 112)
    """
    return 2 * num_layers * num_kv_heads * head_dim * itemsize


def kv_bytes_per_block(block_size: int, num_layers: int, num_kv_heads: int, head_dim: int, itemsize: int) -> int:
    """Bytes of one block of `block_size` tokens.

    Qwen3-0.6B with blocks of 256:

    >>> kv_bytes_per_block(256, 28, 8, 128, 2) // MIB
    28
    """
    return block_size * kv_bytes_per_token(num_layers, num_kv_heads, head_dim, itemsize)


def num_blocks_for(num_tokens: int, block_size: int) -> int:
    """Blocks that hold a sequence of that length.

    >>> [num_blocks_for(n, 4) for n in (0, 1, 4, 5, 8)]
    [0, 1, 1, 2, 2]
    """
    return -(-num_tokens // block_size)


def wasted_reserved(num_used: int, num_reserved: int) -> float:
    """Share of a contiguous reservation that a sequence leaves unused.

    LLaMA-2-7B reserves 2 GiB for 4096 tokens; a sequence that ends after 600 of them wastes about 85 %:

    >>> 4096 * kv_bytes_per_token(32, 32, 128, 2) / GIB
    2.0
    >>> round(wasted_reserved(600, 4096), 3)
    0.854
    """
    return 1 - num_used / num_reserved


def wasted_paged(num_used: int, block_size: int) -> int:
    """Slots of the last block that a sequence leaves unused: less than one block, whatever its length.

    LLaMA-2-7B with blocks of 16 wastes at most 15 slots of 512 KiB:

    >>> max(wasted_paged(n, 16) for n in range(1, 4097)) * kv_bytes_per_token(32, 32, 128, 2) / MIB
    7.5
    """
    return num_blocks_for(num_used, block_size) * block_size - num_used
