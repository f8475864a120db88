"""Broken variants of `PagedKVCache`, one bug each: the negative controls of the cache level.

`breaks` is the clause that must catch the bug, `clue` words that the explanation must contain. Numbers such as vllm#641 are
issues of that project in which the bug, or its like, was reported.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from paged_impl.backends.interface import store_by_index
from paged_impl.backends.torch_gather import attend, gather
from paged_impl.block_manager import BlockManager, Copy
from paged_impl.cache import PagedKVCache
from paged_impl.sequence_state import SequenceState
from paged_impl.step import Name, Step
from properties.targets.cache_ours import OurCache


class Broken(PagedKVCache):
    """Base of the variants."""

    breaks: ClassVar[str]
    clue: ClassVar[str] = ""


# ---- copies


class CopiesOneLayer(Broken):
    """Copy on write of the first layer alone."""

    breaks, clue = "COW-2", "of layer 1"

    def _changed(self) -> None:
        kept = self.pools[:, 1:].clone()
        super()._changed()
        self.pools[:, 1:] = kept


class CopiesKeysOnly(Broken):
    """Keys are copied, values are not."""

    breaks, clue = "COW-2", "values of layer 0"

    def _changed(self) -> None:
        kept = self.pools[1].clone()
        super()._changed()
        self.pools[1] = kept


class CopiesBackwards(Broken):
    """Source and destination are exchanged."""

    breaks = "COW-2"

    def _changed(self) -> None:
        copies = self.manager.take_copies()
        self.manager._copies = [
            c if c.src_space != c.dst_space else Copy(c.dst_block, c.src_block, *c[2:]) for c in copies
        ]
        told, self.on_copies = self.on_copies, None
        super()._changed()
        self.on_copies = told
        if told is not None and copies:
            told(copies)


class CopyReachesTooFar(Broken):
    """A copy takes one block more than asked for."""

    breaks, clue = "STORE-1", "where it does not lie"

    def _changed(self) -> None:
        copies = list(self.manager._copies)
        super()._changed()
        for copy in copies:
            if copy.dst_space == "device":
                self.pools[:, :, (copy.dst_block + 1) % self.shape.num_blocks] = self.pools[
                    :, :, copy.dst_block
                ].clone()


class _SharesTail(BlockManager):
    def _make_tail_writable(self, seq: SequenceState) -> None:
        pass


class NoCopyOnWrite(Broken):
    """The shared tail is written in place (vllm#1126: beams see each other's tokens)."""

    breaks, clue = "COW-1", "a copy was due"

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.manager.__class__ = _SharesTail


class SwapsInLate(Broken):
    """Copies back from host memory are left to the next step."""

    breaks = "SWAP-1"

    def swap_in(self, name: Name) -> None:
        self.manager.swap_in(name)
        self._version += 1
        if self.on_copies is not None:
            self.on_copies(self.manager.take_copies())


class SwapsKeysOnly(Broken):
    """What comes back from host memory are the keys alone."""

    breaks, clue = "SWAP-1", "values of layer"

    def _changed(self) -> None:
        copies, kept = list(self.manager._copies), self.pools[1].clone()
        super()._changed()
        for copy in copies:
            if copy.src_space == "host":
                self.pools[1, :, copy.dst_block] = kept[:, copy.dst_block]


# ---- stores


class StaleSlotMapping(Broken):
    """The slot mapping is made from the table that the sequence had before the copy."""

    breaks, clue = "STORE-1", "was to be written"

    def append(self, name: Name, tokens: Sequence[int]) -> None:
        before = self.manager.table(name)
        super().append(name, tokens)
        self.__dict__.setdefault("stale", {})[name] = before

    def write(self, layer: int, key: Tensor, value: Tensor, step: Step) -> None:
        slots, begin, size = step.slot_mapping.clone(), 0, self.shape.block_size
        for row in step.rows:
            table = self.__dict__.get("stale", {}).get(row.name, ())
            for index, position in enumerate(range(row.start, row.stop), begin):
                if position // size < len(table) and table[position // size] >= 0:
                    slots[index] = table[position // size] * size + position % size
            begin += row.stop - row.start
        super().write(layer, key, value, replace(step, slot_mapping=slots, layers_written=step.layers_written))


class StoresIntoTheNextLayer(Broken):
    """Layer indices that start at one."""

    breaks = "STORE-1"

    def write(self, layer: int, key: Tensor, value: Tensor, step: Step) -> None:
        super().write((layer + 1) % self.shape.num_layers, key, value, step)
        step.layers_written.add(layer)


class PaddingIsTheLastSlot(Broken):
    """Slot -1 is used as an index (vllm#43810)."""

    breaks, clue = "SLOT-3", "the last of the pool"

    def write(self, layer: int, key: Tensor, value: Tensor, step: Step) -> None:
        last = self.shape.num_blocks * self.shape.block_size - 1
        slots = torch.where(step.slot_mapping < 0, last, step.slot_mapping)
        k_cache, v_cache = self.layer(layer)
        store_by_index(key, value, k_cache, v_cache, slots)
        step.layers_written.add(layer)


class CommitMovesAToken(Broken):
    """Publishing a block rotates its last slot away."""

    breaks, clue = "CONTENT-1", "nothing was to be written"

    def commit(self, step: Step) -> None:
        super().commit(step)
        table = self.manager.table(step.rows[0].name)
        if table and table[0] >= 0:
            self.pools[:, :, table[0]] = self.pools[:, :, table[0]].roll(1, 2)


# ---- reads


class ValuesOfTheTailAreNotMasked(Broken):
    """Whole blocks are read and scores masked; 0 x NaN is NaN (vllm#641, flash-attention#2374)."""

    breaks, clue = "READ-2", "the values of slots"

    def _attend(self, caches: tuple[Tensor, Tensor], query: Tensor, step: Step, scale: float) -> Tensor:
        out = super()._attend(caches, query, step, scale)
        values = gather(*caches, step.block_table, step.max_context_len)[1]
        for index, length in enumerate(step.context_lens.tolist()):
            rows = slice(int(step.cu_seqlens_q[index]), int(step.cu_seqlens_q[index + 1]))
            out[rows] += (0.0 * values[index, length:].sum()).to(out.dtype)
        return out


class KeysOfTheTailAreNotMasked(Broken):
    """The mask is added to the scores: NaN + -inf is NaN."""

    breaks, clue = "READ-2", "the keys of slots"

    def _attend(self, caches: tuple[Tensor, Tensor], query: Tensor, step: Step, scale: float) -> Tensor:
        out = super()._attend(caches, query, step, scale)
        keys = gather(*caches, step.block_table, step.max_context_len)[0]
        for index, length in enumerate(step.context_lens.tolist()):
            rows = slice(int(step.cu_seqlens_q[index]), int(step.cu_seqlens_q[index + 1]))
            out[rows] += (0.0 * keys[index, length:].sum()).to(out.dtype)
        return out


class _ReadsOtherwise(Broken):
    """Base of the variants that attend over a changed step."""

    def change(self, step: Step) -> Step:
        """The step that is read instead."""
        return step

    def _attend(self, caches: tuple[Tensor, Tensor], query: Tensor, step: Step, scale: float) -> Tensor:
        return super()._attend(caches, query, self.change(step), scale)


class IdentityTable(_ReadsOtherwise):
    """Blocks 0, 1, 2, ... are read."""

    breaks, clue = "READ-1", "Clue: the output is that of"

    def change(self, step: Step) -> Step:
        width = step.block_table.shape[1]
        table = torch.arange(width, dtype=torch.int32).clamp_max(self.shape.num_blocks - 1)
        return replace(step, block_table=table.expand(len(step.rows), width).contiguous())


class LastTokenIsDropped(_ReadsOtherwise):
    """The context length does not count the token just written."""

    breaks = "READ-1"

    def change(self, step: Step) -> Step:
        return replace(step, context_lens=(step.context_lens - 1).clamp_min(1))


class ScaleIsForgotten(Broken):
    """Scores are not scaled."""

    breaks, clue = "READ-1", "a scale of 1"

    def _attend(self, caches: tuple[Tensor, Tensor], query: Tensor, step: Step, scale: float) -> Tensor:
        return super()._attend(caches, query, step, 1.0)


class HeadsAreInterleaved(Broken):
    """Query head h reads KV head h % num_kv_heads."""

    breaks, clue = "READ-1", "h % num_kv_heads"

    def _attend(self, caches: tuple[Tensor, Tensor], query: Tensor, step: Step, scale: float) -> Tensor:
        groups = self.shape.num_kv_heads
        order = torch.arange(query.shape[1]).view(-1, groups).T.flatten()
        out = torch.empty_like(query)
        out[:, order] = super()._attend(caches, query[:, order], step, scale)
        return out


class ReadsTheFirstLayer(Broken):
    """Every layer reads the KV of layer 0."""

    breaks = "READ-1"

    def _attend(self, caches: tuple[Tensor, Tensor], query: Tensor, step: Step, scale: float) -> Tensor:
        return super()._attend(self.layer(0), query, step, scale)


class PrefillForgetsTheCache(Broken):
    """A chunk attends to its own tokens alone, not to the prefix behind it (the cached one included)."""

    breaks, clue = "READ-1", "the cached prefix left out"

    def _attend(self, caches: tuple[Tensor, Tensor], query: Tensor, step: Step, scale: float) -> Tensor:
        out = super()._attend(caches, query, step, scale)
        for index, row in enumerate(step.rows):
            if row.stop - row.start == 1 or not row.start:
                continue
            rows = slice(int(step.cu_seqlens_q[index]), int(step.cu_seqlens_q[index + 1]))
            keys, values = (
                t[:, row.start : row.stop] for t in gather(*caches, step.block_table[index : index + 1], row.stop)
            )
            seen = torch.ones(1, row.stop - row.start, row.stop - row.start, dtype=torch.bool).tril()
            out[rows] = attend(query[None, rows], keys, values, seen, scale)[0]
        return out


class WindowIsOneTooWide(Broken):
    """The window counts the tokens before the query, not the query's own."""

    breaks = "READ-1"

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.window = None if self.window is None else self.window + 1


class OneTableForAll(_ReadsOtherwise):
    """Every row of a batch reads through the first row's table."""

    breaks, clue = "READ-5", "right when it is read alone"

    def change(self, step: Step) -> Step:
        return replace(step, block_table=step.block_table[:1].expand_as(step.block_table).contiguous())


class PaddingShiftsTheRows(Broken):
    """The last row is given the padding tokens as queries of its own: its real ones see too little."""

    breaks, clue = "BATCH-3", "without the"

    def attend(self, layer: int, query: Tensor, step: Step, *, scale: float | None = None) -> Tensor:
        if not step.num_padding:
            return super().attend(layer, query, step, scale=scale)
        bounds = step.cu_seqlens_q.clone()
        bounds[-1] += step.num_padding
        longest = int((bounds[1:] - bounds[:-1]).max())
        whole = replace(
            step, cu_seqlens_q=bounds, num_tokens=len(query), num_padding=0, max_query_len=longest,
            context_lens=torch.maximum(step.context_lens, (bounds[1:] - bounds[:-1]).int()),
        )  # fmt: skip
        return super().attend(layer, query, whole, scale=scale)


class OneTokenIsNothing(Broken):
    """A context of one token is taken for an empty one."""

    breaks, clue = "READ-6", "the only token"

    def _attend(self, caches: tuple[Tensor, Tensor], query: Tensor, step: Step, scale: float) -> Tensor:
        out = super()._attend(caches, query, step, scale)
        for index, row in enumerate(step.rows):
            if row.stop == 1:
                out[int(step.cu_seqlens_q[index])] = 0.0
        return out


class QueriesAreTakenAsDense(Broken):
    """Queries are read as if they were contiguous: a slice of a fused projection is not."""

    breaks, clue = "READ-7", "contiguous queries"

    def _attend(self, caches: tuple[Tensor, Tensor], query: Tensor, step: Step, scale: float) -> Tensor:
        dense = torch.empty(query.shape).stride()
        return super()._attend(caches, query.as_strided(query.shape, dense), step, scale)


class TableIsRememberedByName(_ReadsOtherwise):
    """A sequence that comes back is read through the table that it had before."""

    breaks, clue = "PREEMPT-1", "was preempted before"

    def preempt(self, name: Name) -> list[int]:
        self.__dict__.setdefault("old", {})[name] = list(self.manager.table(name))
        return super().preempt(name)

    def change(self, step: Step) -> Step:
        table = step.block_table.clone()
        for index, row in enumerate(step.rows):
            old = [block for block in self.__dict__.get("old", {}).get(row.name, ()) if block >= 0]
            table[index, : len(old)] = torch.tensor(old, dtype=torch.int32)
        return replace(step, block_table=table)


class RaisesOnABlockBoundary(Broken):
    """A step that ends on a block boundary divides by what is left of the block."""

    breaks, clue = "CRASH-1", "ZeroDivisionError"

    def commit(self, step: Step) -> None:
        for row in step.rows:
            _ = 1 // (row.stop % self.shape.block_size)
        super().commit(step)


def target_of(broken: type[Broken]) -> type[OurCache]:
    """The target whose cache is that variant."""

    class Target(OurCache):
        def cache_class(self) -> type[PagedKVCache]:
            return broken

    Target.__name__ = Target.__qualname__ = broken.__name__
    return Target


def all_broken() -> list[type[Broken]]:
    """Every variant, in the order of this file."""
    return [
        cls for cls in globals().values() if isinstance(cls, type) and issubclass(cls, Broken) and "breaks" in vars(cls)
    ]
