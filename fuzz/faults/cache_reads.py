"""Planted faults of caches: what is read. Each variant overrides the one place where its bug sits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fuzz.faults import Fault
from fuzz.faults.cache_variant import Broken, planter
from paged_impl.backends.torch_gather import attend, gather
from paged_impl.step import Name, Step

FAULTS: list[Fault] = []
plant = planter(FAULTS)


@plant("READ-2", "vllm-project/vllm#641, Dao-AILab/flash-attention#2374: weights of 0 times NaN", "the values of slots")
class ValuesOfTheTailAreNotMasked(Broken):
    """Whole blocks are read and scores masked; 0 x NaN is NaN."""

    def _attend(self, caches: tuple[Tensor, Tensor], query: Tensor, step: Step, scale: float) -> Tensor:
        out = super()._attend(caches, query, step, scale)
        values = gather(*caches, step.block_table, step.max_context_len)[1]
        for index, length in enumerate(step.context_lens.tolist()):
            rows = slice(int(step.cu_seqlens_q[index]), int(step.cu_seqlens_q[index + 1]))
            out[rows] += (0.0 * values[index, length:].sum()).to(out.dtype)
        return out


@plant("READ-2", "deepbeepmeep/Wan2GP#1628: the mask is added, and NaN + -inf is NaN", "the keys of slots")
class KeysOfTheTailAreNotMasked(Broken):
    """The mask is added to the scores: NaN + -inf is NaN."""

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


@plant("READ-1", "golang-design/accel#10: a kernel that ignores the table", "Clue: the output is that of")
class IdentityTable(_ReadsOtherwise):
    """Blocks 0, 1, 2, ... are read."""

    def change(self, step: Step) -> Step:
        width = step.block_table.shape[1]
        table = torch.arange(width, dtype=torch.int32).clamp_max(self.shape.num_blocks - 1)
        return replace(step, block_table=table.expand(len(step.rows), width).contiguous())


@plant("READ-1", "GeeeekExplorer/nano-vllm#67: a position and a length confused")
class LastTokenIsDropped(_ReadsOtherwise):
    """The context length does not count the token just written."""

    def change(self, step: Step) -> Step:
        return replace(step, context_lens=(step.context_lens - 1).clamp_min(1))


@plant("READ-1", "flashinfer-ai/flashinfer#1023: a scale is passed and lost", "a scale of 1")
class ScaleIsForgotten(Broken):
    """Scores are not scaled."""

    def _attend(self, caches: tuple[Tensor, Tensor], query: Tensor, step: Step, scale: float) -> Tensor:
        return super()._attend(caches, query, step, 1.0)


@plant("READ-1", "a slip without a record: the other way to group query heads", "h % num_kv_heads")
class HeadsAreInterleaved(Broken):
    """Query head h reads KV head h % num_kv_heads."""

    def _attend(self, caches: tuple[Tensor, Tensor], query: Tensor, step: Step, scale: float) -> Tensor:
        groups = self.shape.num_kv_heads
        order = torch.arange(query.shape[1]).view(-1, groups).T.flatten()
        out = torch.empty_like(query)
        out[:, order] = super()._attend(caches, query[:, order], step, scale)
        return out


@plant("READ-1", "a slip without a record: the layer index is not passed on")
class ReadsTheFirstLayer(Broken):
    """Every layer reads the KV of layer 0."""

    def _attend(self, caches: tuple[Tensor, Tensor], query: Tensor, step: Step, scale: float) -> Tensor:
        return super()._attend(self.layer(0), query, step, scale)


@plant(
    "READ-1",
    "tanishqkumar/ssd#22: on a hit the new keys are read without the cached ones in front",
    "the cached prefix left out",
)
class PrefillForgetsTheCache(Broken):
    """A chunk attends to its own tokens alone, not to the prefix behind it (the cached one included)."""

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


@plant("READ-1", "vllm-project/tpu-inference#1185: tokens outside the window are attended to")
class WindowIsOneTooWide(Broken):
    """The window counts the tokens before the query, not the query's own."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.window = None if self.window is None else self.window + 1


@plant("READ-5", "vllm-project/vllm#7018: rows of a batch without a table of their own", "right when it is read alone")
class OneTableForAll(_ReadsOtherwise):
    """Every row of a batch reads through the first row's table."""

    def change(self, step: Step) -> Step:
        return replace(step, block_table=step.block_table[:1].expand_as(step.block_table).contiguous())


@plant("BATCH-3", "vllm-project/vllm#13922: rows and tokens counted as one under padding", "without the")
class PaddingShiftsTheRows(Broken):
    """The last row is given the padding tokens as queries of its own: its real ones see too little."""

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


@plant("READ-6", "Wenyueh/MinivLLM#87: a length that is 0 at an edge", "the only token")
class OneTokenIsNothing(Broken):
    """A context of one token is taken for an empty one."""

    def _attend(self, caches: tuple[Tensor, Tensor], query: Tensor, step: Step, scale: float) -> Tensor:
        out = super()._attend(caches, query, step, scale)
        for index, row in enumerate(step.rows):
            if row.stop == 1:
                out[int(step.cu_seqlens_q[index])] = 0.0
        return out


@plant("READ-7", "flashinfer-ai/flashinfer#527: the real strides are ignored", "contiguous queries")
class QueriesAreTakenAsDense(Broken):
    """Queries are read as if they were contiguous: a slice of a fused projection is not."""

    def _attend(self, caches: tuple[Tensor, Tensor], query: Tensor, step: Step, scale: float) -> Tensor:
        dense = torch.empty(query.shape).stride()
        return super()._attend(caches, query.as_strided(query.shape, dense), step, scale)


@plant(
    "PREEMPT-1", "GeeeekExplorer/nano-vllm#144: a sequence is not recognised after preemption", "was preempted before"
)
class TableIsRememberedByName(_ReadsOtherwise):
    """A sequence that comes back is read through the table that it had before."""

    def preempt(self, name: Name) -> list[int]:
        self.__dict__.setdefault("old", {})[name] = list(self.manager.table(name))
        return super().preempt(name)

    def change(self, step: Step) -> Step:
        table = step.block_table.clone()
        for index, row in enumerate(step.rows):
            old = [block for block in self.__dict__.get("old", {}).get(row.name, ()) if block >= 0]
            table[index, : len(old)] = torch.tensor(old, dtype=torch.int32)
        return replace(step, block_table=table)


@plant("CRASH-1", "Wenyueh/MinivLLM#87: a remainder that is 0 at exact multiples", "ZeroDivisionError")
class RaisesOnABlockBoundary(Broken):
    """A step that ends on a block boundary divides by what is left of the block."""

    def commit(self, step: Step) -> None:
        for row in step.rows:
            _ = 1 // (row.stop % self.shape.block_size)
        super().commit(step)
