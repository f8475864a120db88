"""A batch of short sequences, what they own of its pool, and what the guard says of kernels that read it."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from triton.runtime.errors import InterpreterError

from paged_ref.layouts import Layout
from properties.attention.buffers import PoolMemory
from properties.attention.guarding.guard import KernelFault, guarded
from properties.attention.guarding.ownership import Owner, owner_of
from properties.attention.guarding.protection import Protected, reading
from properties.attention.target import Pool
from tests.attention.ownership_kernels import SIZE, Batch

LENGTHS = (6, 9, 7, 0)
TABLES = ((5, 2, 1, 4), (1, 6, 3, 0), (5, 7, 9, 2), (1, 1, 1, 1))
"""Row 2 begins with a block of row 0's. Behind the last blocks: one of row 1's, nobody's, nobody's, and an empty row's."""


def batch_of(lengths: tuple[int, ...] = LENGTHS, tables: tuple[tuple[int, ...], ...] = TABLES) -> Batch:
    keys = torch.arange(1.0, 10 * SIZE + 1).reshape(10, SIZE)
    return Batch(
        keys, torch.zeros_like(keys), torch.tensor(tables, dtype=torch.int32), torch.tensor(lengths, dtype=torch.int32)
    )


def owners_of(batch: Batch, window: int | None = None) -> list[Owner]:
    owners = []
    for i, (table, length) in enumerate(zip(batch.tables.tolist(), batch.lens.tolist(), strict=True)):
        slots = [table[p // SIZE] * SIZE + p % SIZE for p in range(length)]
        first = 0 if window is None else max(0, length - window) // SIZE * SIZE
        owners.append(owner_of(f"row {i}", slots, first))
    return owners


def protected_by(batch: Batch, window: int | None = None) -> tuple[Protected, ...]:
    caches = (cache.view(*cache.shape, 1, 1) for cache in (batch.keys, batch.values))
    return reading(PoolMemory(Pool(*caches, Layout.FLASH), ()), owners_of(batch, window), SIZE, strict=True)


def sums_of(batch: Batch) -> list[float]:
    return [float(batch.keys.flatten()[owner.slots].sum()) for owner in owners_of(batch)]


def fault_of(batch: Batch, call: Callable[[], Tensor], window: int | None = None) -> str:
    """What the guard says of a kernel, whose result is right."""
    assert call().tolist() == sums_of(batch)
    with pytest.raises(InterpreterError) as caught, guarded(protected_by(batch, window)):
        call()
    assert isinstance(caught.value.__cause__, KernelFault)
    assert caught.value.__cause__.kind == "load"
    return str(caught.value.__cause__)
