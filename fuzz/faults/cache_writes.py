"""Planted faults of caches: copies and stores. Each variant overrides the one place where its bug sits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fuzz.faults import Fault
from fuzz.faults.cache_variant import Broken, planter
from paged_impl.backends.interface import store_by_index
from paged_impl.block_manager import BlockManager, Copy
from paged_impl.sequence_state import SequenceState
from paged_impl.step import Name, Step

FAULTS: list[Fault] = []
plant = planter(FAULTS)


# ---- copies


@plant("COW-2", "vllm-project/vllm-ascend#16013: a block copy misses some of the segments of a block", "of layer 1")
class CopiesOneLayer(Broken):
    """Copy on write of the first layer alone."""

    def _changed(self) -> None:
        kept = self.pools[:, 1:].clone()
        super()._changed()
        self.pools[:, 1:] = kept


@plant(
    "COW-2",
    "vllm-project/vllm#17362: copy helpers made for another order of K and V are inherited",
    "values of layer 0",
)
class CopiesKeysOnly(Broken):
    """Keys are copied, values are not."""

    def _changed(self) -> None:
        kept = self.pools[1].clone()
        super()._changed()
        self.pools[1] = kept


@plant("COW-2", "vllm-project/vllm-ascend#14039: merged copies run in the other order")
class CopiesBackwards(Broken):
    """Source and destination are exchanged."""

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


@plant("STORE-1", "vllm-project/vllm-ascend#16013: one stride used for several segments", "where it does not lie")
class CopyReachesTooFar(Broken):
    """A copy takes one block more than asked for."""

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


@plant(
    "COW-1",
    "Avarok-Cybersecurity/atlas#692: the tail of a live sequence becomes the writable tail of another",
    "a copy was due",
)
class NoCopyOnWrite(Broken):
    """The shared tail is written in place."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.manager.__class__ = _SharesTail


@plant("SWAP-1", "xLLM-AI/xllm#1984: the copy step is not enabled on a backend")
class SwapsInLate(Broken):
    """Copies back from host memory are left to the next step."""

    def swap_in(self, name: Name) -> None:
        self.manager.swap_in(name)
        self._version += 1
        if self.on_copies is not None:
            self.on_copies(self.manager.take_copies())


@plant(
    "SWAP-1", "vllm-project/vllm#17362: copy helpers made for another order of K and V are inherited", "values of layer"
)
class SwapsKeysOnly(Broken):
    """What comes back from host memory are the keys alone."""

    def _changed(self) -> None:
        copies, kept = list(self.manager._copies), self.pools[1].clone()
        super()._changed()
        for copy in copies:
            if copy.src_space == "host":
                self.pools[1, :, copy.dst_block] = kept[:, copy.dst_block]


# ---- stores


@plant("STORE-1", "GeeeekExplorer/nano-vllm#258: a step works with the table of an earlier one", "was to be written")
class StaleSlotMapping(Broken):
    """The slot mapping is made from the table that the sequence had before the copy."""

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


@plant("STORE-1", "a slip without a record: layers counted from one")
class StoresIntoTheNextLayer(Broken):
    """Layer indices that start at one."""

    def write(self, layer: int, key: Tensor, value: Tensor, step: Step) -> None:
        super().write((layer + 1) % self.shape.num_layers, key, value, step)
        step.layers_written.add(layer)


@plant("SLOT-3", "vllm-project/vllm#43810: slot -1 used as an index", "the last of the pool")
class PaddingIsTheLastSlot(Broken):
    """Slot -1 is used as an index."""

    def write(self, layer: int, key: Tensor, value: Tensor, step: Step) -> None:
        last = self.shape.num_blocks * self.shape.block_size - 1
        slots = torch.where(step.slot_mapping < 0, last, step.slot_mapping)
        k_cache, v_cache = self.layer(layer)
        store_by_index(key, value, k_cache, v_cache, slots)
        step.layers_written.add(layer)


@plant("CONTENT-1", "vllm-project/vllm#2622: a write into unrelated memory", "nothing was to be written")
class CommitMovesAToken(Broken):
    """Publishing a block rotates its last slot away."""

    def commit(self, step: Step) -> None:
        super().commit(step)
        table = self.manager.table(step.rows[0].name)
        if table and table[0] >= 0:
            self.pools[:, :, table[0]] = self.pools[:, :, table[0]].roll(1, 2)
