"""Attention targets for the tests of `pagefault bench`: right ones of a known speed, and wrong ones, each in its own way."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from properties.attention.capabilities import AttentionCapabilities
from properties.attention.target import Batch, Output, Pool
from properties.attention.targets.plain import PlainTorch


class Right(PlainTorch):
    """Right, and prepared."""

    name = "right"
    sleep_s = 0.0

    def prepare_decode(self, pool: Pool, batch: Batch) -> Callable[[], Output]:
        return lambda: self._after_sleep(lambda: self.decode(pool, batch))

    def prepare_prefill(self, pool: Pool, batch: Batch) -> Callable[[], Output]:
        return lambda: self._after_sleep(lambda: self.prefill(pool, batch))

    def _after_sleep(self, call: Callable[[], Output]) -> Output:
        time.sleep(self.sleep_s)
        return call()


class Brisk(Right):
    """Thirty milliseconds a call, and a little."""

    name = "brisk"
    sleep_s = 0.030


class Slow(Right):
    """Three times that."""

    name = "slow"
    sleep_s = 0.090


class SlowToConvert(Right):
    """Half a second of conversions that no timed call may contain."""

    name = "slow-to-convert"

    def prepare_decode(self, pool: Pool, batch: Batch) -> Callable[[], Output]:
        time.sleep(0.5)
        return super().prepare_decode(pool, batch)


class HndOnly(PlainTorch):
    """Takes another layout than the neutral one."""

    name = "hnd-only"
    capabilities = AttentionCapabilities(layouts=("hnd",), real_shapes=True)


class VllmStore(PlainTorch):
    """Stores in vLLM's packed layout."""

    name = "vllm-store"
    capabilities = AttentionCapabilities(store_layouts=("vllm",), real_shapes=True)

    def store(self, pool: Pool, keys: Tensor, values: Tensor, slot_mapping: Tensor) -> None:
        num_heads, chunks, page, x = pool.key_cache.shape[1:]
        block, place = slot_mapping // page, slot_mapping % page
        pool.key_cache[block, :, :, place] = keys.reshape(-1, num_heads, chunks, x)
        pool.value_cache[block, :, :, place] = values


class Zeros(PlainTorch):
    """Returns zeros."""

    name = "zeros"

    def _read(self, pool: Pool, batch: Batch) -> Output:
        return Output(torch.zeros_like(batch.q))


class NotANumber(PlainTorch):
    """One NaN in one row."""

    name = "nan"

    def _read(self, pool: Pool, batch: Batch) -> Output:
        out = super()._read(pool, batch).out
        out[-1, 0, 3] = torch.nan
        return Output(out)


class DropsTheLastToken(PlainTorch):
    """Attends to a context that is one token short."""

    name = "drops-last"

    def _read(self, pool: Pool, batch: Batch) -> Output:
        return super()._read(pool, replace(batch, context_lens=tuple(n - 1 for n in batch.context_lens)))


class IdentityTable(PlainTorch):
    """Reads block i for block i."""

    name = "identity-table"

    def _read(self, pool: Pool, batch: Batch) -> Output:
        tables = tuple(tuple(range(len(table))) for table in batch.block_tables)
        return super()._read(pool, replace(batch, block_tables=tables))


class OneSequenceWrong(PlainTorch):
    """The second-last sequence reads the table of the last one."""

    name = "one-sequence"

    def _read(self, pool: Pool, batch: Batch) -> Output:
        tables = (*batch.block_tables[:-2], batch.block_tables[-1], batch.block_tables[-1])
        return super()._read(pool, replace(batch, block_tables=tables))


class WrongHead(PlainTorch):
    """Query heads are dealt to the KV heads in turn instead of in groups."""

    name = "wrong-head"

    def _per_query_head(self, tokens: Tensor, num_heads: int) -> Tensor:
        return tokens.repeat(1, num_heads // tokens.shape[1], 1)


class SlightlyWrong(PlainTorch):
    """An output that is 5 % too large: less than the limit of a row in bfloat16, more than the tolerance of parity."""

    name = "slightly-wrong"

    def _read(self, pool: Pool, batch: Batch) -> Output:
        return Output(super()._read(pool, batch).out * 1.05)


class ComputesBeforehand(PlainTorch):
    """Does the work while the call is prepared; the call itself is free."""

    name = "beforehand"

    def prepare_decode(self, pool: Pool, batch: Batch) -> Callable[[], Output]:
        output = self.decode(pool, batch)
        return lambda: output


class KeepsTheFirstBatch(PlainTorch):
    """Every prepared call reads what the first one was prepared for: it stays in the cache."""

    name = "keeps-first"
    kept: tuple[Pool, Batch] | None = None

    def open(self) -> None:
        self.kept = None

    def prepare_decode(self, pool: Pool, batch: Batch) -> Callable[[], Output]:
        first = self.kept = self.kept or (pool, batch)
        return lambda: self.decode(*first)


class KeepsTheFirstTokens(PlainTorch):
    """Every prepared store stores what the first one was prepared for, where that said."""

    name = "keeps-first-tokens"
    kept: tuple[Tensor, Tensor, Tensor] | None = None

    def open(self) -> None:
        self.kept = None

    def prepare_store(self, pool: Pool, keys: Tensor, values: Tensor, slot_mapping: Tensor) -> Callable[[], None]:
        first = self.kept = self.kept or (keys, values, slot_mapping)
        return lambda: self.store(pool, *first)


class GivesUp(PlainTorch):
    """Zeros from the ninth call on."""

    name = "gives-up"
    num_calls = 0

    def _read(self, pool: Pool, batch: Batch) -> Output:
        self.num_calls += 1
        return super()._read(pool, batch) if self.num_calls < 9 else Output(torch.zeros_like(batch.q))


class StoresNoMore(PlainTorch):
    """Stores nothing from the ninth call on."""

    name = "stores-no-more"
    num_calls = 0

    def store(self, pool: Pool, keys: Tensor, values: Tensor, slot_mapping: Tensor) -> None:
        self.num_calls += 1
        if self.num_calls < 9:
            super().store(pool, keys, values, slot_mapping)


class KeepsItsAnswers(PlainTorch):
    """Computes again only where the queries were written since."""

    name = "keeps-answers"

    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[tuple[int, int], Output] = {}

    def _read(self, pool: Pool, batch: Batch) -> Output:
        key = (batch.q.data_ptr(), batch.q._version)
        if key not in self.kept:
            self.kept[key] = super()._read(pool, batch)
        return self.kept[key]


class ScalesQueriesInPlace(PlainTorch):
    """The scale is multiplied into the caller's queries."""

    name = "scales-q"

    def decode(self, pool: Pool, batch: Batch) -> Output:
        out = super().decode(pool, batch)
        batch.q.mul_(batch.scale)
        return out


class ClearsThePool(PlainTorch):
    """The right answer, once."""

    name = "clears-pool"

    def decode(self, pool: Pool, batch: Batch) -> Output:
        out = super().decode(pool, batch)
        pool.value_cache.zero_()
        return out


class ShiftsTheSlots(PlainTorch):
    """A store that leaves other slots behind."""

    name = "shifts-slots"

    def store(self, pool: Pool, keys: Tensor, values: Tensor, slot_mapping: Tensor) -> None:
        super().store(pool, keys, values, slot_mapping)
        slot_mapping.add_(1).remainder_(pool.key_cache.shape[0] * pool.key_cache.shape[1])


class OneOutput(PlainTorch):
    """Right: every call writes the one output that it keeps."""

    name = "one-output"
    out: Tensor | None = None

    def _read(self, pool: Pool, batch: Batch) -> Output:
        out = super()._read(pool, batch).out
        self.out = torch.empty_like(out) if self.out is None or self.out.shape != out.shape else self.out
        return Output(self.out.copy_(out))


class StoresOneSlotFurther(PlainTorch):
    """Every token lands one slot behind its own."""

    name = "one-slot-further"

    def store(self, pool: Pool, keys: Tensor, values: Tensor, slot_mapping: Tensor) -> None:
        num_slots = pool.key_cache.shape[0] * pool.key_cache.shape[1]
        super().store(pool, keys, values, (slot_mapping + 1) % num_slots)


class StoresBeforehand(PlainTorch):
    """Copies the tokens while the call is prepared."""

    name = "store-beforehand"

    def prepare_store(self, pool: Pool, keys: Tensor, values: Tensor, slot_mapping: Tensor) -> Callable[[], None]:
        kept = keys.clone()
        return lambda: self.store(pool, kept, values, slot_mapping)


class ForgetsValues(PlainTorch):
    """Stores keys alone."""

    name = "forgets-values"

    def store(self, pool: Pool, keys: Tensor, values: Tensor, slot_mapping: Tensor) -> None:
        super().store(Pool(pool.key_cache, pool.value_cache.clone(), pool.layout), keys, values, slot_mapping)


class Crashes(PlainTorch):
    """Raises what it does not declare."""

    name = "crashes"
    capabilities = AttentionCapabilities(real_shapes=True)

    def _read(self, pool: Pool, batch: Batch) -> Output:
        raise RuntimeError("an illegal memory access")


class Leaves(Crashes):
    """Ends the process, as if all were well."""

    name = "leaves"

    def _read(self, pool: Pool, batch: Batch) -> Output:
        raise SystemExit(0)


class LeavesAtOnce(Crashes):
    """Ends the process below Python."""

    name = "leaves-at-once"

    def _read(self, pool: Pool, batch: Batch) -> Output:
        os._exit(0)


class NoException(BaseException):
    """Derives from none, and has no text."""

    def __str__(self) -> str:
        raise ValueError("no text")


class RaisesNoException(Crashes):
    """Raises what `except Exception` does not catch."""

    name = "raises-none"

    def _read(self, pool: Pool, batch: Batch) -> Output:
        raise NoException


class Talks(PlainTorch):
    """Prints in every call, by Python and below it."""

    name = "talks"

    def _read(self, pool: Pool, batch: Batch) -> Output:
        sys.stdout.write("so far so good\n")
        os.write(1, b"so far so good\n")
        return super()._read(pool, batch)


class Waits(PlainTorch):
    """Never returns."""

    name = "waits"

    def _read(self, pool: Pool, batch: Batch) -> Output:
        os.write(2, b"waiting\n")
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # as native code does that does not look
        while True:
            time.sleep(1)


class CannotBeMade(PlainTorch):
    """Its constructor fails."""

    name = "cannot-be-made"

    def __init__(self) -> None:
        raise KeyError("weights")


class CrashesOutside(Crashes):
    """The same, on shapes that it does not declare."""

    name = "crashes-outside"
    capabilities = AttentionCapabilities(head_sizes=(256,))


class Refuses(PlainTorch):
    """Declines with a declared refusal."""

    name = "refuses"

    def _read(self, pool: Pool, batch: Batch) -> Output:
        raise NotImplementedError("blocks of 64 tokens only")


class ReturnsNothing(PlainTorch):
    """Breaks the protocol."""

    name = "returns-nothing"

    def _read(self, pool: Pool, batch: Batch) -> Output:
        return None  # type: ignore[return-value]
