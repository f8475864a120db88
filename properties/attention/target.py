"""The protocol of attention targets, and the neutral pool and batch that they are handed.

Letters: S sequences, T query tokens of the batch, W block-table width, B blocks, P block size, H query heads,
G KV heads, D head size, L layers.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from paged_ref.layouts import Layout
from properties.attention.capabilities import AttentionCapabilities


@dataclass(frozen=True)
class Pool:
    """The KV cache of one layer. The tensors are views into larger memory; their strides are arbitrary but
    legal.

    Shapes: those of `paged_ref.layouts` for `layout`. The last dimension is always dense.
    """

    key_cache: Tensor
    value_cache: Tensor
    layout: Layout

    def flash_views(self) -> tuple[Tensor, Tensor]:
        """(keys, values) as [B, P, G, D] views of the same memory. Not for the vllm layout, which has
        none.
        """
        if self.layout is Layout.FLASH:
            return self.key_cache, self.value_cache
        if self.layout is Layout.HND:
            return self.key_cache.transpose(1, 2), self.value_cache.transpose(1, 2)
        raise ValueError("the vllm layout has no [B, P, G, D] view: declare layouts without it")


class Output(NamedTuple):
    """What a read returns: out [T, H, D] in the dtype of the queries; lse [T, H] float32 or None."""

    out: Tensor
    lse: Tensor | None = None


class PagesCSR(NamedTuple):
    """Block tables as FlashInfer takes them: `indices[indptr[s]:indptr[s + 1]]` are the pages of sequence
    s, the last of which holds `last_page_len[s]` tokens (1 to P; 0 for a sequence without tokens). int32.
    """

    indptr: Tensor
    indices: Tensor
    last_page_len: Tensor


@dataclass(frozen=True)
class Batch:
    """One attention call, in no library's terms. Convert with the methods below.

    Attributes:
        q: [T, H, D], the queries of all sequences one after the other; the last dimension is dense.
        query_lens, context_lens: per sequence; the queries are the last tokens of the context (decode: one each).
        block_tables: per sequence the physical block ids of its tokens, and maybe entries behind them that mean nothing.
        window: the last `window` tokens are visible to a query, itself included; None = all.
        num_splits: partitions of the context; None = the target's choice.
        want_lse: the LSE is asked for.
        padding: ids that fill the padded table behind each row, one per column.
    """

    q: Tensor
    query_lens: tuple[int, ...]
    context_lens: tuple[int, ...]
    block_tables: tuple[tuple[int, ...], ...]
    block_size: int
    num_kv_heads: int
    scale: float
    window: int | None
    num_splits: int | None
    want_lse: bool
    padding: tuple[int, ...]

    def padded_block_tables(self) -> Tensor:
        """int32 [S, W]: one row a sequence, every row filled up with padding ids."""
        width = len(self.padding)
        rows = [(*table, *self.padding[len(table) :])[:width] for table in self.block_tables]
        return torch.tensor(rows, dtype=torch.int32, device=self.q.device).reshape(len(rows), width)

    def context_lens_tensor(self) -> Tensor:
        """int32 [S]."""
        return self._int32(self.context_lens)

    def cu_seqlens_q(self) -> Tensor:
        """int32 [S + 1]: sequence s owns the queries [cu[s], cu[s + 1])."""
        return self._int32((0, *self.query_lens)).cumsum(0, dtype=torch.int32)

    def max_query_len(self) -> int:
        """The longest query of the batch; 0 without sequences."""
        return max(self.query_lens, default=0)

    def pages_csr(self) -> PagesCSR:
        """indptr, indices and last-page length; entries behind the last token's block are left out."""
        counts = [-(-length // self.block_size) for length in self.context_lens]
        pages = [table[:count] for table, count in zip(self.block_tables, counts, strict=True)]
        last = [
            length - max(count - 1, 0) * self.block_size
            for length, count in zip(self.context_lens, counts, strict=True)
        ]
        indptr = self._int32([0, *counts]).cumsum(0, dtype=torch.int32)
        return PagesCSR(indptr, self._int32([block for row in pages for block in row]), self._int32(last))

    def _int32(self, numbers: Sequence[int]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.int32, device=self.q.device)


@runtime_checkable
class AttentionTarget(Protocol):
    """An attention implementation. `level`, `name` and `capabilities` are compulsory; offer any of the operations

    - ``store(pool, keys, values, slot_mapping)``: keys, values [T, G, D]; slot_mapping int64 [T], -1 = not written;
    - ``decode(pool, batch) -> Output``: one query per sequence;
    - ``prefill(pool, batch) -> Output``: causal, queries at the end of the context;
    - ``copy_blocks(pools, pairs)``: block copies (source, destination), K and V of every layer, in order;
    - ``open()``: a fresh start, called before each case (for targets that keep plans or caches between calls).

    The pool already holds the tokens that a read refers to. Reads modify nothing but their own result.

    For `pagefault bench`, optional: ``prepare_decode(pool, batch)``, ``prepare_prefill(pool, batch)`` and
    ``prepare_store(pool, keys, values, slot_mapping)`` return a call without arguments that can be repeated: the conversions
    of the batch are done before, the call does what an engine would pay for at every step. It reads the queries (the keys
    and values) when it is called; a read's call returns [T, H, D] or an `Output`. Without them the plain call is timed.
    """

    level: Literal["attention"]
    name: str
    capabilities: AttentionCapabilities


class Stores(Protocol):
    """A target that offers `store`."""

    def store(self, pool: Pool, keys: Tensor, values: Tensor, slot_mapping: Tensor) -> None: ...


class Decodes(Protocol):
    """A target that offers `decode`."""

    def decode(self, pool: Pool, batch: Batch) -> Output: ...


class Prefills(Protocol):
    """A target that offers `prefill`."""

    def prefill(self, pool: Pool, batch: Batch) -> Output: ...


class Prepares(Protocol):
    """A target whose calls can be timed without its conversions."""

    def prepare_decode(self, pool: Pool, batch: Batch) -> Callable[[], Tensor | Output]: ...

    def prepare_prefill(self, pool: Pool, batch: Batch) -> Callable[[], Tensor | Output]: ...

    def prepare_store(self, pool: Pool, keys: Tensor, values: Tensor, slot_mapping: Tensor) -> Callable[[], object]: ...


class Copies(Protocol):
    """A target that offers `copy_blocks`."""

    def copy_blocks(self, pools: Sequence[Pool], pairs: Sequence[tuple[int, int]]) -> None: ...
