"""mini-vllm 0.1.1: `BlockSpaceManager`, one file without dependencies.

Driven as its scheduler does: `can_allocate_request` first, then `allocate_request`; one `append_slot` for each token that
is decoded, before it is written. Its engine computes every token of a prompt, hit or not, so that a full hit is fine here.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from types import ModuleType

from properties.blocks.operations import Geometry
from properties.protocol import Capabilities
from properties.targets.support import TableTarget, load_file, require

VERSION = "0.1.1"
INSTALL = f"pip install --no-deps --ignore-requires-python mini-vllm=={VERSION}"


@cache
def _source() -> ModuleType:
    require("mini-vllm", VERSION, INSTALL)
    return load_file("mini-vllm", "mini_vllm/block_manager.py")


class OutOfMemory(Exception):
    """The manager has no block left, or its own check says so."""


class MiniVllm(TableTarget):
    """`mini_vllm.block_manager.BlockSpaceManager` with its prefix cache."""

    capabilities = Capabilities(refusals=(OutOfMemory,), unknown_free="ignored", recomputes_hits=True, max_append=1)

    def __init__(self) -> None:
        self.source = _source()

    def open(self, config: Geometry) -> None:
        self.block_size = config.block_size
        self.allocator = self.source.BlockAllocator(config.num_blocks, config.block_size, device="cpu")
        self.manager = self.source.BlockSpaceManager(self.allocator, prefix_cache=True)
        self.lengths: dict[str, int] = {}

    def admit(self, name: str, tokens: Sequence[int]) -> int:
        if not self.can_admit(tokens):
            raise OutOfMemory("can_allocate_request says no")
        cached = self._leading_hits(list(tokens))
        try:
            self.manager.allocate_request(name, list(tokens))
        except (RuntimeError, ValueError) as error:  # its two ways to say "no free block"
            raise OutOfMemory(str(error)) from error
        self.lengths[name] = len(tokens)
        return cached

    def _leading_hits(self, tokens: list[int]) -> int:
        """Tokens of the leading full blocks whose hash is known: the manager logs its hits, but does not return them."""
        size = self.block_size
        for start in range(0, len(tokens), size):
            chunk = tokens[start : start + size]
            if len(chunk) < size or self.manager._compute_block_hash(chunk) not in self.manager.cached_blocks:
                return start
        return len(tokens)

    def append(self, name: str, tokens: Sequence[int]) -> None:
        try:
            self.manager.append_slot(name, self.lengths[name])
        except ValueError as error:
            raise OutOfMemory(str(error)) from error
        self.lengths[name] += 1

    def free(self, name: str) -> None:
        self.manager.free(name)

    def table(self, name: str) -> list[int]:
        return self.manager.get_block_table(name)  # type: ignore[no-any-return]

    def can_admit(self, tokens: Sequence[int]) -> bool:
        return self.manager.can_allocate_request(list(tokens))  # type: ignore[no-any-return]

    def ref_count(self, block: int) -> int:
        return self.allocator.all_blocks[block].ref_count  # type: ignore[no-any-return]

    def free_blocks(self) -> list[int]:
        return [block.block_num for block in self.allocator.free_blocks]

    def cached_blocks(self) -> list[int]:
        return [block.block_num for block in self.manager.cached_blocks.values()]
