"""torch's `varlen_attn` with a block table (torch >= 2.12) as a backend. UNTESTED: no machine of this project runs it.

Written from its documentation: key and value are pools `[pages, page size, G, D]`, `seqused_k` gives the context lengths,
`window_size=(-1, 0)` is causal with the queries at the end of the context.
"""

from __future__ import annotations

import torch
from torch import Tensor

from paged_impl.backends.flash_attn_backend import store_with_best
from paged_impl.backends.interface import Backend, PoolShape

LEAST_TORCH = (2, 12)


class TorchVarlen(Backend):
    """`torch.nn.attention.varlen.varlen_attn`. Raises ValueError where this torch has none that takes a block table."""

    name = "torch-varlen"

    def __init__(self) -> None:
        found = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
        if found < LEAST_TORCH:
            raise ValueError(
                f"backend='torch-varlen' needs torch >= 2.12 (varlen_attn with a block table); this is {torch.__version__}"
            )
        from torch.nn.attention.varlen import varlen_attn

        self._attend = varlen_attn

    def check(self, shape: PoolShape) -> None:
        if shape.device.type != "cuda":
            raise ValueError(
                f"device={shape.device}: backend='torch-varlen' runs on CUDA only: varlen_attn calls the flash kernels built "
                "into torch, and a CPU build has none. Use 'torch-gather'"
            )
        if shape.dtype not in (torch.float16, torch.bfloat16):
            raise ValueError(f"dtype={shape.dtype}: backend='torch-varlen' takes float16 and bfloat16; use 'triton'")

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
        cu_seqlens_q = torch.arange(q.shape[0] + 1, dtype=torch.int32, device=q.device)
        return self._read(
            q, k_cache, v_cache, block_table, cu_seqlens_q, context_lens, 1, max_context_len, scale, window
        )

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
        return self._read(
            q, k_cache, v_cache, block_table, cu_seqlens_q, context_lens, max_query_len, max_context_len, scale, window
        )

    def _read(
        self, q: Tensor, k_cache: Tensor, v_cache: Tensor, block_table: Tensor, cu_seqlens_q: Tensor, context_lens: Tensor,
        max_query_len: int, max_context_len: int, scale: float, window: int | None,
    ) -> Tensor:  # fmt: skip
        out = self._attend(
            q, k_cache, v_cache, cu_seqlens_q, None, max_query_len, max_context_len,
            scale=scale, window_size=(-1 if window is None else window - 1, 0),
            enable_gqa=q.shape[1] != k_cache.shape[2], seqused_k=context_lens, block_table=block_table,
        )  # fmt: skip
        assert isinstance(out, Tensor)  # a pair only where the LSE is asked for
        return out
