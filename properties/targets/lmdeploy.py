"""lmdeploy 0.18.0: the PyTorch engine's `DefaultBlockManager` with its `BlockTrie` (prefix cache) and host memory.

Driven as its scheduler does: match, make room by evicting from the trie, allocate, attach the full blocks; a match that
finds no room is rolled back. Attaching puts an equal block of the trie in the place of a sequence's own, before the
forward pass writes it once more: what is hit may be recomputed. A decoded token attaches only when it needs a block.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Sequence
from functools import cache
from itertools import count
from types import SimpleNamespace
from typing import Any

from properties.blocks.operations import Geometry
from properties.protocol import Capabilities, Copy
from properties.targets.support import TableTarget, module, packages, require, stubs

VERSION = "0.18.0"
INSTALL = f"pip install numpy; pip install --no-deps lmdeploy=={VERSION}"
PACKAGES = (
    "lmdeploy",
    "lmdeploy.pytorch",
    "lmdeploy.pytorch.paging",
    "lmdeploy.pytorch.paging.block_manager",
    "lmdeploy.pytorch.paging.block_trie",
)


@cache
def _source() -> Any:
    require("lmdeploy", VERSION, INSTALL)
    require("numpy", None, INSTALL)
    heavy = ("lmdeploy.utils", "lmdeploy.pytorch.messages", "lmdeploy.pytorch.config")
    with packages("lmdeploy", *PACKAGES), stubs(*heavy, get_logger=logging.getLogger):
        names = {
            "base": "paging.block_manager.base_block_manager",
            "manager": "paging.block_manager.default_block_manager",
            "trie": "paging.block_trie.trie",
            "block": "block",
            "state": "prefix_cache_state",
        }
        found = {key: importlib.import_module(f"lmdeploy.pytorch.{name}") for key, name in names.items()}
        return SimpleNamespace(**found, array=importlib.import_module("numpy").array)


class OutOfBlocks(Exception):
    """Not enough free and evictable blocks, or a swap that it does not do."""


class LmDeploy(TableTarget):
    """`lmdeploy.pytorch.paging`: block manager and prefix trie."""

    distribution = "lmdeploy"
    capabilities = Capabilities(
        refusals=(OutOfBlocks,), recomputes_hits=True, max_append=1, unknown_free=None, promises=frozenset({"ALLOC-2P"})
    )

    def __init__(self) -> None:
        self.source = _source()

    def open(self, config: Geometry) -> None:
        source = self.source
        # ages by a counter: whole seconds of a clock would tie, and ties fall by memory address
        vars(source.base)["time"] = module("time", perf_counter=count(1).__next__)
        self.block_size = config.block_size
        self.manager = source.manager.DefaultBlockManager(config.num_blocks, config.num_host_blocks)
        self.memory = self.manager.allocator
        self.trie = source.trie.BlockTrie(allocator=self.memory, block_size=config.block_size, enabled=True)
        self.sequences: dict[str, Any] = {}
        self.pending: list[Copy] = []

    # ---- the life of a sequence ------------------------------------------------------------------------------------

    def admit(self, name: str, tokens: Sequence[int]) -> int:
        seq = self._sequence(tokens)
        self.trie.match(seq)
        if not self._make_room(seq):
            self.manager.truncate(seq, 0)
            raise OutOfBlocks(f"{len(tokens)} tokens")
        before = {node.block_id for node in self._nodes()}
        self.manager.allocate(seq)
        self.trie.allocate(seq)
        self.trie.finalize_match(seq)
        seq.set_step(len(tokens))
        self.sequences[name] = seq
        blocks = seq.logical_blocks.get_real_blocks().tolist()
        fresh = (index for index, block in enumerate(blocks) if block not in before)
        return min(next(fresh, len(blocks)) * self.block_size, len(tokens))

    def append(self, name: str, tokens: Sequence[int]) -> None:
        seq = self.sequences[name]
        seq.extend(tokens)
        if self.manager.num_required_blocks(seq):
            if not self._make_room(seq):
                seq.drop(len(tokens))
                raise OutOfBlocks(f"{len(tokens)} more tokens")
            self.manager.allocate(seq)
            self.trie.allocate(seq)
        seq.set_step(seq.num_all_ids)

    def free(self, name: str) -> None:
        self.manager.free(self.sequences.pop(name))

    def swap_out(self, name: str) -> None:
        seq = self.sequences[name]
        done, pairs = self.manager.try_swap_out(seq)
        if not done:
            raise OutOfBlocks("it swaps only what nobody else holds, and only into free host blocks")
        self.pending += [Copy(int(src), int(dst), "device", "host") for src, dst in pairs.items()]

    def swap_in(self, name: str) -> None:
        seq = self.sequences[name]
        short = len(seq.logical_blocks) - self.manager.get_num_free_gpu_blocks()
        if short > 0:
            self.trie.evict(short)
        done, pairs = self.manager.try_swap_in(seq)
        if not done:
            raise OutOfBlocks("no free device blocks")
        self.pending += [Copy(int(src), int(dst), "host", "device") for src, dst in pairs.items()]

    def copies(self) -> list[Copy]:
        done, self.pending = self.pending, []
        return done

    def _make_room(self, seq: Any) -> bool:
        """What its eviction helper does for one sequence, all or nothing."""
        needed = self.manager.num_required_blocks(seq)
        free = self.manager.get_num_free_gpu_blocks()
        if needed > free + self._num_evictable():
            return False
        if needed > free:
            self.trie.evict(needed - free)
        return bool(needed <= self.manager.get_num_free_gpu_blocks())

    def _num_evictable(self) -> int:
        """Blocks that the trie alone holds."""
        return sum(self.memory.get_ref_count(node.block_id) == 1 for node in self._nodes())

    def _sequence(self, tokens: Sequence[int]) -> Any:
        return _Sequence(self.source, self.block_size, tokens)

    # ---- what it holds ---------------------------------------------------------------------------------------------

    def table(self, name: str) -> list[int]:
        return self.manager.get_block_table(self.sequences[name]).tolist()  # type: ignore[no-any-return]

    def lookup(self, tokens: Sequence[int]) -> int:
        seq = self._sequence(tokens)
        self.trie.match(seq)
        cached: int = seq.num_history_ids
        self.manager.truncate(seq, 0)
        return cached

    def ref_count(self, block: int) -> int:
        """Without the reference that the trie itself holds."""
        for logical in range(self.memory._log_mem.num_blocks()):
            stored = int(self.memory.get_ref_count(logical))
            if stored and int(self.memory.get_physical_blocks(logical)) == block:
                return stored - len([node for node in self._nodes() if node.block_id == logical])
        return 0

    def free_blocks(self) -> list[int]:
        pool = self.memory.get_phy_allocator("gpu")
        return pool._free_blocks[pool._num_blocks - pool._free_count :].tolist()  # type: ignore[no-any-return]

    def cached_blocks(self) -> list[int]:
        return [int(self.memory.get_physical_blocks(node.block_id)) for node in self._nodes()]

    def _nodes(self) -> list[Any]:
        found: list[Any] = []
        todo = [child for root in self.trie._roots.values() for child in root.children.values()]
        while todo:
            node = todo.pop()
            found.append(node)
            todo += node.children.values()
        return found


class _Sequence:
    """The part of lmdeploy's `SchedulerSequence` that manager and trie use, for plain text."""

    adapter_name = None
    kv_token_limit = None
    return_routed_experts = False
    session_id = seq_id = 0
    cached_tokens = input_start_pos = 0

    def __init__(self, source: Any, block_size: int, tokens: Sequence[int]) -> None:
        self.array = source.array
        self.block_size = block_size
        self.logical_blocks = source.block.LogicalTokenBlocks()
        self.prefix_cache = source.state.PrefixCacheState()
        self.num_history_ids = 0
        self.history_cache = self.array(list(tokens))

    @property
    def num_all_ids(self) -> int:
        return len(self.history_cache)

    num_valid_ids = input_end_pos = num_all_ids

    def extend(self, tokens: Sequence[int]) -> None:
        self.history_cache = self.array([*self.history_cache, *tokens])

    def drop(self, num_tokens: int) -> None:
        self.history_cache = self.history_cache[:-num_tokens]

    def set_step(self, step: int) -> None:
        self.num_history_ids = step

    def get_prefix_cache_extra_identity(self, start: int, end: int) -> tuple[()]:
        return ()

    def clamp_prefix_cache_match_step(self, step: int) -> int:
        return max(step, 0) // self.block_size * self.block_size

    def get_prefix_cache_max_match_step(self) -> int:
        return self.clamp_prefix_cache_match_step(self.num_valid_ids - 1)
