"""flash-attn 2 as a backend: `flash_attn_with_kvcache` and `flash_attn_varlen_func`, both through block tables.

Its paged kernels take pages of a multiple of 256 tokens; this backend takes exactly 256, the size that its own tests cover.
"""

from __future__ import annotations

import torch
from torch import Tensor

from paged_impl.backends.interface import Backend, PoolShape, store_by_index

PAGE_SIZE = 256
MAX_HEAD_DIM = 256


class FlashAttention(Backend):
    """Half-precision attention of Dao-AILab/flash-attention (2.x). Imports it when made; ValueError where it is missing."""

    name = "flash-attn"

    def __init__(self) -> None:
        try:
            from flash_attn import flash_attn_varlen_func, flash_attn_with_kvcache
        except ImportError as error:
            raise ValueError(
                f"backend='flash-attn': {error}. Install it with: pip install flash-attn --no-build-isolation (needs CUDA), "
                "or use backend='triton'"
            ) from error
        self._decode, self._prefill = flash_attn_with_kvcache, flash_attn_varlen_func

    def check(self, shape: PoolShape) -> None:
        check_shape(shape)

    def store(self, key: Tensor, value: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor) -> None:
        self.check_store(key, value, k_cache, v_cache, slot_mapping)
        store_with_best(key, value, k_cache, v_cache, slot_mapping)

    def decode(
        self,
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        block_table: Tensor,
        context_lens: Tensor,
        *,
        scale: float,
        max_context_len: int,
        window: int | None = None,
    ) -> Tensor:
        self.check_decode(
            q, k_cache, v_cache, block_table, context_lens, scale=scale, max_context_len=max_context_len, window=window
        )
        out: Tensor = self._decode(
            q[:, None], k_cache, v_cache, cache_seqlens=context_lens, block_table=block_table,
            softmax_scale=scale, causal=True, window_size=window_of(window),
        )  # fmt: skip
        # A row without tokens must give zeros, whatever the library leaves there.
        return out[:, 0].masked_fill((context_lens == 0)[:, None, None], 0.0)

    def prefill(
        self,
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        block_table: Tensor,
        cu_seqlens_q: Tensor,
        context_lens: Tensor,
        *,
        scale: float,
        max_query_len: int,
        max_context_len: int,
        window: int | None = None,
    ) -> Tensor:
        self.check_prefill(
            q, k_cache, v_cache, block_table, cu_seqlens_q, context_lens,
            scale=scale, max_query_len=max_query_len, max_context_len=max_context_len, window=window,
        )  # fmt: skip
        cu_seqlens_k = torch.nn.functional.pad(context_lens.cumsum(0, dtype=torch.int32), (1, 0))
        out: Tensor = self._prefill(
            q, k_cache, v_cache, cu_seqlens_q, cu_seqlens_k, max_query_len, max_context_len,
            softmax_scale=scale, causal=True, window_size=window_of(window), block_table=block_table,
        )  # fmt: skip
        return out


def check_shape(shape: PoolShape) -> None:
    """What flash-attn's paged kernels take. Raises ValueError with the remedy."""
    if shape.block_size != PAGE_SIZE:
        raise ValueError(
            f"block_size={shape.block_size}: backend='flash-attn' reads pages of {PAGE_SIZE} tokens only. Set "
            f"block_size={PAGE_SIZE}, or use backend='triton', which takes any size"
        )
    if shape.device.type != "cuda":
        raise ValueError(f"device={shape.device}: backend='flash-attn' runs on CUDA only; use 'torch-gather' on a CPU")
    if shape.dtype not in (torch.float16, torch.bfloat16):
        raise ValueError(
            f"dtype={shape.dtype}: backend='flash-attn' takes float16 and bfloat16; use 'triton' for float32"
        )
    if shape.head_dim > MAX_HEAD_DIM or shape.head_dim % 8:
        raise ValueError(f"head_dim={shape.head_dim}: backend='flash-attn' takes multiples of 8 up to {MAX_HEAD_DIM}")


def window_of(window: int | None) -> tuple[int, int]:
    """(left, right) as flash-attn counts: `left` tokens before the query's own, none behind it; -1 = all."""
    return (-1 if window is None else window - 1), (-1 if window is None else 0)


def store_with_best(key: Tensor, value: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor) -> None:
    """Our Triton store where Triton is there; else plain torch, which waits for the device."""
    try:
        from paged_impl.kernels import store
    except ImportError:
        store_by_index(key, value, k_cache, v_cache, slot_mapping)
    else:
        store(key, value, k_cache, v_cache, slot_mapping, check_values=False)
