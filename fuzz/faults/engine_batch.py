"""Planted faults of batch preparation: what a step tells the kernels is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from fuzz.faults import Fault
from fuzz.faults.engine_variant import Variant, exchange, planter
from paged_impl.batch import Batch, BatchPreparer
from properties.engine.protocol import Step, StepBatch

_FOUND: list[Fault] = []
plant = planter(_FOUND)


@plant("BATCH-2", "nano-vllm family: the last slot counted from 1")
class DecodeSlotOneTooFar(Variant):
    """block_table[-1] * block_size + last_block_num_tokens, without the - 1."""

    def batch(self, step: Step) -> StepBatch:
        batch = super().batch(step)
        slots = list(batch.slot_mapping or ())
        first = 0
        for row in step.rows:
            if row.stop - row.start == 1:
                slots[first] += 1
            first += row.stop - row.start
        return batch._replace(slot_mapping=slots)


@plant("BATCH-4", "GeeeekExplorer/nano-vllm#213")
class ChunkReadsToTheEnd(Variant):
    """The key length of a chunk is the whole sequence."""

    def batch(self, step: Step) -> StepBatch:
        lengths = [len(self.scheduler.tokens(row.name)) for row in step.rows]
        sums = [0, *accumulate(lengths)]
        return super().batch(step)._replace(cu_seqlens_k=sums, context_lens=lengths)


class _NeverRefreshed(BatchPreparer):
    def set_table(self, name: Any, table: Sequence[int]) -> None:
        if not self.num_blocks(name):
            super().set_table(name, table)


@plant("BATCH-4", "nano-vllm#258: old columns of a persistent table are not cleared")
class StaleTableRow(Variant):
    """A preempted request comes back, and its row of the persistent table is the old one."""

    def seed(self) -> None:
        exchange(self.batches, _NeverRefreshed)


@plant("BATCH-4", "tanishqkumar/ssd#22")
class NoTablesWithACachedPrefix(Variant):
    """On a hit the block tables are not passed on."""

    def batch(self, step: Step) -> StepBatch:
        batch = super().batch(step)
        decodes = all(row.stop - row.start == 1 for row in step.rows)
        return batch if decodes else batch._replace(block_tables=None)


@plant("BATCH-1", "GeeeekExplorer/nano-vllm#67")
class PositionIsTheLength(Variant):
    """Positions of decode counted from 1."""

    def batch(self, step: Step) -> StepBatch:
        batch = super().batch(step)
        shift = 1 if all(row.stop - row.start == 1 for row in step.rows) else 0
        return batch._replace(positions=[p + shift for p in batch.positions or ()])


@plant("BATCH-1", "family metadata: maxima that do not cover every row")
class MaxLengthOfTheFirstRow(Variant):
    """max_seqlen_k taken from one row only."""

    def batch(self, step: Step) -> StepBatch:
        return super().batch(step)._replace(max_seqlen_k=step.rows[0].stop if step.rows else 0)


@plant("SLOT-3", "vllm-project/vllm#43810")
class PaddingWritesTheLastSlot(Variant):
    """-1 becomes the last block and the last offset."""

    def batch(self, step: Step) -> StepBatch:
        batch: Batch = self.batches.prepare(step.handle.rows, num_padding_tokens=2)
        last = self.manager.num_blocks * self.block_size - 1
        slots = [last if slot == -1 else slot for slot in batch.slot_mapping.tolist()]
        return super().batch(step)._replace(slot_mapping=slots)


@plant("BATCH-3", "sglang#1779: padded rows with the length of another row")
class PaddingRowReads(Variant):
    """A row of padding keeps the context length of the request that had the row before."""

    def batch(self, step: Step) -> StepBatch:
        batch = super().batch(step)
        tables = [*(batch.block_tables or ()), [0]]
        return batch._replace(context_lens=[*(batch.context_lens or ()), 3], block_tables=tables)


FAULTS: tuple[Fault, ...] = tuple(_FOUND)
