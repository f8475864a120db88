"""Memory that a target asks for and does not write holds NaN, or no small number: what comes of it is found, though it would
be right with the zeros that fresh memory mostly holds.
"""

import pytest
import torch
from torch import Tensor

from properties.attention.cases import ReadCase, Row
from properties.attention.judges import judge
from properties.attention.target import Batch, Output, Pool
from properties.attention.targets.plain import PlainTorch

CASE = ReadCase(
    operation="decode",
    rows=(Row(key=0, context_len=13, table=(5, 1, 6, 3)), Row(key=1, context_len=0, table=())),
    num_blocks=8,
    block_size=4,
    num_kv_heads=2,
    ratio=3,
    head_size=24,
)
FRESH_ELEMENTS = 2**24
"""Above 32 MiB, the largest threshold of glibc, memory is mapped anew for each request, and is zero."""


def fresh(like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Memory as torch.empty gives it, in the shape of `like`."""
    memory = torch.empty(FRESH_ELEMENTS, dtype=dtype or like.dtype)
    return memory[: like.numel()].view(like.shape)


class Cleared(PlainTorch):
    """The right one: it clears what it takes."""

    def _read(self, pool: Pool, batch: Batch) -> Output:
        output = super()._read(pool, batch)
        return self._finish(output, batch)

    def _finish(self, output: Output, batch: Batch) -> Output:
        return Output(fresh(output.out).zero_() + output.out, output.lse)


class AddsToScratch(Cleared):
    """Its sums begin at what lies in its scratch."""

    def _finish(self, output: Output, batch: Batch) -> Output:
        return Output(fresh(output.out) + output.out, output.lse)


class CountsFromScratch(Cleared):
    """Partitions are counted as they end, from what the counter held; nothing is written before the last one."""

    def _finish(self, output: Output, batch: Batch) -> Output:
        last = fresh(output.out[:, :1, :1], torch.int32) == 0
        return Output(torch.where(last, output.out, 0), output.lse)


class LeavesEmptyRows(Cleared):
    """Writes no output for a sequence without tokens."""

    def _finish(self, output: Output, batch: Batch) -> Output:
        out = fresh(output.out)
        written = torch.tensor(batch.context_lens) > 0
        out[written] = output.out[written]
        return Output(out, output.lse)


class LeavesTheLse(Cleared):
    """For a sequence without tokens it subtracts infinity from an LSE that was never set."""

    def _finish(self, output: Output, batch: Batch) -> Output:
        if output.lse is None:
            return output
        return Output(output.out, torch.where(output.lse.isinf(), fresh(output.lse) - torch.inf, output.lse))


def test_a_target_that_clears_its_memory_is_right() -> None:
    assert judge(Cleared(), CASE).findings == []


@pytest.mark.parametrize(
    ("broken", "property_id"),
    [(AddsToScratch, "READ-1"), (CountsFromScratch, "READ-1"), (LeavesEmptyRows, "READ-6"), (LeavesTheLse, "READ-6")],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_memory_that_is_not_written_is_found(broken: type[Cleared], property_id: str) -> None:
    findings = judge(broken(), CASE).findings

    assert [finding.property for finding in findings] == [property_id]
