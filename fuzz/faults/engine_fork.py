"""Planted faults of engines that fork requests."""

from __future__ import annotations

from typing import Any

from fuzz.faults import Fault
from fuzz.faults.engine_variant import Variant, exchange, planter
from paged_impl.block_manager import BlockManager
from properties.engine.protocol import Step, StepBatch

_FOUND: list[Fault] = []
plant = planter(_FOUND)


class _NeverCopies(BlockManager):
    def _make_tail_writable(self, seq: Any) -> None:
        """Whoever else holds the block, it is written."""


@plant("COW-1", "family copy on write: the shared last block is written by both")
class ForksWriteIntoOneBlock(Variant):
    """A fork shares the last block, and nobody copies it."""

    def seed(self) -> None:
        exchange(self.manager, _NeverCopies)


@plant("COW-1", "family copy on write: the copy is asked for and never performed")
class TheCopyOfAForkIsLost(Variant):
    """The table has the new block; the list of copies is dropped on the way to the worker."""

    def step(self) -> Step:
        step = super().step()
        return step._replace(copies=[copy for copy in step.copies if copy.src_space != copy.dst_space])


@plant("BATCH-4", "family copy on write: the persistent table keeps the shared block")
class TheTableKeepsTheSharedBlock(Variant):
    """The manager exchanged the block; the table that the kernels read by did not hear of it."""

    def step(self) -> Step:
        step = super().step()
        self.shared = {copy.dst: copy.src for copy in step.copies if copy.src_space == copy.dst_space}
        return step

    def batch(self, step: Step) -> StepBatch:
        batch = super().batch(step)
        tables = [[self.shared.get(block, block) for block in table] for table in batch.block_tables or ()]
        return batch._replace(block_tables=tables)


FAULTS: tuple[Fault, ...] = tuple(_FOUND)
