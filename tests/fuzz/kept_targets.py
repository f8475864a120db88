"""Kernels that keep something from call to call, in their module: targets in a file of their own, for other processes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from properties.attention.target import Batch, Output, Pool
from properties.attention.targets.plain import PlainTorch
from tests.attention.broken import Int32Offsets

__all__ = ["Int32Offsets", "KeepsTables", "WrongBehindAPrefill", "WrongOnce", "WrongWithoutLse"]

KEPT_TABLES: dict[tuple[int, ...], Any] = {}
PREFILLS: list[int] = []
CALLS: list[int] = []


class WrongBehindAPrefill(PlainTorch):
    """Decodes give zeros once the process has seen a prefill of two rows or more."""

    def prefill(self, pool: Pool, batch: Batch) -> Output:
        PREFILLS.extend([1] * (len(batch.query_lens) > 1))
        return super().prefill(pool, batch)

    def decode(self, pool: Pool, batch: Batch) -> Output:
        answer = super().decode(pool, batch)
        return Output(answer.out * 0, answer.lse) if PREFILLS else answer


class KeepsTables(PlainTorch):
    """A batch of the same lengths is read through the block table of the first one."""

    def _read(self, pool: Pool, batch: Batch) -> Output:
        tables = KEPT_TABLES.setdefault(batch.context_lens, batch.block_tables)
        return super()._read(pool, replace(batch, block_tables=tables))


class WrongWithoutLse(PlainTorch):
    """Keeps nothing: it is wrong by itself, where the LSE is not asked for."""

    def _read(self, pool: Pool, batch: Batch) -> Output:
        answer = super()._read(pool, batch)
        return answer if batch.want_lse else Output(answer.out * 0)


class WrongOnce(PlainTorch):
    """Keeps nothing that reaches a result, and loses a race in the second call of its process."""

    def _read(self, pool: Pool, batch: Batch) -> Output:
        CALLS.append(1)
        answer = super()._read(pool, batch)
        return Output(answer.out * 0, answer.lse) if len(CALLS) == 2 else answer
