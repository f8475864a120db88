"""What every slot must hold, bit by bit, and what nobody owns: poison.

Letters: L layers, S slots of the pool, G KV heads, D head size, B blocks, P block size.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from paged_ref.layouts import Layout, block_size_of, unpack_keys, unpack_values
from properties.attention.contents import DTYPES
from properties.attention.poison import fill
from properties.attention.target import Pool
from properties.cache.operations import CacheGeometry


class Mirror:
    """The expected content of the device and the host pools: `[2, L, S, G, D]`, keys first, on the CPU.

    `poisoned[slot]`: it holds poison. `cleared[slot]`: it held poison, and the target has put zeros into some of it since.
    `tainted[slot]`: it was found to hold something else than expected, and reported; what is read from it is a consequence.
    """

    def __init__(self, geometry: CacheGeometry) -> None:
        dtype = DTYPES[geometry.dtype]
        self._block_size = geometry.block_size
        self.poison = [torch.empty((), dtype=dtype) for _ in range(2)]
        for value, kind in zip(self.poison, (geometry.poison_k, geometry.poison_v), strict=True):
            fill(value, kind)
        inner = (geometry.num_kv_heads, geometry.head_size)
        sizes = {"device": geometry.num_blocks, "host": geometry.num_host_blocks}
        self.space = {
            name: torch.empty(2, geometry.num_layers, blocks * geometry.block_size, *inner, dtype=dtype)
            for name, blocks in sizes.items()
        }
        for tensor in self.space.values():
            tensor[0], tensor[1] = self.poison
        num_slots = geometry.num_blocks * geometry.block_size
        self.poisoned = torch.ones(num_slots, dtype=torch.bool)
        self.cleared, self.tainted = (torch.zeros(num_slots, dtype=torch.bool) for _ in range(2))

    @property
    def device(self) -> Tensor:
        """The expected device pools."""
        return self.space["device"]

    def copy(self, src: int, dst: int, src_space: str, dst_space: str) -> None:
        """One slot takes over what another holds."""
        self.space[dst_space][:, :, dst] = self.space[src_space][:, :, src]
        if dst_space == "device":
            same = src_space == "device"
            self.poisoned[dst] = self.poisoned[src] if same else False
            self.cleared[dst] = self.cleared[src] if same else False
            self.tainted[dst] = self.tainted[src] if same else False

    def fill(self, slots: Tensor) -> None:
        """Poison in these slots."""
        self.device[0][:, slots], self.device[1][:, slots] = self.poison
        self.poisoned[slots] = True
        self.cleared[slots] = self.tainted[slots] = False

    def written(self, layer: int, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Tokens of a sequence lie in these slots of a layer from now on."""
        self.device[0, layer, slots], self.device[1, layer, slots] = keys, values
        self.poisoned[slots] = self.cleared[slots] = self.tainted[slots] = False

    def clear(self, layer: int, kind: int, actual: Tensor, slots: Tensor) -> None:
        """The zeros that were found in these slots are expected from now on; nothing was wrong with them."""
        self.device[kind, layer, slots] = actual[slots]
        self.poisoned[slots] = False
        self.cleared[slots] = True

    def adopt(self, layer: int, kind: int, actual: Tensor, slots: Tensor) -> None:
        """What was found in these slots is expected from now on, and taints them: it was reported once."""
        self.device[kind, layer, slots] = actual[slots]
        self.tainted[slots] = True
        self.poisoned[slots] = self.cleared[slots] = False


def contents_of(pool: Pool) -> tuple[Tensor, Tensor]:
    """Keys and values of a pool in the order of slots, `[S, G, D]` each, on the CPU."""
    keys, values = unpack_keys(pool.key_cache, pool.layout), unpack_values(pool.value_cache, pool.layout)
    return keys.flatten(0, 1).cpu(), values.flatten(0, 1).cpu()


def fill_slots(pool: Pool, slots: Tensor, values: Sequence[Tensor | float]) -> None:
    """One value in every element of the keys of these slots, another in those of the values. Modifies the pool."""
    block_size = block_size_of(pool.key_cache, pool.layout)
    where = slots.to(pool.key_cache.device)
    blocks, offsets = where // block_size, where % block_size
    for cache, value in zip((pool.key_cache, pool.value_cache), values, strict=True):
        number = float(value)
        if pool.layout is Layout.FLASH:
            cache[blocks, offsets] = number
        elif pool.layout is Layout.HND:
            cache[blocks, :, offsets] = number
        else:
            cache[blocks, :, :, offsets] = number


def only_zeros_came(actual: Tensor, expected: Tensor) -> Tensor:
    """Of each slot of `[N, G, D]`: whether every element that is not as expected is zero now, `[N]`."""
    same = (actual == expected) | (actual.isnan() & expected.isnan())
    return (same | (actual == 0)).flatten(1).all(1)


def slots_that_differ(actual: Tensor, expected: Tensor) -> Tensor:
    """The slots `[N]` where `[S, G, D]` differ in a bit; which NaN it is depends on the device, and does not count."""
    bits = {2: torch.int16, 4: torch.int32}[actual.element_size()]
    a, e = actual.contiguous().view(bits), expected.contiguous().view(bits)
    if torch.equal(a, e):
        return torch.empty(0, dtype=torch.long)
    different = (a != e) & ~(actual.isnan() & expected.isnan())
    return different.flatten(1).any(1).nonzero().flatten()
