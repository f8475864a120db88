"""Our Triton kernels as a backend: compiled on a GPU, interpreted on a CPU (TRITON_INTERPRET=1 before Triton is imported)."""

from __future__ import annotations

import os

import torch
from torch import Tensor

from paged_impl import checks
from paged_impl.backends.interface import Backend, PoolShape


class TritonBackend(Backend):
    """`paged_impl.kernels`. Imports Triton when it is made; raises ValueError where no kernel can run.

    num_splits: partitions of each context in decode; None shares the work of a batch evenly (fastest), 1 makes the bits of a
    row independent of its batch. Its decode calls must follow one another (one stream): they share a workspace.
    """

    name = "triton"

    def __init__(self, num_splits: int | None = None) -> None:
        if not torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1":
            raise ValueError(
                "backend='triton' needs a GPU, or the interpreter: set TRITON_INTERPRET=1 before Triton is first imported, "
                "or use backend='torch-gather'"
            )
        try:
            from paged_impl import kernels
        except ImportError as error:
            raise ValueError(f"backend='triton': {error}. Install it with: pip install 'pagefault[torch]'") from error
        self._kernels = kernels
        self._head_dims = (checks.MIN_HEAD_DIM, checks.MAX_HEAD_DIM)
        self._num_splits = num_splits
        self._workspace = kernels.Workspace()

    def check(self, shape: PoolShape) -> None:
        least, most = self._head_dims
        if not least <= shape.head_dim <= most:
            raise ValueError(f"head_dim={shape.head_dim}: backend='triton' takes {least} to {most}; use 'torch-gather'")
        if shape.dtype not in (torch.float32, torch.float16, torch.bfloat16):
            raise ValueError(f"dtype={shape.dtype}: backend='triton' takes float32, float16 and bfloat16")
        if shape.device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
            raise ValueError(
                f"device={shape.device}: backend='triton' needs a GPU, or TRITON_INTERPRET=1 from the start"
            )

    def store(self, key: Tensor, value: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor) -> None:
        if self.check_values:
            self.check_store(key, value, k_cache, v_cache, slot_mapping)
        self._kernels.store(key, value, k_cache, v_cache, slot_mapping, check_values=False)

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
        if self.check_values:  # the shapes are checked by the kernels, in any case
            self.check_decode(
                q,
                k_cache,
                v_cache,
                block_table,
                context_lens,
                scale=scale,
                max_context_len=max_context_len,
                window=window,
            )
        out = self._kernels.decode(
            q, k_cache, v_cache, block_table, context_lens,
            scale=scale, num_splits=self._num_splits, window=window, max_context_len=max_context_len, check_values=False,
            workspace=self._workspace,
        )  # fmt: skip
        assert isinstance(out, Tensor)  # a pair only where the LSE is asked for
        return out

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
        if self.check_values:
            self.check_prefill(
                q, k_cache, v_cache, block_table, cu_seqlens_q, context_lens,
                scale=scale, max_query_len=max_query_len, max_context_len=max_context_len, window=window,
            )  # fmt: skip
        out = self._kernels.prefill(
            q, k_cache, v_cache, block_table, cu_seqlens_q, context_lens,
            scale=scale, max_query_len=max_query_len, window=window, max_context_len=max_context_len, check_values=False,
        )  # fmt: skip
        assert isinstance(out, Tensor)
        return out
