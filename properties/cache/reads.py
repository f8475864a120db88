"""Judges of what a cache target reads: each row against dense attention over the sequence's own tokens.

A row that is wrong is attributed by asking again: on a clean pool (READ-2), without padding (BATCH-3), with dense inputs
(READ-7), alone (READ-5). Else it is PREEMPT-1 for a sequence that came back, READ-6 for one token, and READ-1.

Letters: T query tokens, H query heads, G KV heads, D head size.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from paged_ref.parity import Comparison, Expected, compare, expect
from properties.attention import decoys
from properties.attention.cases import ReadCase
from properties.attention.cases import Row as CaseRow
from properties.attention.contents import Content
from properties.attention.scene import Scene
from properties.cache.mirror import fill_slots
from properties.cache.tensors import Part, Tensors
from properties.contract import AdapterError
from properties.wording import counted

MOST_EXPECTED = 4096


class Reads:
    """Reads through the target and compares. `returned` are the sequences that were preempted and came back."""

    def __init__(self, tensors: Tensors) -> None:
        self.tensors, self.state, self.geometry = tensors, tensors.state, tensors.geometry
        self.returned: set[str] = set()
        self._expected: dict[tuple[int, int, int], Expected] = {}

    def judge(self, layer: int, parts: Sequence[Part], padding: int = 0) -> None:
        """One call of `read` over these parts, each row compared. Parts whose content is known to be wrong are left out."""
        parts = [part for part in parts if self._is_sound(part)]
        if not parts:
            return
        strided = self.geometry.strided
        self._count(parts, padding)
        outs = self._read(layer, parts, padding, strided=strided)
        for part, out in zip(parts, outs, strict=True):
            comparison = compare(out, self._expect(layer, part))
            if not comparison.passed:
                self._attribute(layer, parts, part, padding, out, comparison)
                return

    def _is_sound(self, part: Part) -> bool:
        """Whether every slot that the row reads holds what it must, as far as is known without reading."""
        slots = [slot for slot in part.seq.slots[: part.stop] if slot >= 0]
        runs = [run for run, slot in zip(part.seq.runs, part.seq.slots[: part.stop], strict=False) if slot >= 0]
        content = self.state.shadow.run
        return all(content[s] == r for s, r in zip(slots, runs, strict=True)) and not bool(
            self.tensors.mirror.tainted[slots].any()
        )

    def _count(self, parts: Sequence[Part], padding: int) -> None:
        judged, marks = self.state.judged, self.state.marks
        judged["READ-1"] += len(parts)
        marks["a row compared with dense attention"] += len(parts)
        if self.tensors.pools and "zero" not in (self.geometry.poison_k, self.geometry.poison_v):
            judged["READ-2"] += len(parts)
        judged["READ-6"] += sum(part.stop == 1 for part in parts)
        judged["PREEMPT-1"] += sum(part.seq.name in self.returned for part in parts)
        judged["READ-7"] += self.geometry.strided
        judged["BATCH-3"] += bool(padding)
        if len(parts) > 1:
            judged["READ-5"] += 1
            marks["a batch of several sequences"] += 1
            marks["a ragged batch"] += len({part.stop - part.start for part in parts}) > 1
        if all(part.stop - part.start == 1 for part in parts):
            marks["decode"] += 1
        else:
            marks["prefill"] += 1
            marks["prefill behind earlier tokens"] += any(part.start and part.stop - part.start > 1 for part in parts)

    def _read(self, layer: int, parts: Sequence[Part], padding: int, *, strided: bool) -> list[Tensor]:
        """The output of each part, `[T, H, D]` on the CPU, in memory of its own: the target may use its buffer again."""
        queries = self.tensors.inputs(layer, parts, padding, strided=strided)[2]
        out = self.tensors.call("read", layer, [part.row for part in parts], queries)
        counts = [part.stop - part.start for part in parts]
        if (
            not isinstance(out, Tensor)
            or out.shape[1:] != queries.shape[1:]
            or len(out) not in (sum(counts), len(queries))
        ):
            shape = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
            raise AdapterError(
                f"read returned {shape} for queries {tuple(queries.shape)}", "return a tensor of that shape"
            )
        if out.dtype != queries.dtype:
            raise AdapterError(
                f"read returned {out.dtype} for queries of {queries.dtype}", "return the dtype of the queries"
            )
        return list(torch.split(out[: sum(counts)].detach().to("cpu", copy=True), counts))

    def _expect(self, layer: int, part: Part) -> Expected:
        key = (layer, part.seq.runs[part.stop - 1], part.start)
        if key not in self._expected:
            if len(self._expected) >= MOST_EXPECTED:
                self._expected.clear()
            content = self._content(layer, part)
            self._expected[key] = expect(
                content.q, content.k, content.v, scale=self._scale, window=self.geometry.window, tf32=self._tf32
            )
        return self._expected[key]

    def _content(self, layer: int, part: Part) -> Content:
        payload = self.tensors.payload
        keys, values, _ = payload.split(payload.fused(part.seq.runs[: part.stop], layer))
        _, _, queries = payload.split(payload.fused(part.seq.runs[part.start : part.stop], layer))
        return Content(queries, keys, values)

    @property
    def _scale(self) -> float:
        return float(self.geometry.head_size**-0.5)

    @property
    def _tf32(self) -> bool:
        return bool(getattr(self.state.capabilities, "tf32", False)) and self.geometry.dtype == "float32"

    # ---- what is wrong

    def _attribute(
        self, layer: int, parts: Sequence[Part], part: Part, padding: int, out: Tensor, comparison: Comparison
    ) -> None:
        id, why = self._cause(layer, parts, part, padding)
        position = part.start + comparison.worst[0]
        window = f", window {self.geometry.window}" if self.geometry.window else ""
        others = ", ".join(p.seq.name for p in parts if p is not part)
        beside = f", in one step with {others}" * bool(others)
        self.state.report(
            id,
            f"sequence {part.seq.name}, layer {layer}, query at position {position} of "
            f"{counted(part.stop, 'token')}{window}, in the row [{part.start}, {part.stop}){beside}: "
            f"head {comparison.worst[1]}, dimension {comparison.worst[2]} is {comparison.actual:.6g}, dense attention over its "
            f"own tokens gives {comparison.oracle:.6g}. Error {comparison.max_error:.2g}, limit {comparison.max_limit:.2g} "
            f"(plain {self.geometry.dtype} code errs by {comparison.baseline_max_error:.2g}); {comparison.num_bad_rows} of "
            f"{comparison.num_rows} (token, head) rows are wrong. {why}. Clue: {self._clue(layer, part, out)}",
        )

    def _cause(self, layer: int, parts: Sequence[Part], part: Part, padding: int) -> tuple[str, str]:
        """The clause that a wrong row breaks, and what was tried to find it."""
        strided = self.geometry.strided
        for kinds, what in (((0,), "keys"), ((1,), "values"), ((0, 1), "keys and values")):
            if self.tensors.pools and self._right(layer, parts, part, padding, strided=strided, clean=kinds):
                return "READ-2", f"It is right where the {what} of slots that no sequence owns are zero"
        if padding and self._right(layer, parts, part, 0, strided=strided):
            return "BATCH-3", f"It is right without the {counted(padding, 'padding token')}"
        if strided and self._right(layer, parts, part, padding, strided=False):
            return "READ-7", "It is right with contiguous queries"
        if len(parts) > 1 and self._right(layer, [part], part, padding, strided=strided):
            return "READ-5", "It is right when it is read alone"
        if part.seq.name in self.returned:
            return "PREEMPT-1", "The sequence was preempted before, and has come back"
        if part.stop == 1:
            return "READ-6", "It is the only token of its sequence"
        return "READ-1", "It is as wrong on a clean pool and alone"

    def _right(
        self, layer: int, parts: Sequence[Part], part: Part, padding: int, *, strided: bool, clean: Sequence[int] = ()
    ) -> bool:
        """Whether the row is right in another call; `clean` are the kinds (0 keys, 1 values) without poison."""
        pool = self.tensors.pools[layer] if clean else None
        before = [cache.clone() for cache in (pool.key_cache, pool.value_cache)] if pool is not None else []
        if pool is not None:
            poison = self.tensors.mirror.poison
            numbers = [0.0 if kind in clean else poison[kind] for kind in (0, 1)]
            fill_slots(pool, self.tensors.poisoned_slots(), numbers)
        try:
            out = self._read(layer, parts, padding, strided=strided)[list(parts).index(part)]
        finally:
            if pool is not None:
                pool.key_cache.copy_(before[0])
                pool.value_cache.copy_(before[1])
        return compare(out, self._expect(layer, part)).passed

    def _clue(self, layer: int, part: Part, out: Tensor) -> str:
        """Which mistake would give that output."""
        geometry, size = self.geometry, self.state.block_size
        slots = list(part.seq.slots[: part.stop])
        table = tuple(slots[start] // size for start in range(0, part.stop, size))
        if any(slot != table[p // size] * size + p % size for p, slot in enumerate(slots)):
            return "none, since a window has released positions, or slots do not lie in blocks"
        row = CaseRow(key=0, context_len=part.stop, table=table, query_len=part.stop - part.start)
        case = ReadCase(
            operation="prefill",
            rows=(row, *self._others(part)),
            num_blocks=geometry.num_blocks,
            block_size=size,
            num_kv_heads=geometry.num_kv_heads,
            ratio=geometry.ratio,
            head_size=geometry.head_size,
            dtype=geometry.dtype,
            window=geometry.window,
        )
        shape = (geometry.num_kv_heads, geometry.head_size)
        keys, values = (self.tensors.mirror.device[kind, layer].reshape(-1, size, *shape) for kind in (0, 1))
        content = {0: self._content(layer, part)}
        scene = Scene(case, content, None, None, keys, values, ())  # type: ignore[arg-type]
        return decoys.explain(scene, row, out, self._expect(layer, part), tf32=self._tf32)

    def _others(self, part: Part) -> list[CaseRow]:
        """The other live sequences, whose tables may have been read."""
        others = [seq for seq in self.state.live.values() if seq is not part.seq and seq.blocks]
        return [
            CaseRow(key=key, context_len=seq.computed, table=tuple(seq.blocks)) for key, seq in enumerate(others, 1)
        ]
