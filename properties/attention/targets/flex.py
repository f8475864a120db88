"""torch FlexAttention over pages: `PagedAttention`'s mask conversion (experimental) and eager `flex_attention`.

Eager FlexAttention materialises every physical score and masks with where(): foreign keys may be anything, but the
values of foreign slots are multiplied with weights of 0, so they must be finite.
"""

import warnings
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from properties.attention.capabilities import AttentionCapabilities
from properties.attention.target import Batch, Output, Pool
from properties.targets import Unavailable


class TorchFlexAttention:
    """One sequence a call: a page table of one row, its logical mask converted to physical pages."""

    level: Literal["attention"] = "attention"
    name = "torch-flex-attention"
    capabilities = AttentionCapabilities(
        devices=("cpu",),  # eager on a GPU too, but there the compiled kernel is what people run
        dtypes=("float32", "float16", "bfloat16"),
        window=True,
        lse_base="e",
        withstands=("huge", "attractor"),
        max_context=40,
    )

    def __init__(self) -> None:
        try:
            from torch.nn.attention import flex_attention
            from torch.nn.attention.experimental import _paged_attention
        except ImportError as error:
            raise Unavailable(f"{error}; this target needs torch >= 2.6: pip install torch") from error
        self.flex: Any = flex_attention
        self.paged: Any = _paged_attention

    def decode(self, pool: Pool, batch: Batch) -> Output:
        """One query per sequence."""
        return self.prefill(pool, batch)

    def prefill(self, pool: Pool, batch: Batch) -> Output:
        """Causal attention, sequence by sequence."""
        return self.prepare_prefill(pool, batch)()

    def prepare_decode(self, pool: Pool, batch: Batch) -> Callable[[], Output]:
        """`decode` with the masks made."""
        return self.prepare_prefill(pool, batch)

    def prepare_prefill(self, pool: Pool, batch: Batch) -> Callable[[], Output]:
        """`prefill` with the masks made."""
        masks, begin = [], 0
        for s, (query_len, context_len) in enumerate(zip(batch.query_lens, batch.context_lens, strict=True)):
            rows = slice(begin, begin := begin + query_len)
            if query_len and context_len:
                masks.append((rows, self._physical_mask(pool, batch, s)))
        return lambda: self._read(pool, batch, masks)

    def _read(self, pool: Pool, batch: Batch, masks: Sequence[tuple[slice, Any]]) -> Output:
        keys, values = (cache.flatten(0, 1).transpose(0, 1)[None] for cache in pool.flash_views())
        out = torch.zeros_like(batch.q)
        lse = torch.full(batch.q.shape[:2], -torch.inf, device=batch.q.device)
        for rows, mask in masks:
            out[rows], lse[rows] = self._attend(batch, batch.q[rows], keys, values, mask)
        return Output(out, lse if batch.want_lse else None)

    def _physical_mask(self, pool: Pool, batch: Batch, s: int) -> Any:
        """The sequence's causal (and windowed) mask over logical positions, converted to physical pages."""
        num_pages, size = pool.flash_views()[0].shape[:2]
        query_len, context_len = batch.query_lens[s], batch.context_lens[s]
        paged = self.paged.PagedAttention(num_pages, size, 1, device="cpu")
        for logical, page in enumerate(batch.block_tables[s][: -(-context_len // size)]):
            paged.page_table[0, logical] = page
            paged.physical_to_logical[0, page] = logical
        first, window = context_len - query_len, batch.window

        def seen(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
            causal = kv_idx <= q_idx + first
            return causal if window is None else causal & (kv_idx > q_idx + first - window)

        logical_mask = self.flex.create_block_mask(
            seen, 1, None, query_len, num_pages * size, device="cpu", BLOCK_SIZE=(query_len, size)
        )
        return paged.convert_logical_block_mask(logical_mask, kv_len=torch.tensor([context_len]))

    def _attend(self, batch: Batch, q: Tensor, keys: Tensor, values: Tensor, mask: Any) -> tuple[Tensor, Tensor]:
        """(out [T, H, D], lse [T, H]) of one sequence."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="flex_attention called without")  # eager on purpose
            result, aux = self.flex.flex_attention(
                q.transpose(0, 1)[None],
                keys,
                values,
                block_mask=mask,
                scale=batch.scale,
                enable_gqa=True,
                return_aux=self.flex.AuxRequest(lse=True),
            )
        return result[0].transpose(0, 1), aux.lse[0].transpose(0, 1)
