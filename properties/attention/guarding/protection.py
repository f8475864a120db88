"""What a call may touch of a pool: for the guard, by address.

Letters: B blocks, P block size.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paged_ref.layouts import Layout
from properties.attention.buffers import PoolMemory
from properties.attention.guarding.ownership import Owner, Rights, owner_of
from properties.attention.guarding.places import NOWHERE, Addresses, Indices, Places, overlap, places_of

TOKEN_AXIS = {Layout.FLASH: 1, Layout.HND: 2, Layout.VLLM: 3}
"""Where in the shapes of `paged_ref.layouts` the offset in a block is; the block is first."""


@dataclass(frozen=True)
class Protected:
    """Memory of a pool: one cache, or several that lie between one another.

    `caches`: what they are called and where they lie, asked for (block, offset in the block). Elements may be touched in
    other units than they are (bytes, or several at a time). `readable`: None = every slot.
    """

    caches: tuple[tuple[str, Places], ...]
    readable: Rights | None
    writable: Rights

    @property
    def start(self) -> int:
        """The address of the first element."""
        return min(places.start for _, places in self.caches)

    @property
    def end(self) -> int:
        """The address behind the last element."""
        return max(places.end for _, places in self.caches)

    @property
    def name(self) -> str:
        """What the memory is called."""
        return self.caches[0][0] if len(self.caches) == 1 else "the interleaved caches"

    def locate(self, addresses: Addresses) -> tuple[Indices, Indices]:
        """(block, offset in the block) of the slot at each byte; NOWHERE between the slots."""
        blocks, tokens = self.caches[0][1].locate(addresses)
        for _, places in self.caches[1:]:
            gaps = blocks == NOWHERE
            if gaps.any():
                other = places.locate(addresses[gaps])
                blocks, tokens = blocks.copy(), tokens.copy()
                blocks[gaps], tokens[gaps] = other
        return blocks, tokens

    def cache_at(self, address: int) -> str:
        """The name of the cache that an address belongs to."""
        here = np.array([address])
        return next((name for name, places in self.caches if places.locate(here)[0][0] != NOWHERE), self.name)

    def offsets_of(self, addresses: Addresses, width: int) -> list[int]:
        """Offsets from which all elements are seen that `width` bytes at each of the addresses lie in."""
        return sorted({offset for _, places in self.caches for offset in places.offsets_of(addresses, width)})

    def spellings(self) -> list[tuple[int, int]]:
        """(factor, offset) by which a block id is its offset in bytes or elements, or its address, in each of the caches."""
        found = []
        for _, places in self.caches:
            stride = places.strides[0]
            found += [(stride, 0), (stride // places.element_size, 0), (stride, places.start)]
        return found


def reading(memory: PoolMemory, owners: Sequence[Owner], block_size: int, *, strict: bool) -> tuple[Protected, ...]:
    """For a call that reads what these own, and writes nothing. Without `strict` every element may be loaded (a load that is
    masked out afterwards is legal).
    """
    num_blocks = memory.pool.key_cache.shape[0]
    readable = Rights(num_blocks, block_size, owners) if strict else None
    return _protected(memory, readable, Rights(num_blocks, block_size, ()))


def writing(memory: PoolMemory, slots: Sequence[int] | npt.NDArray[np.int64], block_size: int) -> tuple[Protected, ...]:
    """For a call that writes these slots; it may load everything."""
    listed = Rights(memory.pool.key_cache.shape[0], block_size, [owner_of("the listed slots", slots)])
    return _protected(memory, None, listed)


def _protected(memory: PoolMemory, readable: Rights | None, writable: Rights) -> tuple[Protected, ...]:
    pool = memory.pool
    if pool.key_cache.device.type != "cpu":
        return ()
    axes = (0, TOKEN_AXIS[pool.layout])
    keys, values = (places_of(cache, axes) for cache in (pool.key_cache, pool.value_cache))
    if keys is None or values is None:  # elements that share memory: no slot can be told from an address
        return ()
    caches = (("the key cache", keys), ("the value cache", values))
    if overlap(keys, values):
        return (Protected(caches, readable, writable),)
    return tuple(Protected((cache,), readable, writable) for cache in caches)
