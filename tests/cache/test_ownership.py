"""Interpreted kernels of a cache target are held to each sequence's own slots: its table is known by what it holds."""

from typing import Any

import pytest
import torch
from torch import Tensor

from paged_impl.cache import PagedKVCache
from paged_impl.step import Step
from properties.blocks.operations import Admit
from properties.cache.operations import CacheGeometry
from properties.specs import spec_of
from properties.targets.cache_ours import OurTritonCache
from properties.trial import run_trace

SPEC = spec_of("cache")
GEOMETRY = CacheGeometry(block_size=2, num_blocks=6, poison_k="zero", poison_v="zero")
TRACE = [Admit("A", (1, 2, 3)), Admit("B", (4,))]
"""Behind the second step the last position of each is read, in one call."""


@pytest.fixture(autouse=True)
def _interpreted(triton_runs: None) -> None:
    if torch.cuda.is_available():
        pytest.skip("kernels are compiled here, and the guard watches interpreted ones")


class _PeeksAtTheNextRow(PagedKVCache):
    """Right, but for a key of the second row's first block, which the first row's program loads and does not use."""

    def _attend(self, caches: Any, query: Tensor, step: Step, scale: float) -> Tensor:
        from tests.attention.triton_faults import peek_kernel

        if len(step.rows) == 2:
            tables, columns = step.block_table, torch.zeros(2, dtype=torch.int32)
            shift = int(tables[1, 0] - tables[0, 0])
            strides = tables.stride(0), caches[0].stride(0)
            peek_kernel[(1,)](torch.zeros(2), caches[0], tables, columns, shift, *strides)
        return super()._attend(caches, query, step, scale)


class _Peeks(OurTritonCache):
    def cache_class(self) -> type[PagedKVCache]:
        return _PeeksAtTheNextRow


def test_a_key_of_another_sequence_of_the_batch_that_is_not_used_is_reported() -> None:
    verdict = run_trace(SPEC, _Peeks, GEOMETRY, TRACE)
    right = run_trace(SPEC, OurTritonCache, GEOMETRY, TRACE)

    assert (right.adapter, right.breaches) == (None, [])
    assert right.state.judged["READ-1"] > 4
    assert [breach.property for breach in verdict.breaches] == ["READ-2"]
    message = verdict.message("READ-2")
    assert "read(0, [A [2, 3), B [0, 1)]): triton_faults.py:" in message
    assert "slots of another sequence), the first in block 2, offset 0 (slot 4), which belongs to sequence B" in message
    assert "has read the block table of sequence A (3 tokens in blocks [0, 1]) alone by then" in message
