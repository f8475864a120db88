"""JAX's Pallas paged attention for GPUs, in interpret mode on a CPU (an extra: `pip install jax==0.10.2`).

Decode only. It applies no scale, so the queries are multiplied before the call. Every new shape is traced anew, which
takes about a second: few geometries, and pools padded to a multiple of 16 pages. Its documentation does not say what
unwritten slots may hold; with NaN in the values of a block's tail the output is NaN (0.10.2), so none is put there.
"""

from typing import Any, Literal

import torch
from torch import Tensor

from properties.attention.capabilities import AttentionCapabilities, Shape
from properties.attention.target import Batch, Output, Pool
from properties.targets import Unavailable

PAGES_PER_COMPUTE_BLOCK = 2
PAGE_MULTIPLE = 16


class JaxPallas:
    """`jax.experimental.pallas.ops.gpu.paged_attention`."""

    level: Literal["attention"] = "attention"
    name = "jax-pallas"
    interpreted = True  # `pagefault bench` does not time it
    capabilities = AttentionCapabilities(
        devices=("cpu",),
        dtypes=("float32",),
        shapes=(
            Shape(dtype="float32", block_size=16, num_kv_heads=2, ratio=3, head_size=32),
            Shape(dtype="float32", block_size=8, num_kv_heads=1, ratio=5, head_size=64),
        ),
        block_sizes=(8, 16),
        head_sizes=(32, 64),
        max_context=64,
        max_rows=2,
        padding=("zero", "foreign"),  # "each entry should be in the range of [0, total_num_pages)"
        empty_rows="undefined",
        withstands=("huge", "attractor"),
    )

    def __init__(self) -> None:
        try:
            import jax
            from jax.experimental.pallas.ops.gpu import paged_attention
        except ImportError as error:
            raise Unavailable(f"{error}: pip install jax==0.10.2") from error
        self.jax: Any = jax
        self.paged_attention: Any = paged_attention.paged_attention

    def decode(self, pool: Pool, batch: Batch) -> Output:
        """One query per sequence."""
        tables = batch.padded_block_tables()
        columns = -tables.shape[1] % PAGES_PER_COMPUTE_BLOCK
        tables = torch.nn.functional.pad(tables, (0, columns))
        out = self.paged_attention(
            self._array(batch.q * batch.scale),
            *(self._array(self._pages(cache)) for cache in pool.flash_views()),
            self._array(tables),
            self._array(batch.context_lens_tensor()),
            pages_per_compute_block=PAGES_PER_COMPUTE_BLOCK,
            k_splits=1,
            interpret=True,
        )
        return Output(torch.utils.dlpack.from_dlpack(out).clone())

    def _pages(self, cache: Tensor) -> Tensor:
        """[G, pages, P, D], padded to a multiple of PAGE_MULTIPLE pages."""
        padding = -cache.shape[0] % PAGE_MULTIPLE
        return torch.nn.functional.pad(cache, (0, 0, 0, 0, 0, 0, 0, padding)).permute(2, 0, 1, 3)

    def _array(self, tensor: Tensor) -> Any:
        return self.jax.numpy.asarray(tensor.contiguous().numpy())
