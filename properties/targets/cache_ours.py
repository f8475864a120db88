"""`PagedKVCache` as a target: bookkeeping and tensors together, on each of our backends."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from paged_impl.errors import OutOfBlocks
from paged_impl.sizes import block_bytes
from properties.cache.operations import CacheGeometry
from properties.cache.protocol import CacheCapabilities, Row
from properties.protocol import Copy, slots_from_table
from properties.targets import Unavailable
from properties.targets.ours import PROMISES, weak_hash

if TYPE_CHECKING:
    from torch import Tensor

    from paged_impl.cache import PagedKVCache
    from paged_impl.step import Step
    from properties.attention.target import Pool


class OurCache:
    """`paged_impl.cache.PagedKVCache` with plain torch attention, on a CPU or a GPU."""

    level = "cache"
    name = "cache-ours"
    backend = "torch-gather"
    capabilities = CacheCapabilities(
        refusals=(OutOfBlocks,),
        block_sizes=(1, 2, 3, 4, 5, 16),
        devices=("cpu", "cuda"),
        salts=True,
        weak_hash=True,
        window=True,
        cached_overlaps_free=True,
        unknown_free="refused",
        eviction="released",
        promises=PROMISES,
        pads=True,
    )

    def __init__(self) -> None:
        try:
            import torch  # noqa: F401
        except ImportError as error:
            raise Unavailable(f"{self.name}: {error}. pip install 'pagefault[torch]'") from error

    def open(self, config: CacheGeometry) -> None:
        self.block_size = config.block_size
        self.cache = self.make_cache(config)
        self.performed: list[Copy] = []
        self.cache.on_copies = lambda copies: self.performed.extend(Copy(*copy) for copy in copies)
        self._in_flight: dict[tuple[Row, ...], Step] = {}

    def cache_class(self) -> type[PagedKVCache]:
        """The class under test; broken variants put their own in its place."""
        from paged_impl.cache import PagedKVCache

        return PagedKVCache

    def make_cache(self, config: CacheGeometry) -> PagedKVCache:
        """The cache under test."""
        import torch

        return self.cache_class()(
            num_layers=config.num_layers,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_size,
            num_blocks=config.num_blocks,
            block_size=config.block_size,
            dtype=getattr(torch, config.dtype),
            device=config.device,
            num_host_blocks=config.num_host_blocks,
            window=config.window,
            hash_fn=None if config.hash_bits is None else weak_hash(config.hash_bits),
            backend=self.backend,
        )

    # ---- bookkeeping

    def allocate(self, name: str, tokens: Sequence[int], salt: str | None = None) -> int:
        return self.cache.admit(name, tokens, salt)

    def extend(self, name: str, tokens: Sequence[int]) -> None:
        self.cache.append(name, tokens)

    def free(self, name: str) -> None:
        self.cache.free(name)

    def preempt(self, name: str) -> None:
        self.cache.preempt(name)

    def fork(self, parent: str, child: str) -> None:
        self.cache.fork(parent, child)

    def truncate(self, name: str, length: int) -> None:
        self.cache.truncate(name, length)

    def swap_out(self, name: str) -> None:
        self.cache.swap_out(name)

    def swap_in(self, name: str) -> None:
        self.cache.swap_in(name)

    def copies(self) -> list[Copy]:
        performed, self.performed = self.performed, []
        return performed

    def slots(self, name: str) -> Sequence[int]:
        return slots_from_table(self.cache.manager.table(name), self.block_size)

    def table(self, name: str) -> Sequence[int]:
        return self.cache.manager.table(name)

    def lookup(self, tokens: Sequence[int], salt: str | None = None) -> int:
        return self.cache.manager.lookup(tokens, salt)

    def ref_count(self, block: int) -> int:
        return self.cache.manager.ref_count(block)

    def free_blocks(self) -> list[int]:
        return self.cache.manager.free_blocks()

    def cached_blocks(self) -> list[int]:
        return self.cache.manager.cached_blocks()

    def can_admit(self, tokens: Sequence[int], salt: str | None = None) -> bool:
        return self.cache.manager.can_allocate(tokens, salt)

    def can_append(self, name: str, num_tokens: int) -> bool:
        return self.cache.manager.can_append(name, num_tokens)

    def predict_admit(self, tokens: Sequence[int], salt: str | None = None) -> int:
        return self.cache.manager.blocks_needed_allocate(tokens, salt)

    def predict_append(self, name: str, num_tokens: int) -> int:
        return self.cache.manager.blocks_needed_append(name, num_tokens)

    def block_bytes(self, num_layers: int, num_kv_heads: int, head_dim: int, itemsize: int) -> int:
        return block_bytes(self.block_size, num_layers, num_kv_heads, head_dim, itemsize)

    # ---- tensors

    def write(self, layer: int, rows: Sequence[Row], keys: Tensor, values: Tensor) -> None:
        step = self._in_flight.get(tuple(rows))
        if step is None:
            step = self._in_flight[tuple(rows)] = self._plan(rows, len(keys))
        self.cache.write(layer, keys, values, step)

    def read(self, layer: int, rows: Sequence[Row], queries: Tensor) -> Tensor:
        step = self._in_flight.get(tuple(rows))
        if step is None or len(step.input_ids) != len(queries):
            step = self._plan(rows, len(queries))
        return self.cache.attend(layer, queries, step)

    def commit(self, rows: Sequence[Row]) -> None:
        self.cache.commit(self._in_flight[tuple(rows)])
        self._in_flight.clear()

    def pools(self) -> list[Pool]:
        from paged_ref.layouts import Layout
        from properties.attention.target import Pool

        return [Pool(*self.cache.layer(layer), Layout.FLASH) for layer in range(self.cache.shape.num_layers)]

    def _plan(self, rows: Sequence[Row], num_tokens: int) -> Step:
        """A step over these rows: positions to compute, or computed before."""
        from paged_impl import step

        planned = [step.Row(*row) for row in rows]
        is_new = all(self.cache.manager.num_computed(row.name) == row.start for row in rows)
        return (self.cache.plan if is_new else self.cache.plan_query)(planned, pad_to=num_tokens)


class OurTritonCache(OurCache):
    """`PagedKVCache` with our Triton kernels: compiled on a GPU, interpreted on a CPU."""

    name = "cache-ours-triton"
    backend = "triton"
    capabilities = CacheCapabilities(
        refusals=(OutOfBlocks,),
        block_sizes=(1, 3, 16),
        num_blocks=(1, 8),
        max_sequences=3,
        max_tokens=24,
        num_layers=(1, 2),
        shapes=((1, 1, 16, "float32"), (2, 3, 24, "float16"), (1, 4, 32, "bfloat16")),
        reads_only_owned=True,
        devices=("cpu", "cuda"),
        salts=True,
        window=True,
        cached_overlaps_free=True,
        unknown_free="refused",
        eviction="released",
        promises=PROMISES,
        pads=True,
        effort=0.1,
    )
    capabilities_on_cuda = msgspec.structs.replace(
        capabilities,
        block_sizes=(1, 3, 16),
        num_blocks=(1, 24),
        max_sequences=8,
        max_tokens=None,
        shapes=((1, 1, 16, "float32"), (8, 4, 128, "bfloat16"), (2, 7, 64, "float16")),
        kv_heads=(1, 2, 8),
        ratios=(1, 4, 7),
        head_sizes=(16, 64, 128),
        effort=0.3,
    )
    """Few shapes, since each is compiled: the smallest, Llama-3-8B's, and one whose ratio is odd."""

    def __init__(self) -> None:
        super().__init__()
        import torch

        if not torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1":
            raise Unavailable("no GPU here: set TRITON_INTERPRET=1 before Triton is imported, to interpret the kernels")
        try:
            import triton  # noqa: F401
        except ImportError as error:
            raise Unavailable(f"{self.name}: {error}. pip install 'pagefault[torch]'") from error


class OurFlashCache(OurCache):
    """`PagedKVCache` with flash-attn: pages of 256 tokens, half precision, a GPU."""

    name = "cache-ours-flash"
    backend = "flash-attn"
    capabilities = CacheCapabilities(
        refusals=(OutOfBlocks,),
        block_sizes=(256,),
        num_blocks=(1, 6),
        max_sequences=4,
        max_tokens=700,
        num_layers=(1, 2),
        kv_heads=(1, 2),
        ratios=(1, 4),
        head_sizes=(64, 128),
        dtypes=("float16", "bfloat16"),
        devices=("cuda",),
        salts=True,
        cached_overlaps_free=True,
        unknown_free="refused",
        eviction="released",
        promises=PROMISES - {"WINDOW-1P"},
        pads=True,
        effort=0.2,
    )

    def __init__(self) -> None:
        super().__init__()
        import torch

        from paged_impl.backends import make_backend

        if not torch.cuda.is_available():
            raise Unavailable(f"{self.name} runs on CUDA only, and torch sees no GPU here")
        try:
            make_backend(self.backend, torch.device("cuda"))
        except ValueError as error:
            raise Unavailable(str(error)) from error
