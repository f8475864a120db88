"""tokasaurus 0.0.4: `manager.allocator.BlockAllocator`, a prefix tree of blocks.

Driven as its manager does: the block list of a sequence is kept by the caller, a prompt is in the tree from its
admission on, and what was decoded enters the tree when the sequence ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import count
from types import ModuleType

from properties.blocks.operations import Geometry
from properties.protocol import Capabilities
from properties.targets.support import TableTarget, load_file, module, require

VERSION = "0.0.4"
INSTALL = f"pip install --no-deps tokasaurus=={VERSION}"
MONITORING = "tokasaurus.manager.monitoring"


@cache
def _source() -> ModuleType:
    require("tokasaurus", VERSION, INSTALL)
    timing = module(MONITORING, track_time_decorator=lambda *key: lambda function: function)
    return load_file("tokasaurus", "tokasaurus/manager/allocator.py", {MONITORING: timing})


class Tokasaurus(TableTarget):
    """`tokasaurus.manager.allocator.BlockAllocator`."""

    def __init__(self) -> None:
        self.source = _source()
        self.capabilities = Capabilities(
            refusals=(self.source.NoSpaceException,), unknown_free=None, promises=frozenset({"ALLOC-2P", "ALLOC-4P"})
        )

    def open(self, config: Geometry) -> None:
        self.block_size = config.block_size
        # ages by a counter: a wall clock gives ties, so that the same case would evict another block next time
        vars(self.source)["time"] = module("time", time=count(1).__next__)
        self.allocator = self.source.BlockAllocator(config.num_blocks, config.block_size)
        self.tables: dict[str, list[int]] = {}
        self.tokens: dict[str, list[int]] = {}

    def admit(self, name: str, tokens: Sequence[int]) -> int:
        table, cached = self.allocator.allocate_with_prefix_match(name, list(tokens))
        self.tables[name], self.tokens[name] = table, list(tokens)
        return cached  # type: ignore[no-any-return]

    def append(self, name: str, tokens: Sequence[int]) -> None:
        table, old = self.tables[name], self.tokens[name]
        table += self.allocator.allocate_up_to_length(name, table, len(old) + len(tokens))
        old += tokens

    def free(self, name: str) -> None:
        self.allocator.free_and_update(name, self.tables.pop(name), self.tokens.pop(name))

    def table(self, name: str) -> list[int]:
        return self.tables[name]

    def lookup(self, tokens: Sequence[int]) -> int:
        return len(self.allocator.prefix_match(list(tokens))) * self.block_size

    def can_append(self, name: str, num_tokens: int) -> bool:
        length = len(self.tokens[name]) + num_tokens
        return bool(self.allocator.enough_free_blocks_for_allocation(len(self.tables[name]), length, 0))

    def predict_append(self, name: str, num_tokens: int) -> int:
        return int(self.allocator.num_blocks_needed(self.tables[name], len(self.tokens[name]) + num_tokens))

    def ref_count(self, block: int) -> int:
        return len(self.allocator.all_blocks[block].seq_ids)

    def free_blocks(self) -> list[int]:
        return [block.idx for block in self.allocator.floating_blocks]

    def cached_blocks(self) -> list[int]:
        """Every block of the prefix tree: those are what `prefix_match` can return."""
        found, todo = [], list(self.allocator.prefix_tree.children.values())
        while todo:
            block = todo.pop()
            found.append(block.idx)
            todo += block.children.values()
        return found
