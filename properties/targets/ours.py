"""Our own block manager as a target: also the longest example of an adapter, since it offers everything."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import xxhash

from paged_impl.block_manager import BlockManager
from paged_impl.errors import OutOfBlocks
from paged_impl.sizes import block_bytes
from properties.blocks.operations import Geometry
from properties.protocol import Capabilities, Copy, slots_from_table

PROMISES = frozenset({"ALLOC-2P", "ALLOC-4P", "HASH-3P", "COW-3P", "EVICT-2P", "WINDOW-1P"})


def weak_hash(num_bits: int) -> Callable[[bytes], bytes]:
    """xxh64 cut down to its lowest bits, so that collisions happen."""
    mask = (1 << num_bits) - 1
    return lambda data: (xxhash.xxh64_intdigest(data) & mask).to_bytes(8, "little")


class OurBlocks:
    """`paged_impl.block_manager.BlockManager`."""

    level = "blocks"
    capabilities = Capabilities(
        refusals=(OutOfBlocks,),
        block_sizes=(1, 2, 3, 4, 5, 16, 256),
        salts=True,
        weak_hash=True,
        window=True,
        cached_overlaps_free=True,
        unknown_free="refused",
        eviction="released",
        promises=PROMISES,
    )
    manager_class = BlockManager

    def open(self, config: Geometry) -> None:
        self.block_size = config.block_size
        self.manager = self.manager_class(
            config.num_blocks,
            config.block_size,
            num_host_blocks=config.num_host_blocks,
            window=config.window,
            num_sinks=config.num_sinks,
            hash_fn=None if config.hash_bits is None else weak_hash(config.hash_bits),
        )

    def admit(self, name: str, tokens: Sequence[int], salt: str | None = None) -> int:
        cached = self.manager.allocate(name, tokens, salt)
        self.manager.computed(name, len(tokens))
        return cached

    def append(self, name: str, tokens: Sequence[int]) -> None:
        self.manager.append(name, tokens)
        self.manager.computed(name, self.manager.num_tokens(name))

    def free(self, name: str) -> None:
        self.manager.free(name)

    def slots(self, name: str) -> Sequence[int]:
        return slots_from_table(self.manager.table(name), self.block_size)

    def lookup(self, tokens: Sequence[int], salt: str | None = None) -> int:
        return self.manager.lookup(tokens, salt)

    def allocate(self, name: str, tokens: Sequence[int], salt: str | None = None) -> int:
        return self.manager.allocate(name, tokens, salt)

    def computed(self, name: str, upto: int) -> None:
        self.manager.computed(name, upto)

    def fork(self, parent: str, child: str) -> None:
        self.manager.fork(parent, child)

    def copies(self) -> list[Copy]:
        return [Copy(*copy) for copy in self.manager.take_copies()]

    def truncate(self, name: str, length: int) -> None:
        self.manager.truncate(name, length)

    def swap_out(self, name: str) -> None:
        self.manager.swap_out(name)

    def swap_in(self, name: str) -> None:
        self.manager.swap_in(name)

    def table(self, name: str) -> Sequence[int]:
        return self.manager.table(name)

    def ref_count(self, block: int) -> int:
        return self.manager.ref_count(block)

    def free_blocks(self) -> list[int]:
        return self.manager.free_blocks()

    def cached_blocks(self) -> list[int]:
        return self.manager.cached_blocks()

    def can_admit(self, tokens: Sequence[int], salt: str | None = None) -> bool:
        return self.manager.can_allocate(tokens, salt)

    def can_append(self, name: str, num_tokens: int) -> bool:
        return self.manager.can_append(name, num_tokens)

    def block_bytes(self, num_layers: int, num_kv_heads: int, head_dim: int, itemsize: int) -> int:
        return block_bytes(self.block_size, num_layers, num_kv_heads, head_dim, itemsize)

    def predict_admit(self, tokens: Sequence[int], salt: str | None = None) -> int:
        return self.manager.blocks_needed_allocate(tokens, salt)

    def predict_append(self, name: str, num_tokens: int) -> int:
        return self.manager.blocks_needed_append(name, num_tokens)
