"""Other people's paged attention, run beside ours where it is installed. Each maker returns a call for one input set.

A peer is found through PAGEFAULT_PEERS, a folder that may hold `fa3.so` (vLLM's `_vllm_fa3_C.abi3.so`) and `vllm_ops/`
(vLLM's `triton_unified_attention.py` and `triton_attention_helpers.py`); FlashInfer and flash-attn are imported if they can be.
"""

import importlib.util
import os
import sys
import types
from collections.abc import Callable
from pathlib import Path

import torch
from cases import Case, Inputs

Call = Callable[[], torch.Tensor]
PEERS = Path(os.environ.get("PAGEFAULT_PEERS", "peers"))


def load_fa3() -> Callable[[Case, Inputs], Call]:
    torch.ops.load_library(str(PEERS / "fa3.so"))

    def make(case: Case, x: Inputs) -> Call:
        out = torch.empty_like(x.q)
        longest = int(x.lens.max())
        nothing = (None,) * 5
        return lambda: torch.ops._vllm_fa3_C.fwd(
            x.q, x.k_cache, x.v_cache, None, None, None, out, x.cu_q, None, None, None, x.lens, case.query, longest, x.table,
            *nothing, None, None, None, x.scale, True, -1, -1, 0.0, True, None, 0, None, 0, None, 1, 0, None,
        )[0]  # fmt: skip

    return make


def load_flash_attn() -> Callable[[Case, Inputs], Call]:
    from flash_attn import flash_attn_varlen_func, flash_attn_with_kvcache

    def make(case: Case, x: Inputs) -> Call:
        if case.page % 256:
            raise ValueError("pages of 256 only")
        if case.kind == "decode":
            return lambda: flash_attn_with_kvcache(
                x.q[:, None],
                x.k_cache,
                x.v_cache,
                cache_seqlens=x.lens,
                block_table=x.table,
                softmax_scale=x.scale,
                causal=True,
            )[:, 0]
        cu_k = torch.zeros(case.batch + 1, dtype=torch.int32, device=x.q.device)
        cu_k[1:] = x.lens.cumsum(0)
        longest = int(x.lens.max())
        return lambda: flash_attn_varlen_func(
            x.q,
            x.k_cache,
            x.v_cache,
            x.cu_q,
            cu_k,
            case.query,
            longest,
            softmax_scale=x.scale,
            causal=True,
            block_table=x.table,
        )

    return make


def load_flashinfer() -> Callable[[Case, Inputs], Call]:
    import flashinfer

    workspace = torch.zeros(512 << 20, dtype=torch.uint8, device="cuda")

    def make(case: Case, x: Inputs) -> Call:
        num_blocks = (x.lens + case.page - 1) // case.page
        indptr = torch.zeros(case.batch + 1, dtype=torch.int32, device=x.q.device)
        indptr[1:] = num_blocks.cumsum(0)
        used = torch.arange(x.table.shape[1], device=x.q.device)[None, :] < num_blocks[:, None]
        indices = x.table[used].contiguous()
        last = x.lens - (num_blocks - 1) * case.page
        out = torch.empty_like(x.q)
        if case.kind == "decode":
            decode = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
                workspace, "NHD", use_cuda_graph=True, use_tensor_cores=True,
                paged_kv_indptr_buffer=indptr.clone(), paged_kv_indices_buffer=indices.clone(),
                paged_kv_last_page_len_buffer=last.clone(),
            )  # fmt: skip
            decode.plan(
                indptr, indices, last, case.num_heads, case.num_kv_heads, case.head_dim, case.page,
                q_data_type=x.q.dtype, kv_data_type=x.q.dtype, sm_scale=x.scale,
            )  # fmt: skip
            return lambda: decode.run(x.q, (x.k_cache, x.v_cache), out=out)
        prefill = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD")
        prefill.plan(
            x.cu_q, indptr, indices, last, case.num_heads, case.num_kv_heads, case.head_dim, case.page,
            causal=True, q_data_type=x.q.dtype, kv_data_type=x.q.dtype, sm_scale=x.scale,
        )  # fmt: skip
        return lambda: prefill.run(x.q, (x.k_cache, x.v_cache), out=out)

    return make


def load_vllm_triton() -> Callable[[Case, Inputs], Call]:
    unified_attention = _vllm_unified_attention()

    def make(case: Case, x: Inputs) -> Call:
        segments, device = 16, x.q.device
        threshold = 128 // case.num_kv_heads  # vLLM's own: MIN_LAUNCH_GRID_SIZE_2D // KV heads
        width = 1 << (case.head_dim - 1).bit_length()
        parts = torch.empty(threshold, case.num_heads, segments, width, dtype=torch.float32, device=device)
        maxima, sums = (
            torch.empty(threshold, case.num_heads, segments, dtype=torch.float32, device=device) for _ in range(2)
        )
        out = torch.empty_like(x.q)
        longest = int(x.lens.max())

        def call() -> torch.Tensor:
            unified_attention(
                q=x.q, k=x.k_cache, v=x.v_cache, out=out, cu_seqlens_q=x.cu_q, max_seqlen_q=case.query, seqused_k=x.lens,
                max_seqlen_k=longest, softmax_scale=x.scale, causal=True, window_size=(-1, -1), block_table=x.table,
                softcap=0.0,
                q_descale=None, k_descale=None, v_descale=None, seq_threshold_3D=threshold, num_par_softmax_segments=segments,
                softmax_segm_output=parts, softmax_segm_max=maxima, softmax_segm_expsum=sums,
            )  # fmt: skip
            return out

        return call

    return make


def _vllm_unified_attention() -> Callable[..., None]:
    """Import vLLM's kernel file alone: what it asks of the rest of vLLM is small and stands here."""
    import enum
    import logging

    import triton
    import triton.language as tl

    class KVQuantMode(enum.IntEnum):
        NONE, FP8_PER_TENSOR, INT8_PER_TOKEN_HEAD, FP8_PER_TOKEN_HEAD, INT4_PER_TOKEN_HEAD = range(5)

    class Platform:
        def fp8_dtype(self) -> torch.dtype:
            return torch.float8_e4m3fn

        def __getattr__(self, name: str) -> Callable[..., bool]:
            return lambda *args, **kwargs: False

    def module(name: str, **members: object) -> types.ModuleType:
        made = types.ModuleType(name)
        made.__path__ = []  # type: ignore[attr-defined]
        vars(made).update(members)
        sys.modules[name] = made
        return made

    module("vllm")
    module("vllm.envs", VLLM_BATCH_INVARIANT=False)
    sys.modules["vllm"].envs = sys.modules["vllm.envs"]  # type: ignore[attr-defined]
    module("vllm.logger", init_logger=logging.getLogger)
    module("vllm.platforms", current_platform=Platform())
    module("vllm.triton_utils", tl=tl, triton=triton)
    for name in ("vllm.v1", "vllm.v1.attention", "vllm.v1.attention.ops"):
        module(name)
    module("vllm.v1.kv_cache_interface", KVQuantMode=KVQuantMode)
    for name in ("triton_attention_helpers", "triton_unified_attention"):
        spec = importlib.util.spec_from_file_location(
            f"vllm.v1.attention.ops.{name}", PEERS / "vllm_ops" / f"{name}.py"
        )
        assert spec is not None
        assert spec.loader is not None
        loaded = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = loaded
        spec.loader.exec_module(loaded)
    unified: Callable[..., None] = sys.modules["vllm.v1.attention.ops.triton_unified_attention"].unified_attention
    return unified


LOADERS = {"fa3": load_fa3, "flashinfer": load_flashinfer, "fa2": load_flash_attn, "vllm-triton": load_vllm_triton}
