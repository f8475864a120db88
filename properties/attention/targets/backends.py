"""The backends of `paged_impl` as attention targets: plain torch, flash-attn, torch's varlen_attn."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from properties.attention.capabilities import AttentionCapabilities
from properties.attention.target import Batch, Output, Pool
from properties.targets import Unavailable


class OurBackend:
    """A `paged_impl.backends.Backend`, by name. Subclasses say which, and what it accepts."""

    level: Literal["attention"] = "attention"
    name: str
    backend_name: ClassVar[str]
    capabilities: AttentionCapabilities
    needs_cuda: ClassVar[bool] = False

    def __init__(self) -> None:
        if self.needs_cuda and not torch.cuda.is_available():
            raise Unavailable(f"{self.name} runs on CUDA only, and torch sees no GPU here")
        from paged_impl.backends import make_backend

        try:
            self.backend: Any = make_backend(self.backend_name, torch.device("cuda" if self.needs_cuda else "cpu"))
        except ValueError as error:
            raise Unavailable(str(error)) from error

    def store(self, pool: Pool, keys: Tensor, values: Tensor, slot_mapping: Tensor) -> None:
        """Stores by slot mapping."""
        self.prepare_store(pool, keys, values, slot_mapping)()

    def decode(self, pool: Pool, batch: Batch) -> Output:
        """One query per sequence."""
        return Output(self.prepare_decode(pool, batch)())

    def prefill(self, pool: Pool, batch: Batch) -> Output:
        """Causal attention of all queries."""
        return Output(self.prepare_prefill(pool, batch)())

    def prepare_store(self, pool: Pool, keys: Tensor, values: Tensor, slot_mapping: Tensor) -> Callable[[], None]:
        """`store` as a call without arguments."""
        return partial(self.backend.store, keys, values, *pool.flash_views(), slot_mapping)

    def prepare_decode(self, pool: Pool, batch: Batch) -> Callable[[], Tensor]:
        """`decode` with the batch converted."""
        return partial(
            self.backend.decode,
            batch.q,
            *pool.flash_views(),
            batch.padded_block_tables(),
            batch.context_lens_tensor(),
            scale=batch.scale,
            max_context_len=max(batch.context_lens, default=0),
            window=batch.window,
        )

    def prepare_prefill(self, pool: Pool, batch: Batch) -> Callable[[], Tensor]:
        """`prefill` with the batch converted."""
        return partial(
            self.backend.prefill,
            batch.q,
            *pool.flash_views(),
            batch.padded_block_tables(),
            batch.cu_seqlens_q(),
            batch.context_lens_tensor(),
            scale=batch.scale,
            max_query_len=batch.max_query_len(),
            max_context_len=max(batch.context_lens, default=0),
            window=batch.window,
        )

    def copy_blocks(self, pools: Sequence[Pool], pairs: Sequence[tuple[int, int]]) -> None:
        """Copies K and V of every layer. The backend takes stacked pools, so they are stacked and taken apart again."""
        stacked = torch.stack(
            [
                torch.stack([pool.flash_views()[0] for pool in pools]),
                torch.stack([pool.flash_views()[1] for pool in pools]),
            ]
        )
        sources, destinations = (torch.tensor(ids, device=stacked.device) for ids in zip(*pairs, strict=True))
        self.backend.copy_blocks(stacked, stacked, sources, destinations)
        for layer, pool in enumerate(pools):
            for kind, cache in enumerate(pool.flash_views()):
                cache.copy_(stacked[kind, layer])


class OurGather(OurBackend):
    """paged_impl's plain torch backend."""

    name = "ours-gather"
    backend_name = "torch-gather"
    capabilities = AttentionCapabilities(layouts=("flash", "hnd"), real_shapes=True, window=True, copies_chained=False)


class FlashAttn(OurBackend):
    """flash-attn 2 through block tables: pages of 256 tokens, half precision, a GPU."""

    name = "flash-attn"
    backend_name = "flash-attn"
    needs_cuda = True
    capabilities = AttentionCapabilities(
        layouts=("flash",),
        dtypes=("float16", "bfloat16"),
        devices=("cuda",),
        block_sizes=(256,),
        kv_heads=(1, 2, 3, 8),
        head_sizes=(64, 128),
        max_context=780,
        max_queries=48,
        window=True,
        copies_chained=False,
    )


class TorchVarlen(OurBackend):
    """torch.nn.attention.varlen.varlen_attn with a block table (torch >= 2.12, CUDA). Untested: see the backend."""

    name = "torch-varlen"
    backend_name = "torch-varlen"
    needs_cuda = True
    capabilities = AttentionCapabilities(
        layouts=("flash",),
        dtypes=("float16", "bfloat16"),
        devices=("cuda",),
        block_sizes=(256,),
        head_sizes=(64, 128),
        max_context=780,
        max_queries=48,
        window=True,
        copies_chained=False,
    )
