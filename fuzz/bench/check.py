"""Is a call right, and does it do its work when it is called? Asked before anything is timed.

A read is called on keys that peak (`inputs.plant_peaks`) and compared with float64 twice: every sequence and head by the
norm of its error, and a sample by the tolerance of `paged_ref.parity`. Then the queries are negated in place and it is
called again: an answer that was computed while the call was prepared, or kept from the first one, is wrong now. And once
more after it was timed: a call that gives up after some time, or kept its answer while nothing changed, was fast for nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch

from fuzz.bench.contenders import Contender, Prepared, ReadScene, StoreScene
from fuzz.bench.inputs import plant_peaks, slots_of
from fuzz.bench.oracle import answer, spread
from paged_ref.layouts import unpack_keys, unpack_values
from paged_ref.parity import EPS_TF32, Expected, compare, expect

ROW_EPS = 8.0
"""A row (token, head) may be this many eps of the dtype away, in the norm: correct kernels stay below one."""
ROW_FLOOR = 1e-4
"""Float32 sums of many terms are no better than this, whatever eps says."""
NUM_SAMPLED = 3
OFF = "its answer is off by {:.2g} of the norm"


@dataclass(frozen=True)
class Checked:
    """error: norm of the error over the norm of the answer. wrong: what is wrong, or None."""

    error: float
    wrong: str | None = None


class ReadCheck:
    """The answers of one case, made once and used for every contender. Plants the peaks."""

    def __init__(self, scene: ReadScene) -> None:
        self.scene, self.case = scene, scene.case
        plant_peaks(scene.case, scene.inputs)
        self.answer = answer(scene.case, scene.inputs)
        scene.inputs.q.neg_()
        self.negated = answer(scene.case, scene.inputs)
        scene.inputs.q.neg_()

    def verdict(self, contender: Contender, prepared: Prepared) -> Checked:
        """Calls twice. What the call raises is raised."""
        out = contender.output(prepared.call(), self.scene)
        error = self.answer.relative_error(out)
        wrong = self._wrong_row(out, contender.tf32) or self._outside_tolerance(out, contender.tf32)
        if wrong is None:
            q = self.scene.inputs.q
            q.neg_()
            try:
                again = self.negated.relative_error(contender.output(prepared.call(), self.scene))
            finally:
                q.neg_()
            if not again <= self._row_limit(contender.tf32):
                wrong = (
                    f"with the queries negated in place {OFF.format(again)}: it does not read them when it is called"
                )
        return Checked(error, wrong)

    def of_another_set(self, contender: Contender, prepared: Prepared, scene: ReadScene) -> str | None:
        """What is wrong with the answer to another set, a few sequences of it, or None."""
        expected = answer(self.case, scene.inputs, spread(self.case, NUM_SAMPLED))
        error = expected.relative_error(contender.output(prepared.call(), scene))
        if error <= self._row_limit(contender.tf32):
            return None
        return f"for another batch of this shape {OFF.format(error)}: it does not read what it was prepared for"

    def replayed(self, contender: Contender, result: object, replay: Callable[[], object]) -> str | None:
        """What is wrong with an answer that a replay of a recording must write anew, or None."""
        out = contender.output(result, self.scene)
        out.fill_(torch.nan)
        replay()
        torch.cuda.synchronize()
        wrong = self._wrong_row(out, contender.tf32)
        return f"replayed from a CUDA graph, {wrong}" if wrong else None

    def repeated(self, contender: Contender, prepared: Prepared) -> str | None:
        """What is wrong with the answer of a call that was timed, where it must write it anew, or None."""
        contender.output(prepared.call(), self.scene).fill_(torch.nan)
        wrong = self._wrong_row(contender.output(prepared.call(), self.scene), contender.tf32)
        return f"called again after many calls, {wrong}" if wrong else None

    def _row_limit(self, tf32: bool) -> float:
        eps = EPS_TF32 if tf32 else torch.finfo(self.scene.inputs.q.dtype).eps
        return max(ROW_EPS * eps, ROW_FLOOR)

    def _wrong_row(self, out: torch.Tensor, tf32: bool) -> str | None:
        worst, token, head = self.answer.worst_row(out)
        limit = self._row_limit(tf32)
        if worst <= limit:
            return None
        seq, query = divmod(token, self.case.query)
        which = f", query {query} of {self.case.query}" if self.case.query > 1 else ""
        return (
            f"sequence {seq} (of {self.case.lengths()[seq]} tokens){which}, head {head} is off by {worst:.2g} of "
            f"its norm against float64, limit {limit:.2g}"
        )

    def _outside_tolerance(self, out: torch.Tensor, tf32: bool) -> str | None:
        for token, heads, expected in self._expected_tf32 if tf32 else self._expected:
            found = compare(out[token : token + 1, heads], expected)
            if not found.passed:
                return (
                    f"query token {token}, heads {heads} are outside the tolerance of paged_ref/parity.py: max error "
                    f"{found.max_error:.2e}, limit {found.max_limit:.2e}; mean error {found.mean_error:.2e}, limit "
                    f"{found.mean_limit:.2e}"
                )
        return None

    @cached_property
    def _expected(self) -> list[tuple[int, list[int], Expected]]:
        return [self._expect(*sample, tf32=False) for sample in self._samples()]

    @cached_property
    def _expected_tf32(self) -> list[tuple[int, list[int], Expected]]:
        return [self._expect(*sample, tf32=True) for sample in self._samples()]

    def _samples(self) -> list[tuple[int, int, int]]:
        """(sequence, query row, KV head)."""
        case, rows = self.case, sorted({0, self.case.query // 2, self.case.query - 1})
        return [
            (seq, row, (index + position) % case.num_kv_heads)
            for index, seq in enumerate(spread(case, NUM_SAMPLED))
            for position, row in enumerate(rows)
        ]

    def _expect(self, seq: int, row: int, kv_head: int, *, tf32: bool) -> tuple[int, list[int], Expected]:
        """The last query of a context that is cut behind it: one token, the first and last head of the KV head."""
        case, inputs = self.case, self.scene.inputs
        ratio, token = case.num_heads // case.num_kv_heads, seq * case.query + row
        heads = sorted({kv_head * ratio, kv_head * ratio + ratio - 1})
        block, place = slots_of(inputs, case.page, seq)
        seen = slice(0, int(inputs.lens[seq]) - case.query + row + 1)
        k, v = (cache[block[seen], place[seen], kv_head, None].cpu() for cache in (inputs.k_cache, inputs.v_cache))
        q = inputs.q[token : token + 1, heads].cpu()
        return token, heads, expect(q, k, v, scale=inputs.scale, tf32=tf32)


class StoreCheck:
    """What the pool holds after a store: the tokens at their slots, bit for bit, and nothing anywhere else."""

    def __init__(self, scene: StoreScene) -> None:
        self.scene, self.case = scene, scene.case

    def verdict(self, contender: Contender, prepared: Prepared) -> Checked:
        """Calls twice, with other tokens the second time. What the call raises is raised."""
        wrong = self._wrong(prepared, prepared.call)
        if wrong is None:
            self.scene.inputs.keys.neg_()
            try:
                wrong = self._wrong(prepared, prepared.call)
            finally:
                self.scene.inputs.keys.neg_()
            wrong = (
                f"with the keys negated in place {wrong}: it does not read them when it is called" if wrong else None
            )
        return Checked(0.0 if wrong is None else 1.0, wrong)

    def of_another_set(self, contender: Contender, prepared: Prepared, scene: StoreScene) -> str | None:
        """What is wrong with a store of another set, or None."""
        wrong = StoreCheck(scene)._wrong(prepared, prepared.call)
        return f"for another set of this shape {wrong}: it does not store what it was prepared for" if wrong else None

    def replayed(self, contender: Contender, prepared: Prepared, replay: Callable[[], object]) -> str | None:
        """What is wrong with the pool after a replay of a recording, or None."""
        wrong = self._wrong(prepared, replay)
        return f"replayed from a CUDA graph, {wrong}" if wrong else None

    def repeated(self, contender: Contender, prepared: Prepared) -> str | None:
        """What is wrong with the pool after a call that was timed, or None."""
        wrong = self._wrong(prepared, prepared.call)
        return f"called again after many calls, {wrong}" if wrong else None

    def _wrong(self, prepared: Prepared, act: Callable[[], object]) -> str | None:
        pool, inputs = prepared.pool, self.scene.inputs
        pool.key_cache.zero_()
        pool.value_cache.zero_()
        act()
        caches = (unpack_keys(pool.key_cache, pool.layout), unpack_values(pool.value_cache, pool.layout))
        for what, cache, tokens in zip(("key", "value"), caches, (inputs.keys, inputs.values), strict=True):
            expected = torch.zeros(cache.shape, dtype=cache.dtype, device=cache.device).flatten(0, 1)
            expected[inputs.slots] = tokens
            bad = (cache.flatten(0, 1) != expected).any(-1).any(-1)
            if bool(bad.any()):
                slot = int(bad.nonzero()[0])
                where = (
                    "one that was to be written" if bool((inputs.slots == slot).any()) else "one that was not listed"
                )
                return f"{int(bad.sum())} slots of the {what} cache hold other bits, the first is {slot}, {where}"
        return None


Check = ReadCheck | StoreCheck


def make_check(scene: ReadScene | StoreScene) -> Check:
    """The check of a scene."""
    return ReadCheck(scene) if isinstance(scene, ReadScene) else StoreCheck(scene)
