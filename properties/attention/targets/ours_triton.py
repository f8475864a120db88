"""Our Triton kernels: interpreted on a CPU (TRITON_INTERPRET=1 before Triton is imported), compiled on a GPU."""

import os
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import torch
from msgspec.structs import replace
from torch import Tensor

from properties.attention.capabilities import AttentionCapabilities, Shape
from properties.attention.target import Batch, Output, Pool
from properties.targets import Unavailable

MODEL_LIMIT = 8192
"""Tokens that a context may have, where tables are as wide as that."""


class OurTriton:
    """`paged_impl.kernels`: store, decode, prefill."""

    level: Literal["attention"] = "attention"
    name = "ours-triton"
    capabilities = AttentionCapabilities(
        layouts=("flash", "hnd"),
        store_layouts=("flash", "hnd", "vllm"),
        head_sizes=(16, 24, 32, 64, 80),
        max_context=40,
        max_rows=3,
        max_programs=4,
        real_shapes=True,
        num_splits=True,
        window=True,
        lse_base="e",
        reads_only_owned=True,
    )

    # Compiled, every geometry costs seconds and a call microseconds: few geometries, longer contexts.
    capabilities_on_cuda = replace(
        capabilities,
        shapes=(
            Shape(dtype="bfloat16", block_size=16, num_kv_heads=2, ratio=4, head_size=128),
            Shape(dtype="bfloat16", block_size=3, num_kv_heads=2, ratio=4, head_size=128),
            Shape(dtype="float16", block_size=16, num_kv_heads=3, ratio=5, head_size=80, window=37),
            Shape(dtype="float32", block_size=4, num_kv_heads=1, ratio=7, head_size=64),
        ),
        max_context=300,
        max_queries=64,
        max_rows=4,
        max_programs=None,
    )

    def __init__(self) -> None:
        if not torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1":
            if "triton" in sys.modules:
                raise Unavailable(
                    "no GPU here, and Triton is imported already: set TRITON_INTERPRET=1 before, to interpret"
                )
            os.environ["TRITON_INTERPRET"] = "1"  # it counts from the first import on
        try:
            from paged_impl import kernels
        except ImportError as error:
            raise Unavailable(f"{error}: pip install 'pagefault[torch]'") from error
        self.kernels = kernels
        self.workspace = kernels.Workspace()

    def store(self, pool: Pool, keys: Tensor, values: Tensor, slot_mapping: Tensor) -> None:
        """Stores by slot mapping."""
        self._store(pool, keys, values, slot_mapping)()

    def decode(self, pool: Pool, batch: Batch) -> Output:
        """One query per sequence."""
        return _output(self._decode(pool, batch, _tables(batch), return_lse=batch.want_lse)())

    def prefill(self, pool: Pool, batch: Batch) -> Output:
        """Causal attention of all queries."""
        return _output(self._prefill(pool, batch, _tables(batch), return_lse=batch.want_lse)())

    def prepare_store(self, pool: Pool, keys: Tensor, values: Tensor, slot_mapping: Tensor) -> Callable[[], None]:
        """`store` alone, its arguments checked beforehand."""
        return self._store(pool, keys, values, slot_mapping, check_values=False)

    def prepare_decode(self, pool: Pool, batch: Batch) -> Callable[[], Any]:
        """`decode` with the batch converted and room for the output."""
        return self._decode(pool, batch, batch.padded_block_tables(), workspace=self.workspace, **_prepared(batch))

    def prepare_prefill(self, pool: Pool, batch: Batch) -> Callable[[], Any]:
        """`prefill` with the batch converted and room for the output."""
        return self._prefill(pool, batch, batch.padded_block_tables(), **_prepared(batch))

    def _store(
        self, pool: Pool, keys: Tensor, values: Tensor, slot_mapping: Tensor, **options: Any
    ) -> Callable[[], None]:
        key_cache, value_cache = (pool.key_cache, pool.value_cache) if pool.layout == "vllm" else pool.flash_views()
        return partial(self.kernels.store, keys, values, key_cache, value_cache, slot_mapping, **options)

    def _decode(self, pool: Pool, batch: Batch, tables: Tensor, **options: Any) -> Callable[[], Any]:
        return partial(
            self.kernels.decode,
            batch.q,
            *pool.flash_views(),
            tables,
            batch.context_lens_tensor(),
            scale=batch.scale,
            num_splits=batch.num_splits,
            window=batch.window,
            **options,
        )

    def _prefill(self, pool: Pool, batch: Batch, tables: Tensor, **options: Any) -> Callable[[], Any]:
        return partial(
            self.kernels.prefill,
            batch.q,
            *pool.flash_views(),
            tables,
            batch.cu_seqlens_q(),
            batch.context_lens_tensor(),
            scale=batch.scale,
            max_query_len=batch.max_query_len(),
            window=batch.window,
            **options,
        )


def _output(result: Any) -> Output:
    return Output(*result) if isinstance(result, tuple) else Output(result)


def _tables(batch: Batch) -> Tensor:
    """The batch's tables, or for every other one tables that hold the longest context a model allows, as a captured graph
    uses them: our kernels choose their tiles and pieces from that width."""
    tables = batch.padded_block_tables()
    if max(batch.context_lens, default=0) % 2 == 0:
        return tables
    wide = tables.new_full((len(tables), max(tables.shape[1], MODEL_LIMIT // batch.block_size)), -1)
    wide[:, : tables.shape[1]] = tables
    return wide


def _prepared(batch: Batch) -> dict[str, Any]:
    out = torch.empty_like(batch.q, memory_format=torch.contiguous_format)
    return {"out": out, "max_context_len": max(batch.context_lens, default=0), "check_values": False}
