"""An adapter of a whole cache - block manager, pools and attention - to be filled in. It lets pagefault drive yours.

    pagefault check-target THIS_FILE.py:Target      is the adapter itself sound?
    pagefault run -t THIS_FILE.py:Target            find faults behind it
    pagefault test -t THIS_FILE.py:Target           the whole contract, under pytest

pagefault plays the model: it allocates, then for each layer writes keys and values and reads attention, then commits. Every
`raise NotImplementedError` below wants a line or two of yours. Tokens come in tuples (`list(tokens)` where you need a list).
What your implementation lacks, leave out; what it does differently, declare: `properties/cache/protocol.py` describes every
method and capability.

Letters: T tokens of a step, H query heads, G KV heads, D head size.
"""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from properties.cache.operations import CacheGeometry
from properties.cache.protocol import CacheCapabilities, Row
from properties.protocol import slots_from_table


class OutOfBlocks(Exception):
    """Stands for the exception that your implementation raises when there is no room. Import yours instead."""


class Target:
    """One system under test. Made without arguments; `open` comes before everything else."""

    level = "cache"
    capabilities = CacheCapabilities(
        refusals=(OutOfBlocks,),  # what "no room" raises; a refused call must change nothing
        block_sizes=(1, 2, 4, 16),  # tokens per block that it accepts; small ones find most
        dtypes=("float32", "float16"),
        prefix_cache=True,  # False if no sequence ever reuses the blocks of an earlier one
        unknown_free="refused",  # a free of an unknown name raises; "ignored", or None = undefined
        # cached_overlaps_free=True,  # a block may be in cached_blocks() and in free_blocks() at once
        # withstands=(),  # if its caller must zero the pool: else slots that nobody owns hold NaN, infinities, huge numbers
        # pads=True,      # if write and read take more tokens than their rows have (slot -1)
    )

    def open(self, config: CacheGeometry) -> None:
        """A fresh system on `config.device`: `num_layers` pools of `num_blocks` blocks of `block_size` tokens."""
        self.block_size = config.block_size
        # YourCache(config.num_blocks, config.block_size, config.num_kv_heads, config.head_size, ...)
        self.cache: Any = None
        raise NotImplementedError("open: build your cache")

    # ---- bookkeeping

    def allocate(self, name: str, tokens: Sequence[int]) -> int:
        """Blocks for a new sequence; nothing is computed yet."""
        raise NotImplementedError("allocate: return how many leading tokens the prefix cache had (or 0)")

    def extend(self, name: str, tokens: Sequence[int]) -> None:
        """Room for more tokens at the end. Copy a shared last block here: K and V of every layer."""
        raise NotImplementedError("extend: take another block where one is needed")

    def free(self, name: str) -> None:
        """The sequence ends."""
        raise NotImplementedError("free: release its blocks")

    def table(self, name: str) -> Sequence[int]:
        """Physical block of each logical block, first to last."""
        raise NotImplementedError("table: return the block table of the sequence")

    def slots(self, name: str) -> Sequence[int]:
        """The physical slot of each position. From a block table this is one line."""
        return slots_from_table(self.table(name), self.block_size)

    # ---- tensors: `rows` are (name, start, stop), one after the other in the tensors

    def write(self, layer: int, rows: Sequence[Row], keys: Tensor, values: Tensor) -> None:
        """Store keys and values [T, G, D] of positions [start, stop) of each row."""
        raise NotImplementedError("write: slots are self.slots(row.name)[row.start : row.stop]")

    def read(self, layer: int, rows: Sequence[Row], queries: Tensor) -> Tensor:
        """Causal attention of queries [T, H, D] at those positions over [0, position]; scale D ** -0.5."""
        raise NotImplementedError("read: return a tensor of the shape and dtype of queries")

    def commit(self, rows: Sequence[Row]) -> None:
        """The KV of these rows is written in every layer: other sequences may find full blocks from now on."""
        raise NotImplementedError("commit: publish full blocks (nothing to do without a prefix cache)")

    # ---- optional: each of these makes more clauses judgeable

    # def pools(self): ...                 [Pool(keys, values, Layout.FLASH), ...], one a layer: bytes compared, poison put in
    #                                      (`from properties.attention.target import Pool`,
    #                                      `from paged_ref.layouts import Layout`: FLASH, HND, VLLM)
    # def cached_blocks(self): ...         every block that a prefix lookup can find
    # def free_blocks(self): ...           every block that is free
    # def fork(self, parent, child): ...   child continues from everything that parent holds; needs copies() beside it
    # def copies(self): ...                the block copies performed since the last call: [Copy(src, dst)]; [] for none;
    #                                      `from properties.protocol import Copy`
    # def truncate(self, name, length): ...    keep the first length tokens
    # def preempt(self, name): ...         free, where it is done differently for a sequence that will come back
