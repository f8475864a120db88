"""The pools that a cache target shows: asked for once after `open`, and checked before anything is put into them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from paged_ref.layouts import Layout, unpack_keys, unpack_values
from properties.attention.target import Pool
from properties.blame import last_lines, passes, said
from properties.cache.operations import CacheGeometry
from properties.cache.protocol import pools_of
from properties.contract import AdapterError

KINDS = ("keys", "values")
_REMEDY = "return one Pool a layer, of num_blocks blocks of block_size tokens, with its layout"


def shown_pools(target: object, geometry: CacheGeometry, dtype: torch.dtype) -> list[Pool]:
    """The pools of a target that offers them, one a layer. Raises `AdapterError` where one is not as `open` asked for."""
    try:
        pools = pools_of(target)
    except BaseException as error:
        passes(error)
        remedy = "return one Pool a layer, as declared in properties/attention/target.py"
        raise AdapterError(f"pools() failed: {said(error)} ({last_lines(error)})", remedy) from error
    for layer, pool in enumerate(pools):
        if not isinstance(getattr(pool, "layout", None), Layout):
            raise AdapterError(f"pools() gives {type(pool).__name__} without a Layout as its entry {layer}", _REMEDY)
        for kind, cache in zip(KINDS, (pool.key_cache, pool.value_cache), strict=True):
            _check_memory(f"pools() gives {kind} of layer {layer}", cache, geometry, dtype)
    _check_shapes(pools, geometry)
    return pools


def _check_memory(what: str, cache: Any, geometry: CacheGeometry, dtype: torch.dtype) -> None:
    if not isinstance(cache, Tensor):
        raise AdapterError(f"{what} as {type(cache).__name__}", "return the tensors that write and read use")
    if cache.dtype != dtype:
        raise AdapterError(
            f"{what} in {cache.dtype}, and open() was asked for {dtype}",
            "build the pools in config.dtype, and list in capabilities.dtypes what the cache stores; if it stores another "
            "dtype by design, leave pools() out of the adapter",
        )
    if cache.device.type != torch.device(geometry.device).type:
        raise AdapterError(
            f"{what} on {cache.device}, and open() was asked for {geometry.device}",
            "build the pools on config.device, and return the tensors that write and read use, not copies of them",
        )


def _check_shapes(pools: list[Pool], geometry: CacheGeometry) -> None:
    expected = (geometry.num_blocks, geometry.block_size, geometry.num_kv_heads, geometry.head_size)
    for kind, unpack in zip(("key", "value"), (unpack_keys, unpack_values), strict=True):
        caches = [(getattr(pool, f"{kind}_cache"), pool.layout) for pool in pools]
        if len(pools) != geometry.num_layers or any(_unpacked(unpack, *cache) != expected for cache in caches):
            found = [tuple(cache.shape) for cache, _ in caches]
            raise AdapterError(f"pools() gives {kind} caches of shape {found} for {geometry}", _REMEDY)


def _unpacked(unpack: Callable[[Tensor, Layout], Tensor], cache: Tensor, layout: Layout) -> tuple[int, ...] | None:
    """(blocks, block size, KV heads, head size); None where the tensor has no such shape in that layout."""
    try:
        return tuple(unpack(cache, layout).shape)
    except (RuntimeError, IndexError):
        return None
