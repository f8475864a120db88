"""The referee of blocks targets: applies one operation and judges what came of it. Nothing else decides what is right.

Life of a step: ask the can-do questions, call the target, perform the copies it reports, look at every live sequence's
slots, judge hits and writes, write the shadow, judge all content, judge the pool.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Literal

from paged_ref.memory import kv_bytes_per_block
from paged_ref.ownership import LiveSequence, blocks_of_slots, holders
from properties.blocks import access, calls, pool
from properties.blocks.legality import why_illegal
from properties.blocks.operations import (
    Admit,
    Allocate,
    Append,
    Computed,
    Drain,
    Fork,
    Free,
    FreeAgain,
    Geometry,
    Lookup,
    Operation,
    Preempt,
    Resume,
    SwapIn,
    SwapOut,
    Truncate,
)
from properties.blocks.probe import Crashed, Probe, Refused
from properties.blocks.state import Parked, State
from properties.contract import AdapterError

Outcome = Literal["done", "refused", "illegal", "crashed"]


class BlocksReferee:
    """One trace on one fresh target.

    Raises `AdapterError` from any method where the adapter breaks its protocol. `state.breaches` grows as clauses break.
    """

    def __init__(self, target: Any, geometry: Geometry) -> None:
        self.probe = Probe(target)
        self.target = target
        self.state = State(geometry, self.probe.capabilities, self.probe.offers)
        self._windowed = bool(geometry.window)
        self._settled = 0
        self._changed: list[str] = []
        try:
            self.probe.call("open", geometry)
        except Refused as refusal:
            raise AdapterError(f"open({geometry}) refused: {refusal}", "declare what it accepts in capabilities") from None
        except Crashed as crash:
            raise AdapterError(
                f"open({geometry}) failed: {crash}", "declare the block and pool sizes it accepts in capabilities"
            ) from None
        self._look_at_pool()
        self._judge_fresh_system()
        self._judge_memory()

    def close(self) -> None:
        """Give the target the chance to release what `open` took."""
        if "close" in self.probe.offers:
            self.probe.call("close")

    # ---- one operation -------------------------------------------------------------------------------------------

    def apply(self, operation: Operation) -> Outcome:
        """Apply and judge one operation. "illegal" means that it has no meaning here and was not applied."""
        state = self.state
        state.step += 1
        if why_illegal(state, operation) is not None:
            return "illegal"
        latest, state.latest = state.latest, None
        try:
            return _HANDLERS[type(operation)](self, operation, latest)
        except Crashed as crash:
            state.judged["CRASH-1"] += 1
            state.report("CRASH-1", f"{operation.kind}: {crash}")
            return "crashed"

    def _admit(self, op: Admit | Allocate, latest: str | None) -> Outcome:
        return self._new_sequence(op.name, op.tokens, op.salt, latest, compute=isinstance(op, Admit))

    def _resume(self, op: Resume, latest: str | None) -> Outcome:
        parked = self.state.parked[op.name]
        outcome = self._new_sequence(op.name, parked.tokens, parked.salt, latest, compute=True, verb="resume")
        if outcome == "done":
            del self.state.parked[op.name]
            self.state.marks["a preempted sequence came back"] += 1
        return outcome

    def _new_sequence(
        self,
        name: str,
        tokens: Sequence[int],
        salt: str | None,
        latest: str | None,
        *,
        compute: bool,
        verb: str = "admit",
    ) -> Outcome:
        state, probe = self.state, self.probe
        salted = {"salt": salt} if state.capabilities.salts else {}
        what = f"{verb}({name}, {len(tokens)} tokens)"
        answer = probe.truth("can_admit", tokens, **salted) if "can_admit" in probe.offers else None
        predicts = "predict_admit" in probe.offers and not self._windowed  # a window gives blocks back within the call
        predicted = probe.number("predict_admit", tokens, **salted) if predicts else None
        available = calls.num_available(state)
        # a window may release within `admit` what was just written; in its split form every slot is seen
        split = not compute or (self._windowed and "allocate" in probe.offers)
        method = "allocate" if split else "admit"
        try:
            cached = probe.number(method, name, tokens, **salted)
        except Refused as refusal:
            self._refused(what, str(refusal), state.blocks_for(len(tokens)), answer)
            return "refused"
        if not 0 <= cached <= len(tokens):
            raise AdapterError(
                f"{method}({name}) returned {cached} cached tokens of {len(tokens)}", "return how many leading tokens hit"
            )
        seq = LiveSequence(name, salt, list(tokens), state.runs.extend(state.runs.root(salt), tokens), family={name})
        if state.capabilities.prefix_cache:
            state.latest = latest
            calls.judge_repeat(state, tokens, seq.runs, cached)
            state.latest = None
        elif cached:
            raise AdapterError(f"{method}({name}) returned {cached} cached tokens", "declare prefix_cache=True")
        state.live[name] = seq
        before = state.cached
        self._settled = len(tokens) if compute else 0
        self._perform_copies(seq, ())
        if not self._look_at_sequences(seq):
            return "done"
        self._judge_new(seq, cached, before, compute=compute)
        if compute and split:
            probe.call("computed", name, len(tokens))
            self._look_at_sequences()
        calls.judge_answer(state, what, answer, copy_due=False)
        self._after(seq)
        calls.judge_prediction(state, what, predicted, available)
        return "done"

    def _judge_new(self, seq: LiveSequence, cached: int, before: Collection[int] | None, *, compute: bool) -> None:
        state, size = self.state, self.state.block_size
        if state.capabilities.prefix_cache:
            access.judge_hits(state, seq, cached)
        hits = blocks_of_slots(seq.slots[:cached], size)
        fresh = [block for block in seq.blocks if block not in hits]
        self._mark_hits(seq, cached, hits, before)
        access.judge_fresh(state, seq, fresh, hits)
        self._hand_out(seq, fresh, before)
        if compute:
            self._write(seq, cached, len(seq.tokens), fresh)
            state.latest = seq.name
        else:
            seq.computed = cached
            state.marks["allocated, not yet computed"] += 1

    def _computed(self, op: Computed, latest: str | None) -> Outcome:
        state, seq = self.state, self.state.live[op.name]
        self._settled = op.upto
        self._write(seq, seq.computed, op.upto, ())  # the KV is written first, then the target is told
        self.probe.call("computed", op.name, op.upto)
        self._look_at_sequences()
        if seq.computed == len(seq.tokens):
            state.latest = seq.name
        self._after(seq)
        return "done"

    def _append(self, op: Append, latest: str | None) -> Outcome:
        state, probe, seq = self.state, self.probe, self.state.live[op.name]
        what = f"append({op.name}, {len(op.tokens)} tokens to {len(seq.tokens)})"
        count = len(op.tokens)
        tail_shared = self._tail_is_shared(seq)
        answer = probe.truth("can_append", op.name, count) if "can_append" in probe.offers else None
        predicts = "predict_append" in probe.offers and not self._windowed
        predicted = probe.number("predict_append", op.name, count) if predicts else None
        available = calls.num_available(state)
        shared = self._shared_blocks(seq)
        try:
            probe.call("append", op.name, op.tokens)
        except Refused as refusal:
            need = state.blocks_for(len(seq.tokens) + count) - self._table_length(seq) + tail_shared
            self._refused(what, str(refusal), need, answer, copy_due=tail_shared)
            return "refused"
        first, before, old = len(seq.tokens), state.cached, seq.blocks
        self._settled = first  # the tokens of the newest append may be drafts that are rolled back
        seq.runs += state.runs.extend(seq.runs[-1], op.tokens)
        seq.tokens += op.tokens
        self._perform_copies(seq, shared)
        if not self._look_at_sequences(seq):
            return "done"
        fresh = [block for block in seq.blocks if block not in old]
        access.judge_fresh(state, seq, fresh, ())
        self._hand_out(seq, fresh, before)
        self._write(seq, first, len(seq.tokens), fresh)
        calls.judge_answer(state, what, answer, copy_due=tail_shared)
        self._after(seq)
        calls.judge_prediction(state, what, predicted, available)
        state.latest = seq.name
        return "done"

    def _fork(self, op: Fork, latest: str | None) -> Outcome:
        state, parent = self.state, self.state.live[op.name]
        try:
            self.probe.call("fork", op.name, op.child)
        except Refused as refusal:
            self._refused(f"fork({op.name})", str(refusal), 1, None)
            return "refused"
        parent.family.add(op.child)
        child = LiveSequence(
            op.child, parent.salt, list(parent.tokens), list(parent.runs), parent.computed, family=parent.family
        )
        state.live[op.child] = child
        self._settled = 0
        state.marks["a fork"] += 1
        before = state.cached
        shared = parent.blocks
        self._perform_copies(child, shared)
        if self._look_at_sequences(child):
            fresh = [block for block in child.blocks if block not in shared]
            access.judge_fresh(state, child, fresh, ())
            self._hand_out(child, fresh, before)
            self._after(child)
        return "done"

    def _truncate(self, op: Truncate, latest: str | None) -> Outcome:
        state, seq = self.state, self.state.live[op.name]
        shared, old, before = self._shared_blocks(seq), seq.blocks, state.cached
        try:
            self.probe.call("truncate", op.name, op.length)
        except Refused as refusal:
            self._refused(f"truncate({op.name}, {op.length})", str(refusal), 1, None)
            return "refused"
        for slot, run in zip(seq.slots[op.length :], seq.runs[op.length :], strict=False):
            state.dropped[slot] = run
        del seq.tokens[op.length :], seq.runs[op.length :]
        seq.computed = min(seq.computed, op.length)
        state.marks["a truncation"] += 1
        self._perform_copies(seq, shared)
        if self._look_at_sequences(seq):
            fresh = [block for block in seq.blocks if block not in old]
            access.judge_fresh(state, seq, fresh, ())
            self._hand_out(seq, fresh, before)
            self._after(seq)
        return "done"

    def _swap_out(self, op: SwapOut, latest: str | None) -> Outcome:
        state = self.state
        try:
            self.probe.call("swap_out", op.name)
        except Refused as refusal:
            self._refused(f"swap_out({op.name})", str(refusal), None, None)
            return "refused"
        seq = state.live.pop(op.name)
        seq.location = "host"
        state.swapped[op.name] = seq
        self._perform_copies(seq, seq.blocks)
        self._release(seq, "swapped out with")
        self._look_at_sequences()
        self._after(None)
        state.marks["a swap to host memory"] += 1
        return "done"

    def _swap_in(self, op: SwapIn, latest: str | None) -> Outcome:
        state, seq, before = self.state, self.state.swapped[op.name], self.state.cached
        try:
            self.probe.call("swap_in", op.name)
        except Refused as refusal:
            self._refused(f"swap_in({op.name})", str(refusal), state.blocks_for(len(seq.tokens)), None)
            return "refused"
        del state.swapped[op.name]
        seq.location, seq.slots, seq.blocks = "device", (), ()
        state.live[op.name] = seq
        self._perform_copies(seq, seq.blocks, swap=True)
        if self._look_at_sequences(seq):
            fresh = [block for block in seq.blocks if state.holders.get(block) == 1]
            self._hand_out(seq, fresh, before)
            access.judge_swapped_in(state, seq)
            self._after(seq)
        return "done"

    def _free(self, op: Free | Preempt, latest: str | None) -> Outcome:
        state = self.state
        self.probe.call("free", op.name)
        seq = state.live.pop(op.name, None) or state.swapped.pop(op.name)
        seq.family.discard(op.name)
        if isinstance(op, Preempt):
            state.parked[op.name] = Parked(tuple(seq.tokens), seq.salt)
        if seq.computed < len(seq.tokens):
            state.marks["freed before it was computed"] += 1
        if seq.location == "device":
            self._release(seq, "released by")
        self._look_at_sequences()
        self._after(None)
        return "done"

    def _free_again(self, op: FreeAgain, latest: str | None) -> Outcome:
        state = self.state
        before = (state.free, state.cached, state.refs)
        how = "was accepted"
        try:
            self.target.free(op.name)
        except Exception as error:
            how = f"raised {type(error).__name__}"
        self._look_at_sequences()
        self._look_at_pool()
        state.judged["REF-3"] += 1
        problem = calls.what_changed(state, before, self._changed)
        if problem:
            state.report("REF-3", f"free({op.name}) of a sequence that is not live {how} and changed {problem}")
        self._after(None, pool_seen=True)
        state.marks["a free of an unknown name"] += 1
        return "done"

    def _lookup(self, op: Lookup, latest: str | None) -> Outcome:
        state = self.state
        salted = {"salt": op.salt} if state.capabilities.salts else {}
        cached = self.probe.number("lookup", op.tokens, **salted)
        if not 0 <= cached <= len(op.tokens):
            raise AdapterError(f"lookup returned {cached} of {len(op.tokens)} tokens", "return how many leading tokens hit")
        state.judged["HASH-4"] += 1
        if cached == len(op.tokens):
            state.report("HASH-4", f"lookup of {cached} tokens says that all are cached: no token is left to compute")
        state.latest = latest
        calls.judge_repeat(state, op.tokens, state.runs.extend(state.runs.root(op.salt), op.tokens), cached)
        self._look_at_sequences()
        self._after(None)
        return "done"

    def _drain(self, op: Drain, latest: str | None) -> Outcome:
        for name in [*self.state.live, *self.state.swapped]:
            self._free(Free(name), None)
        self.state.parked.clear()
        self._judge_empty()
        self._fill()
        return "done"

    # ---- parts of a step -----------------------------------------------------------------------------------------

    def _perform_copies(self, seq: LiveSequence, shared: Sequence[int], *, swap: bool = False) -> None:
        """Do to the shadow what the target asks to be copied, in its order."""
        state, size = self.state, self.state.block_size
        copies = self.probe.copies()
        for copy in copies:
            spaces = {"device": state.shadow, "host": state.host}
            source, dest = spaces.get(copy.src_space), spaces.get(copy.dst_space)
            if source is None or dest is None:
                raise AdapterError(f"{copy} names an unknown memory space", 'use "device" or "host"')
            width = size if copy.unit == "block" else 1
            for offset in range(width):
                src, dst = copy.src * width + offset, copy.dst * width + offset
                if not (0 <= src < source.num_slots and 0 <= dst < dest.num_slots):
                    state.report("ALLOC-1", f"{copy} reaches outside the pool")
                    return
                dest.copy_slot(source, src, dst, state.step)
            dest.event(copy.dst * width // size, state.step, f"filled by a copy of {copy.src_space} {copy.unit} {copy.src}")
        if copies and seq.location == "device" and not swap:
            calls.judge_copies(state, seq, copies, shared)

    def _look_at_sequences(self, focus: LiveSequence | None = None) -> bool:
        """Ask for the slots of every live sequence. False where the focus has none that could be judged."""
        state, probe = self.state, self.probe
        self._changed = []
        lost = []
        for seq in state.live.values():
            slots = probe.slots(seq.name, seq.slots)
            if slots is seq.slots and seq is not focus:
                continue
            if seq is not focus:
                self._changed.append(seq.name)
            seq.slots = slots
            if not pool.judge_slots(state, seq):
                lost.append(seq.name)
                continue
            seq.blocks = blocks_of_slots(slots, state.block_size)
        for name in lost:
            del state.live[name]
        state.holders = holders(seq.blocks for seq in state.live.values())
        return not lost or (focus is not None and focus.name not in lost)

    def _write(self, seq: LiveSequence, first: int, stop: int, fresh: Collection[int]) -> None:
        """Positions `[first, stop)` of a sequence are computed now."""
        access.judge_writes(self.state, seq, first, fresh)
        if self._windowed:  # a composite call may release within itself what it has just written
            while first < stop and seq.slots[first] < 0:
                first += 1
        stop = max(first, stop)
        self.state.shadow.write(seq.name, first, seq.slots[first:stop], seq.runs[first:stop], self.state.step)
        seq.computed = max(seq.computed, stop)

    def _hand_out(self, seq: LiveSequence, fresh: Collection[int], before: Collection[int] | None) -> None:
        """Note the blocks that a sequence just got, and judge what was evicted for them."""
        state = self.state
        if before and fresh and not self._windowed:  # a window releases within a call, in an order nobody sees
            pool.judge_eviction_order(state, frozenset(before), fresh)
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
        for index, block in enumerate(seq.blocks):
            if block not in remaining:
                state.released[block] = (state.step, -index)
                state.shadow.event(block, state.step, f"{how} {seq.name}")

    def _mark_hits(
        self, seq: LiveSequence, cached: int, hits: Collection[int], before: Collection[int] | None
    ) -> None:
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
        access.judge_content(state, live)
        if "read_slots" in probe.offers:
            for seq in live:
                access.judge_read_path(state, seq, self._read_pairs(seq))
        if "table" in probe.offers:
            for seq in live:
                pool.judge_table(state, seq, probe.call("table", seq.name))
        if focus is not None and focus.name in state.live:
            if "ALLOC-2P" in state.capabilities.promises and not self._windowed:
                pool.judge_length(state, focus)
            if self._windowed:
                access.judge_window(state, focus, self._settled)
        if not pool_seen:
            self._look_at_pool()

    def _read_pairs(self, seq: LiveSequence) -> list[tuple[int, int]]:
        pairs = self.probe.call("read_slots", seq.name)
        try:
            return [(int(position), int(slot)) for position, slot in pairs]
        except (TypeError, ValueError):
            raise AdapterError(f"read_slots returned {pairs!r:.80}", "return (position, slot) pairs") from None

    def _look_at_pool(self) -> None:
        state, probe, offers = self.state, self.probe, self.probe.offers
        if "cached_blocks" in offers:
            state.cached = frozenset(probe.ids("cached_blocks"))
        if "ref_count" in offers:
            count = self.target.ref_count
            state.refs = [count(block) for block in range(state.geometry.num_blocks)]
            pool.judge_refs(state, state.refs)
        if "free_blocks" in offers:
            state.free = probe.ids("free_blocks")
            pool.judge_free(state, state.free)

    def _refused(
        self, what: str, refusal: str, need: int | None, answer: bool | None, *, copy_due: bool = False
    ) -> None:
        state = self.state
        before = (state.free, state.cached, state.refs)
        copies = self.probe.copies()
        self._look_at_sequences()
        calls.judge_refusal(state, what, refusal, need, answer, copy_due=copy_due)
        self._after(None)
        state.judged["ALLOC-3"] += 1
        problem = calls.what_changed(state, before, self._changed)
        if copies:
            problem = f"the list of copies: it asks for {list(copies)}"
        if problem:
            state.report("ALLOC-3", f"{what} was refused with {refusal}, but it changed {problem}")

    # ---- the system at its start and its end -----------------------------------------------------------------------

    def _judge_fresh_system(self) -> None:
        """Right after `open` the pool is empty; anything else is the adapter's state from an earlier case."""
        state = self.state
        if state.breaches or (state.cached and "cached_blocks" in self.probe.offers):
            problem = state.breaches[0].message if state.breaches else f"blocks {sorted(state.cached or ())} are cached"
            raise AdapterError(
                f"right after open() the system is not fresh: {problem}",
                "build a new implementation in open() and reset its class-level globals",
            )

    def _judge_memory(self) -> None:
        if "block_bytes" not in self.probe.offers:
            return
        state = self.state
        for layers, heads, dim, itemsize in ((32, 32, 128, 2), (28, 8, 128, 2), (3, 5, 96, 4)):
            state.judged["MEM-1"] += 1
            expected = kv_bytes_per_block(state.block_size, layers, heads, dim, itemsize)
            found = self.probe.number("block_bytes", layers, heads, dim, itemsize)
            if found != expected:
                state.report(
                    "MEM-1",
                    f"a block of {state.block_size} tokens, {layers} layers, {heads} KV heads of {dim}, {itemsize} bytes an "
                    f"element takes {expected} bytes (K and V), but the target says {found}",
                )

    def _judge_empty(self) -> None:
        state = self.state
        state.judged["ALLOC-5"] += 1
        if state.free is None:
            return
        there = set(state.free) | (state.cached or frozenset())
        if there != state.usable:
            missing = sorted(state.usable - there)
            state.report("ALLOC-5", f"after everything was freed, blocks {missing} are neither free nor cached")

    def _fill(self) -> None:
        """Allocate the whole pool once, with tokens that were never seen, and free it again."""
        state, caps = self.state, self.probe.capabilities
        room = (len(state.usable) - caps.watermark_blocks) * state.block_size - caps.look_ahead
        longest = min(room, caps.max_tokens or room)
        if self._windowed or longest <= 0:
            return
        most = caps.max_sequences if caps.max_sequences is not None else len(state.usable)
        names = []
        salted = {"salt": None} if caps.salts else {}
        while room > 0 and len(names) < most:
            length = min(longest, room)
            name, tokens = f"fill{len(names)}", tuple(range(_UNSEEN, _UNSEEN + length))
            try:
                self.probe.number("admit", name, tokens, **salted)
            except Refused as refusal:
                state.report(
                    "ALLOC-5",
                    f"after everything was freed, {length} tokens that need {state.blocks_for(length)} blocks were refused "
                    f"with {refusal}, although {room // state.block_size} of {len(state.usable)} blocks must be there",
                )
                break
            names.append(name)
            room -= -(-length // state.block_size) * state.block_size + caps.look_ahead
        self.probe.copies()
        for name in names:
            self.probe.call("free", name)
        self._forget_content()
        self._look_at_pool()

    def _forget_content(self) -> None:
        """The fill overwrote the pool: nothing that was cached before may be hit after it."""
        state = self.state
        run = state.runs.extend(state.runs.root(None), [_UNSEEN - 1])[0]
        everything = range(state.shadow.num_slots)
        state.shadow.write("fill", 0, everything, [run] * len(everything), state.step)
        state.released.clear()

    # ---- small questions ---------------------------------------------------------------------------------------------

    def _shared_blocks(self, seq: LiveSequence) -> tuple[int, ...]:
        """Blocks of a sequence whose overwriting somebody else would notice: held by others, or cached."""
        state = self.state
        cached = state.cached or frozenset()
        return tuple(b for b in seq.blocks if state.holders.get(b, 0) > 1 or b in cached)

    def _tail_is_shared(self, seq: LiveSequence) -> bool:
        """Whether the next token goes into a block that another sequence holds, or the cache may still show."""
        state, length = self.state, len(seq.tokens)
        if length % state.block_size == 0 or length >= len(seq.slots) or seq.slots[length] < 0:
            return False
        return seq.slots[length] // state.block_size in self._shared_blocks(seq)

    def _table_length(self, seq: LiveSequence) -> int:
        return -(-len(seq.slots) // self.state.block_size)


_UNSEEN = 1 << 30
"""First of the tokens that fill the pool at the end; no strategy draws them."""

_Handler = Callable[[BlocksReferee, Any, str | None], Outcome]
_HANDLERS: dict[type[Operation], _Handler] = {
    Admit: BlocksReferee._admit,
    Allocate: BlocksReferee._admit,
    Append: BlocksReferee._append,
    Computed: BlocksReferee._computed,
    Drain: BlocksReferee._drain,
    Fork: BlocksReferee._fork,
    Free: BlocksReferee._free,
    FreeAgain: BlocksReferee._free_again,
    Lookup: BlocksReferee._lookup,
    Preempt: BlocksReferee._free,
    Resume: BlocksReferee._resume,
    SwapIn: BlocksReferee._swap_in,
    SwapOut: BlocksReferee._swap_out,
    Truncate: BlocksReferee._truncate,
}

