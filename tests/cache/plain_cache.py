"""A stranger's cache, the plainest there is: no prefix cache, no sharing, attention by a loop. And its adapter."""

from collections.abc import Sequence

import torch
from msgspec.structs import replace
from torch import Tensor

from paged_ref.layouts import Layout
from properties.attention.target import Pool
from properties.cache.operations import CacheGeometry
from properties.cache.protocol import CacheCapabilities, Row
from properties.protocol import slots_from_table


class Full(Exception):
    """No block is free."""


class PlainCache:
    """Free list, tables, and one tensor `[layers, 2, slots, heads, dim]`."""

    def __init__(self, num_blocks: int, block_size: int, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        self.block_size = block_size
        self.free_list = list(range(num_blocks))
        self.tables: dict[str, list[int]] = {}
        self.lengths: dict[str, int] = {}
        layers, *inner = shape
        self.kv = torch.zeros(layers, 2, num_blocks * block_size, *inner, dtype=dtype)

    def grow(self, name: str, count: int) -> None:
        """Room for `count` more tokens."""
        table, length = self.tables.get(name, []), self.lengths.get(name, 0) + count
        needed = -(-length // self.block_size) - len(table)
        if needed > len(self.free_list):
            raise Full
        self.tables[name] = table + [self.free_list.pop() for _ in range(needed)]
        self.lengths[name] = length

    def end(self, name: str) -> None:
        """Give everything back."""
        self.free_list += self.tables.pop(name)
        del self.lengths[name]

    def slots(self, name: str) -> Sequence[int]:
        """The slot of each position."""
        return slots_from_table(self.tables[name], self.block_size)


class PlainTarget:
    """The adapter: what the template asks for, and nothing optional."""

    level = "cache"
    capabilities = CacheCapabilities(refusals=(Full,), dtypes=("float32",), prefix_cache=False, unknown_free="refused")

    def open(self, config: CacheGeometry) -> None:
        shape = (config.num_layers, config.num_kv_heads, config.head_size)
        self.cache = PlainCache(config.num_blocks, config.block_size, shape, torch.float32)
        self.ratio = config.ratio

    def allocate(self, name: str, tokens: Sequence[int]) -> int:
        self.cache.grow(name, len(tokens))
        return 0

    def extend(self, name: str, tokens: Sequence[int]) -> None:
        self.cache.grow(name, len(tokens))

    def free(self, name: str) -> None:
        self.cache.end(name)

    def slots(self, name: str) -> Sequence[int]:
        return self.cache.slots(name)

    def write(self, layer: int, rows: Sequence[Row], keys: Tensor, values: Tensor) -> None:
        slots = [slot for row in rows for slot in self.slots(row.name)[row.start : row.stop]]
        self.cache.kv[layer, :, slots] = torch.stack([keys, values])

    def read(self, layer: int, rows: Sequence[Row], queries: Tensor) -> Tensor:
        out, at = torch.empty_like(queries, memory_format=torch.contiguous_format), 0
        for row in rows:
            for position in range(row.start, row.stop):
                keys, values = self.cache.kv[layer][:, list(self.slots(row.name)[: position + 1])].repeat_interleave(
                    self.ratio, 2
                )
                scores = torch.einsum("hd,nhd->hn", queries[at], keys) * queries.shape[-1] ** -0.5
                out[at] = torch.einsum("hn,nhd->hd", scores.softmax(-1), values)
                at += 1
        return out

    def commit(self, rows: Sequence[Row]) -> None:
        """Nothing is published."""


class WithANullBlock(PlainTarget):
    """Block 0 is never handed out: padding tokens are written there. Its pools are shown."""

    capabilities = replace(PlainTarget.capabilities, reserved_blocks=(0,), num_blocks=(2, 16), pads=True)

    def open(self, config: CacheGeometry) -> None:
        super().open(config)
        self.cache.free_list.remove(0)
        self.shape = (config.num_blocks, config.block_size, config.num_kv_heads, config.head_size)

    def write(self, layer: int, rows: Sequence[Row], keys: Tensor, values: Tensor) -> None:
        count = sum(row.stop - row.start for row in rows)
        super().write(layer, rows, keys[:count], values[:count])
        for key, value in zip(keys[count:], values[count:], strict=True):
            self.cache.kv[layer, :, 0] = torch.stack([key, value])

    def read(self, layer: int, rows: Sequence[Row], queries: Tensor) -> Tensor:
        count = sum(row.stop - row.start for row in rows)
        return super().read(layer, rows, queries[:count])

    def pools(self) -> list[Pool]:
        return [Pool(*(kv.view(self.shape) for kv in layer), Layout.FLASH) for layer in self.cache.kv]


class ForgetsTheNewest(PlainTarget):
    """A broken one: a decoded token does not attend to itself."""

    def read(self, layer: int, rows: Sequence[Row], queries: Tensor) -> Tensor:
        shorter = [Row(row.name, row.start - 1, row.stop - 1) if row.start else row for row in rows]
        return super().read(layer, shorter, queries)


Target = PlainTarget
