"""The bench of the blocks referee: the parts that every step is made of. Which part comes when is in `referee.py`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from paged_ref.ownership import LiveSequence, blocks_of_slots, holders
from properties.blocks import access, calls, opening, pool
from properties.blocks.operations import Geometry
from properties.blocks.probe import Crashed, Probe, Refused
from properties.blocks.state import Release, State
from properties.contract import AdapterError


class Bench:
    """A fresh target and the model beside it.

    Raises `AdapterError` where the adapter breaks its protocol. `state.breaches` grows as clauses break.
    """

    probe_class: type[Probe] = Probe

    def __init__(self, target: Any, geometry: Geometry) -> None:
        self.probe = self.probe_class(target)
        self.target = target
        self.state = State(geometry, self.probe.capabilities, self.probe.offers)
        self._windowed = bool(geometry.window)
        self._splits = {"allocate", "computed"} <= self.probe.offers
        self._in_halves = self._splits and "extend" in self.probe.offers
        self._settled = 0
        self._changed: list[str] = []
        self._evictions: list[pool.Eviction] = []
        self._moved = False
        self._num_held = 0
        self._tables: dict[str, tuple[tuple[int, ...], Sequence[int], int]] = {}
        self._told: dict[str, tuple[Sequence[int], tuple[int, ...] | None, Sequence[int]]] = {}
        self._copied: tuple[set[int], set[int]] = set(), set()
        try:
            self.probe.call("open", geometry)
        except Refused as refusal:
            raise AdapterError(
                f"open({geometry}) refused: {refusal}", "declare what it accepts in capabilities"
            ) from None
        except Crashed as crash:
            raise AdapterError(
                f"open({geometry}) failed: {crash}",
                "declare the block and pool sizes it accepts in capabilities",
            ) from None
        try:
            self._look_at_pool()
            opening.judge_fresh_system(self.state, type(self.probe.target))
            opening.judge_memory(self.state, self.probe)
        except (Refused, Crashed) as failure:
            raise AdapterError(
                f"right after open({geometry}): {failure}", "every question must have an answer"
            ) from None

    def close(self) -> None:
        """Give the target the chance to release what `open` took."""
        if "close" not in self.probe.offers:
            return
        try:
            self.probe.call("close")
        except (Refused, Crashed) as failure:
            raise AdapterError(f"close() failed: {failure}", "close() must not fail") from None

    def _perform_copies(self, seq: LiveSequence, shared: Sequence[int], *, quiet: bool = False) -> None:
        """Do to the shadow what the target asks to be copied, in its order. `quiet`: whether one was due is not judged."""
        state, size = self.state, self.state.block_size
        copies = self.probe.copies()
        for copy in copies:
            spaces = {"device": state.shadow, "host": state.host}
            source, dest = spaces[copy.src_space], spaces[copy.dst_space]
            width = size if copy.unit == "block" else 1
            for offset in range(width):
                src, dst = copy.src * width + offset, copy.dst * width + offset
                if not (0 <= src < source.num_slots and 0 <= dst < dest.num_slots):
                    state.report("ALLOC-1", f"{copy} reaches outside the pool")
                    return
                dest.copy_slot(source, src, dst, state.step)
            self._moved = True
            for space, number, seen in ((source, copy.src, 0), (dest, copy.dst, 1)):
                if space is state.shadow:
                    self._copied[seen].add(number * width // size)
            dest.event(
                copy.dst * width // size,
                state.step,
                f"filled by a copy of {copy.src_space} {copy.unit} {copy.src}",
            )
        if copies and seq.location == "device" and not quiet:
            calls.judge_copies(state, seq, copies, shared)

    def _look_at_sequences(self, focus: LiveSequence | None = None) -> bool:
        """Ask for the slots of every live sequence. False where the focus has none that could be judged."""
        state = self.state
        self._changed = []
        moved = focus is not None or len(state.live) != self._num_held
        lost = []
        for seq in state.live.values():
            slots = self._slots(seq)
            if slots is seq.slots and seq is not focus:
                continue
            moved = True
            if seq is not focus:
                self._changed.append(seq.name)
            seq.slots = slots
            if not pool.judge_slots(state, seq):
                lost.append(seq.name)
                continue
            seq.blocks = blocks_of_slots(slots, state.block_size)
        if focus is not None and self._changed:
            self._note_shared_table(focus)
        for name in lost:
            del state.live[name]
        if moved:
            self._moved = True
            self._num_held = len(state.live)
            state.holders = holders(seq.blocks for seq in state.live.values())
        return not lost or (focus is not None and focus.name not in lost)

    def _slots(self, seq: LiveSequence) -> Sequence[int]:
        """The slots of a sequence, those of its whole table where it tells fewer; the same object where nothing changed."""
        if "table" not in self.probe.offers:
            return self.probe.slots(seq.name, seq.slots)
        told, table, whole = self._told.get(seq.name, ((), None, ()))
        now, now_table = self.probe.slots(seq.name, told), self.probe.table(seq.name, table)
        if now is not told or now_table is not table:
            whole = pool.with_table(now, now_table, self.state.block_size, least=len(seq.tokens))
            self._told[seq.name] = now, now_table, whole
        return seq.slots if whole is seq.slots or whole == seq.slots else whole

    def _note_shared_table(self, focus: LiveSequence) -> None:
        """The slots of another sequence that changed as those of this one did, though it was not called."""
        for name in self._changed:
            other = self.state.live[name]
            length = min(len(other.slots), len(focus.slots))
            if length and other.slots[:length] == focus.slots[:length]:
                text = f". The slots of {name} changed with those of {focus.name} and are the same: do both have one table?"
                self.state.moved_along = (self.state.step, text)

    def _write(self, seq: LiveSequence, first: int, stop: int, fresh: Collection[int]) -> None:
        """Positions `[first, stop)` of a sequence are computed now."""
        access.judge_writes(self.state, seq, first, fresh)
        if self._windowed:
            first = self._skip_released(seq, first, stop)
        stop = max(first, stop)
        self._moved = True
        self.state.shadow.write(seq.name, first, seq.slots[first:stop], seq.runs[first:stop], self.state.step)
        seq.computed = max(seq.computed, stop)

    def _skip_released(self, seq: LiveSequence, first: int, stop: int) -> int:
        """The first position of `[first, stop)` that has a slot. What the window still needs is judged by WINDOW-1."""
        outside = stop - (self.state.geometry.window or 0) + 1
        while first < stop and seq.slots[first] < 0:
            if first < outside:
                raise AdapterError(
                    f"sequence {seq.name}, position {first} has slot -1 right after the call that wrote it",
                    "release it in a later call, or offer allocate, extend and computed: then it is seen where it was",
                )
            first += 1
        return first

    def _publish(self, seq: LiveSequence) -> None:
        """Tell the target what is computed; it may put equal blocks in the place of those just written."""
        state, held = self.state, seq.blocks
        self.probe.call("computed", seq.name, seq.computed)
        self._perform_copies(seq, (), quiet=True)
        self._look_at_sequences()
        for block in () if self._windowed else held:  # a window gives blocks up for another reason
            if block not in seq.blocks:
                state.shadow.event(block, state.step, f"given up by {seq.name} for an equal block")

    def _hand_out(self, seq: LiveSequence, fresh: Collection[int], before: Collection[int] | None) -> None:
        """Note the blocks that a sequence just got, and judge what was evicted for them."""
        state = self.state
        if before and fresh and not self._windowed:  # a window releases within a call, in an order nobody sees
            self._evictions += pool.evictions(state, before, fresh)
        for block in fresh:
            if state.handed[block]:
                state.marks["a freed block was reused"] += 1
            state.handed[block] = state.step
            state.released.pop(block, None)
            state.shadow.event(block, state.step, f"handed to {seq.name}")

    def _release(self, seq: LiveSequence, how: str) -> None:
        """Note the blocks that nobody holds any more."""
        state = self.state
        remaining = holders(other.blocks for other in state.live.values())
        state.num_releases += 1
        for index, block in enumerate(seq.blocks):
            if block not in remaining:
                state.released[block] = Release(state.step, state.num_releases, -index)
                state.shadow.event(block, state.step, f"{how} {seq.name}")

    def _mark_hits(self, seq: LiveSequence, cached: int, hits: Collection[int], before: Collection[int] | None) -> None:
        marks, state = self.state.marks, self.state
        if not cached:
            return
        marks["a prefix hit"] += 1
        for block in hits:
            if state.holders.get(block) == 1:
                marks["a hit on a block that nobody held"] += 1
                state.released.pop(block, None)
        if cached >= (len(seq.tokens) - 1) // state.block_size * state.block_size:
            marks["a full hit"] += 1

    def _after(self, focus: LiveSequence | None, *, pool_seen: bool = False) -> None:
        """Judge everything that must hold after every step."""
        state, probe, live = self.state, self.probe, list(self.state.live.values())
        if self._moved:
            access.judge_content(state, live)
            self._moved = False
        else:  # nothing was written, and every slot is where it was: what was judged last still holds
            state.judged["CONTENT-1"] += len(live)
        if "read_slots" in probe.offers:
            for seq in live:
                access.judge_read_path(state, seq, self.probe.read_pairs(seq.name))
        if "table" in probe.offers:
            for seq in live:
                self._judge_table(seq)
        if focus is not None and focus.name in state.live:
            if "ALLOC-2P" in state.capabilities.promises and not self._windowed:
                pool.judge_length(state, focus)
            if self._windowed:
                access.judge_window(state, focus, self._settled)
        if not pool_seen:
            self._look_at_pool()
        if self._evictions:
            pool.judge_eviction_order(state, self._evictions, spared=self._copied[0])
            self._evictions = []
        self._copied = set(), set()
        for block in state.holders.keys() & state.released.keys():
            del state.released[block]

    def _judge_table(self, seq: LiveSequence) -> None:
        """The slot formula; a table and slots that were judged before, both unchanged, need no second look."""
        known, table = self._tables.get(seq.name), self._told[seq.name][1]
        assert table is not None  # asked for with the slots
        if known is not None and known[0] is table and known[1] is seq.slots and known[2] == len(seq.tokens):
            self.state.judged["SLOT-1"] += 1
            return
        pool.judge_table(self.state, seq, table)
        self._tables[seq.name] = (table, seq.slots, len(seq.tokens))

    def _look_at_pool(self) -> None:
        state, probe, offers = self.state, self.probe, self.probe.offers
        if "cached_blocks" in offers:
            state.cached = frozenset(probe.ids("cached_blocks"))
        if "ref_count" in offers:
            state.refs = probe.ref_counts(state.geometry.num_blocks, state.usable)
            pool.judge_refs(state, state.refs)
        if "free_blocks" in offers:
            state.free = probe.ids("free_blocks")
            pool.judge_free(state, state.free)

    def _refused(
        self, what: str, refusal: str, need: int | None, answer: bool | None, *, copy_due: bool = False
    ) -> None:
        state = self.state
        if not what.startswith("fill"):  # a part of a step
            state.refuse(refusal)
        before, first = (state.free, state.cached, state.refs), len(state.breaches)
        copies = self.probe.copies()
        self._look_at_sequences()
        calls.judge_refusal(state, what, refusal, need, answer, copy_due=copy_due)
        self._after(None)
        state.judged["ALLOC-3"] += 1
        problem = calls.what_changed(state, before, self._changed)
        if copies:
            problem = f"the list of copies: it asks for {list(copies)}"
        if problem and "ALLOC-3" not in state.broken:
            state.report("ALLOC-3", f"{what} was refused with {refusal}, but it changed {problem}")
            state.breaches.insert(first, state.breaches.pop())  # what else this step broke follows from it

    def _shared_blocks(self, seq: LiveSequence) -> tuple[int, ...]:
        """Blocks of a sequence whose overwriting somebody else would notice: held by others, or cached."""
        state = self.state
        cached = state.cached or frozenset()
        return tuple(b for b in seq.blocks if state.holders.get(b, 0) > 1 or b in cached)

    def _may_be_shared(self, seq: LiveSequence) -> tuple[int, ...]:
        """`_shared_blocks`; all of its blocks where a prefix cache does not tell which it has."""
        told = "cached_blocks" in self.probe.offers or not self.state.capabilities.prefix_cache
        return self._shared_blocks(seq) if told else seq.blocks

    def _append_need(self, seq: LiveSequence, count: int) -> int:
        """The most blocks that so many tokens more may take: one for each that is not there, or that others may see.

        Those behind the ones that are written now count too: a target may exchange whatever a truncation left shared.
        """
        state, size = self.state, self.state.block_size
        shared, held = self._may_be_shared(seq), self._table_length(seq)
        blocks = range(len(seq.tokens) // size, max(held, state.blocks_for(len(seq.tokens) + count)))
        return sum(index >= held or seq.slots[index * size] // size in shared for index in blocks)

    def _tail_is_shared(self, seq: LiveSequence) -> bool:
        """Whether the next token goes into a block that another sequence holds, or the cache may still show."""
        state, length = self.state, len(seq.tokens)
        if length % state.block_size == 0 or seq.slots[length - 1] < 0:
            return False
        # The block of the last token, which is there in any case: a target need not tell slots behind the last token.
        return seq.slots[length - 1] // state.block_size in self._shared_blocks(seq)

    def _table_length(self, seq: LiveSequence) -> int:
        return -(-len(seq.slots) // self.state.block_size)
