"""The referee of cache targets: that of blocks targets, with the tensors of every step computed, compared and poisoned.

Life of a step: the bookkeeping as at the blocks level; copies compared as soon as they are reported; then layer by layer the
target writes and reads, as a model would make it; commit; every byte of the pools looked at; unowned slots poisoned; each live
sequence read once more.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch

from paged_ref.ownership import LiveSequence
from properties.blocks import access
from properties.blocks.operations import Append, Operation, Resume
from properties.blocks.probe import Crashed, Probe
from properties.blocks.referee import BlocksReferee, Outcome
from properties.cache.legality import parts_of, why_illegal
from properties.cache.operations import BatchStep, CacheGeometry
from properties.cache.probe import CacheProbe
from properties.cache.reads import Reads
from properties.cache.tensors import Faulted, Part, Tensors
from properties.timelimit import TimedOut


class CacheReferee(BlocksReferee):
    """One trace on one fresh cache target."""

    probe_class: type[Probe] = CacheProbe

    def __init__(self, target: Any, geometry: CacheGeometry) -> None:
        super().__init__(target, geometry)
        self.tensors = Tensors(self.probe, self.state, geometry)
        self.reads = Reads(self.tensors)
        self._num_layers = geometry.num_layers
        self._pending: list[Part] = []
        self._in_batch = False
        self._num_threads = torch.get_num_threads()
        torch.set_num_threads(1)  # tensors this small are slower on several

    def close(self) -> None:
        torch.set_num_threads(self._num_threads)
        super().close()

    def apply(self, operation: Operation) -> Outcome:
        """Apply and judge one operation. "illegal" means that it has no meaning here and was not applied."""
        self._pending, self._in_batch = [], False
        self.tensors.planned.begin()
        if isinstance(operation, Resume) and why_illegal(self.state, operation) is None:
            self.reads.returned.add(operation.name)
        try:
            return self._batch(operation) if isinstance(operation, BatchStep) else super().apply(operation)
        except Faulted:
            return "crashed"

    # ---- a step over several sequences

    def _batch(self, op: BatchStep) -> Outcome:
        state = self.state
        state.step += 1
        if why_illegal(state, op) is not None:
            return "illegal"
        state.latest, self._settled = None, 0
        try:
            return self._batch_step(op)
        except Crashed as crash:
            state.judged["CRASH-1"] += 1
            state.report("CRASH-1", f"batch: {crash}")
        except TimedOut:
            state.judged["CRASH-2"] += 1
            state.report("CRASH-2", "batch did not return within the time limit of the trace")
        return "crashed"

    def _batch_step(self, op: BatchStep) -> Outcome:
        """Room for every row first, one after the other; then the tensors of all of them at once."""
        live = self.state.live
        settled: dict[str, int] = {}
        self._in_batch = True
        for name, run in parts_of(self.state, op):
            seq = live.get(name)
            if seq is None:
                continue  # lost by an earlier row, and reported
            if seq.computed < len(seq.tokens):
                stop = settled[name] = min(len(seq.tokens), seq.computed + len(run))
                self._write(seq, seq.computed, stop, ())
            else:
                settled[name] = len(seq.tokens)  # what is appended may be drafts
                self._append(Append(name, run), None)
        self._in_batch = False
        parts = [part for part in self._pending if part.seq.name in live]
        if not parts:
            return "refused"
        self.state.marks["a padded batch"] += bool(op.padding)
        self._compute(parts, op.padding)
        self._commit(parts)
        for part in parts[:-1] if self._windowed else ():
            access.judge_window(self.state, part.seq, settled[part.seq.name])
        self._settled = settled[parts[-1].seq.name]
        self._after(parts[-1].seq)
        return "done"

    # ---- the parts of a step, with tensors

    def _perform_copies(self, seq: LiveSequence, shared: Sequence[int], *, quiet: bool = False) -> None:
        seen = len(self.state.breaches)
        super()._perform_copies(seq, shared, quiet=quiet)
        if len(self.state.breaches) == seen:  # else a copy reaches outside the pool
            self.tensors.copied(seq, self.probe.latest_copies)  # type: ignore[attr-defined]

    def _write(self, seq: LiveSequence, first: int, stop: int, fresh: Collection[int]) -> None:
        super()._write(seq, first, stop, fresh)
        part = Part(seq, first, stop)
        if first == stop or min(seq.slots[first:stop]) < 0:
            return
        self._pending.append(part)
        self.tensors.planned.plan(seq.name, first)
        if not self._in_batch:
            self._compute([part], 0)

    def _compute(self, parts: Sequence[Part], padding: int) -> None:
        """The forward pass of a model over these positions, layer by layer."""
        self.tensors.poison_before_write(parts, list(self.state.live.values()))
        for layer in range(self._num_layers):
            self.tensors.write(layer, parts, padding)
            self.reads.judge(layer, parts, padding)

    def _publish(self, seq: LiveSequence) -> None:
        if self._in_batch:
            return
        self._commit([part for part in self._pending if part.seq is seq])

    def _commit(self, parts: Sequence[Part]) -> None:
        state = self.state
        held = [(part.seq, part.seq.blocks) for part in parts]
        self.tensors.call("commit", [part.row for part in parts])
        for seq, _ in held:
            self._perform_copies(seq, (), quiet=True)
        self._look_at_sequences()
        for seq, blocks in held:
            for block in () if self._windowed else blocks:
                if block not in seq.blocks:
                    state.shadow.event(block, state.step, f"given up by {seq.name} for an equal block")

    def _after(self, focus: LiveSequence | None, *, pool_seen: bool = False) -> None:
        if self._in_batch:  # nothing is written yet: bookkeeping alone, and no window can have slid
            super()._after(None, pool_seen=pool_seen)
            return
        super()._after(focus, pool_seen=pool_seen)
        live = list(self.state.live.values())
        self.reads.returned &= self.state.live.keys()
        self.tensors.judge_quiet(live)
        self.tensors.poison_unowned(live)
        self.reads.judge(self.state.step % self._num_layers, [part for seq in live for part in self._last(seq)])

    def _last(self, seq: LiveSequence) -> list[Part]:
        """The last computed position, unless the window has released what it read: only the next one must be readable."""
        window = self.state.geometry.window
        first = max(0, seq.computed - window) if window else 0
        whole = seq.computed and min(seq.slots[first : seq.computed]) >= 0
        return [Part(seq, seq.computed - 1, seq.computed)] if whole else []
