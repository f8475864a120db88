"""transformers 5.24.0: continuous batching's `PagedAttentionCache` (full attention layers).

Driven as its scheduler, its batch preparation and its output step do: match the prefix, allocate, compute, mark the
complete blocks, which replaces a block by an equal one that is published already. Where it runs short, cached blocks are
evicted, all of them, as the scheduler does under memory pressure; here only when that makes the call succeed. The first
two blocks are its trash blocks. One block is one sector (with these sizes), so that any pool size can be had.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

from properties.blocks.operations import Geometry
from properties.protocol import Capabilities, Copy
from properties.targets import Unavailable
from properties.targets.support import require

VERSION = "5.24.0"
INSTALL = f"pip install torch transformers=={VERSION} (the extra [transformers] of pagefault)"
TRASH_BLOCKS = (0, 1)
ONE_GIB = 1 << 30
"""Said to be this machine's memory, so that no GPU is asked and psutil may be missing; the pool's size is given."""


class OutOfBlocks(Exception):
    """Not enough free and cached blocks."""


class HfPagedCache:
    """`transformers.generation.continuous_batching.cache.PagedAttentionCache` with block sharing."""

    level = "blocks"
    capabilities = Capabilities(
        refusals=(OutOfBlocks,),
        num_blocks=(3, 66),
        reserved_blocks=TRASH_BLOCKS,
        copy_at_fork=True,
        unknown_free="ignored",
        promises=frozenset({"ALLOC-2P", "HASH-3P", "COW-3P"}),
    )

    def __init__(self) -> None:
        require("transformers", VERSION, INSTALL)
        try:
            import torch
            from transformers import LlamaConfig
            from transformers.generation.configuration_utils import ContinuousBatchingConfig
            from transformers.generation.continuous_batching import cache, distributed, requests
        except ImportError as error:
            raise Unavailable(f"transformers {VERSION} cannot be imported ({error}): {INSTALL}") from error
        self.make_request = requests.RequestState
        model = LlamaConfig(
            hidden_size=16, num_attention_heads=1, num_key_value_heads=1, head_dim=16, num_hidden_layers=1
        )
        alone = distributed.DistributedHelper(None, None)

        def make_cache(config: Geometry) -> Any:
            batching = ContinuousBatchingConfig(
                page_size=config.block_size,
                num_blocks=config.num_blocks - len(TRASH_BLOCKS),
                max_batch_tokens=64,
                max_memory_percent=0.9,
            )
            with patch.object(cache, "get_device_and_memory_breakdown", return_value=(None, ONE_GIB, 0, 0)):
                return cache.PagedAttentionCache(model, batching, "cpu", alone, torch.float32)

        self.make_cache = make_cache

    def open(self, config: Geometry) -> None:
        self.cache = self.make_cache(config)
        ((self.kind, self.blocks),) = self.cache.cache_allocators.items()
        assert self.blocks.blocks_per_sector == 1, "one block is one sector"
        self.block_size = config.block_size
        self.requests: dict[str, Any] = {}
        self.pending: list[Copy] = []

    # ---- the life of a request -------------------------------------------------------------------------------------

    def allocate(self, name: str, tokens: Sequence[int]) -> int:
        request = self.make_request(request_id=name, initial_tokens=list(tokens))
        request.position_offset = self.cache.search_prefix_match(name, request.initial_tokens)
        if not self._store(request, len(tokens) - request.position_offset):
            self.cache.free_blocks(name)
            raise OutOfBlocks(f"{len(tokens)} tokens")
        self.requests[name] = request
        return int(request.position_offset)

    def extend(self, name: str, tokens: Sequence[int]) -> None:
        request = self.requests[name]
        if not self._store(request, len(tokens)):
            raise OutOfBlocks(f"{len(tokens)} more tokens")
        request.generated_tokens += tokens

    def computed(self, name: str, upto: int) -> None:
        request = self.requests[name]
        complete = self.cache.count_new_complete_blocks(request, upto - request.position_offset)
        request.position_offset = upto
        self.cache.mark_complete_blocks(request, complete)

    def admit(self, name: str, tokens: Sequence[int]) -> int:
        cached = self.allocate(name, tokens)
        self.computed(name, len(tokens))
        return cached

    def append(self, name: str, tokens: Sequence[int]) -> None:
        self.extend(name, tokens)
        self.computed(name, self.requests[name].position_offset + len(tokens))

    def fork(self, parent: str, child: str) -> None:
        request = self.requests[parent]
        if request.position_offset % self.block_size and not self.free_blocks():
            self.cache.evict_cached_blocks()
        pairs: dict[str, tuple[list[int], list[int]]] = {self.kind: ([], [])}
        if not self.cache.prepare_fork_request(request, [child], pairs):
            raise OutOfBlocks("a fork")
        self.cache.perform_cache_copy(pairs)
        self.pending += [Copy(src, dst) for src, dst in zip(*pairs[self.kind], strict=True)]
        self.requests[child] = request.fork(child)

    def copies(self) -> list[Copy]:
        done, self.pending = self.pending, []
        return done

    def free(self, name: str) -> None:
        self.cache.free_blocks(name)
        self.requests.pop(name, None)

    def preempt(self, name: str) -> None:
        """What offloading does: the blocks go straight to the pool, complete or not."""
        self.cache.free_blocks(name, no_cache=True)
        del self.requests[name]

    # ---- room ------------------------------------------------------------------------------------------------------

    def _store(self, request: Any, num_tokens: int) -> bool:
        if not self._fits(request, num_tokens):
            return False
        if not self.cache.can_store_request_tokens(request, num_tokens, dry_run=True):
            self.cache.evict_cached_blocks()
        return self.cache.can_store_request_tokens(request, num_tokens)  # type: ignore[no-any-return]

    def _fits(self, request: Any, num_tokens: int) -> bool:
        """Whether there is room, counting the blocks that eviction would bring."""
        need = self.blocks.needs_new_blocks(request.request_id, request.position_offset, num_tokens)
        return need <= len(self.free_blocks()) + len(self.blocks.ledger.cached_blocks)  # type: ignore[no-any-return]

    def can_append(self, name: str, num_tokens: int) -> bool:
        return self._fits(self.requests[name], num_tokens)

    # ---- what it holds ---------------------------------------------------------------------------------------------

    def lookup(self, tokens: Sequence[int]) -> int:
        return len(self.blocks.match_prefix_blocks(list(tokens))) * self.block_size

    def slots(self, name: str) -> list[int]:
        """Where its index-based update writes each position that the table covers."""
        covered = len(self.blocks.block_table[name]) * self.block_size
        return self._tokens(self.blocks.get_write_indices(name, 0, covered))

    def read_slots(self, name: str) -> list[tuple[int, int]]:
        """Where its index-based update reads the computed positions."""
        computed = self.requests[name].position_offset
        return list(enumerate(self._tokens(self.blocks.get_read_indices(name, computed, 0))))

    def _tokens(self, indices: list[int]) -> list[int]:
        """Rows of its flat tensor (keys and values of a block lie behind each other) as token slots."""
        stride = self.blocks.block_physical_stride
        return [index // stride * self.block_size + index % stride for index in indices]

    def table(self, name: str) -> list[int]:
        return list(self.blocks.block_table[name])

    def ref_count(self, block: int) -> int:
        """Counts of one are not stored: a block that a table has counts as one."""
        held = any(block in table for table in self.blocks.block_table.values())
        return self.blocks.ledger.shared_ref_counts.get(block, int(held))  # type: ignore[no-any-return]

    def free_blocks(self) -> list[int]:
        pool = self.cache.pool
        return [*pool.free_sectors, *(block for tree in pool._free_blocks[0].trees.values() for block in tree)]

    def cached_blocks(self) -> list[int]:
        return list(self.blocks.ledger.hash_to_block.values())
