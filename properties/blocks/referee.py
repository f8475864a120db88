"""The referee of blocks targets: applies one operation and judges what came of it. Nothing else decides what is right.

Life of a step: ask the can-do questions, call the target, perform the copies it reports, look at every live sequence's
slots, judge hits and writes, write the shadow, judge all content, judge the pool.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Literal

from paged_ref.ownership import LiveSequence, blocks_of_slots
from properties.blocks import access, calls, declarations, opening
from properties.blocks.bench import Bench
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
    Lookup,
    Operation,
    Preempt,
    Resume,
    SwapIn,
    SwapOut,
    Truncate,
)
from properties.blocks.probe import Crashed, Refused
from properties.blocks.state import Parked
from properties.contract import AdapterError
from properties.timelimit import TimedOut
from properties.wording import counted

Outcome = Literal["done", "refused", "illegal", "crashed"]


class BlocksReferee(Bench):
    """One trace on one fresh target: what each kind of operation does, and in which order it is judged."""

    # ---- one operation -------------------------------------------------------------------------------------------

    def apply(self, operation: Operation) -> Outcome:
        """Apply and judge one operation. "illegal" means that it has no meaning here and was not applied."""
        state = self.state
        state.step += 1
        if why_illegal(state, operation) is not None:
            return "illegal"
        latest, state.latest = state.latest, None
        self._settled = 0
        try:
            return _HANDLERS[type(operation)](self, operation, latest)
        except Crashed as crash:
            state.judged["CRASH-1"] += 1
            state.report("CRASH-1", f"{operation.kind}: {crash}")
            return "crashed"
        except Refused as refusal:
            state.judged["CRASH-1"] += 1
            state.report("CRASH-1", f"{operation.kind}: refused with {refusal}, in a call that asks for no room")
            return "crashed"
        except TimedOut:
            state.judged["CRASH-2"] += 1
            state.report("CRASH-2", f"{operation.kind} did not return within the time limit of the trace")
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
        what = f"{verb}({name}, {counted(len(tokens), 'token')})"
        answer = probe.truth("can_admit", tokens, **salted) if "can_admit" in probe.offers else None
        predicts = "predict_admit" in probe.offers and not self._windowed  # a window gives blocks back within the call
        predicted = probe.number("predict_admit", tokens, **salted) if predicts else None
        available = calls.num_available(state)
        # a window may release within `admit` what was just written; in its split form every slot is seen
        split = not compute or self._in_halves or (self._windowed and self._splits)
        method = "allocate" if split else "admit"
        try:
            cached = probe.number(method, name, tokens, **salted)
        except Refused as refusal:
            self._refused(what, str(refusal), state.blocks_for(len(tokens)), answer)
            return "refused"
        if cached < 0 or (cached > len(tokens) and state.capabilities.recomputes_hits):
            raise AdapterError(
                f"{method}({name}) returned {cached} cached tokens of {len(tokens)}",
                "return how many leading tokens hit",
            )
        said, cached = cached, min(cached, len(tokens))
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
        self._perform_copies(seq, (), quiet=True)  # of part of a block that was hit: others hold it, or the cache
        if not self._look_at_sequences(seq):
            return "done"
        self._judge_new(seq, cached, before, said, compute=compute)
        if compute and split:
            self._publish(seq)
        calls.judge_answer(state, what, answer, copy_due=False)
        self._after(seq)
        calls.judge_prediction(state, what, predicted, available)
        return "done"

    def _judge_new(
        self, seq: LiveSequence, cached: int, before: Collection[int] | None, said: int, *, compute: bool
    ) -> None:
        state, size = self.state, self.state.block_size
        if state.capabilities.prefix_cache:
            access.judge_hits(state, seq, cached, said)
        declarations.note_hit(state, seq, cached)
        hits = blocks_of_slots(seq.slots[:cached], size)
        fresh = [block for block in seq.blocks if block not in hits]
        self._mark_hits(seq, cached, hits, before)
        access.judge_fresh(state, seq, fresh, cached)
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
        self._publish(seq)
        if seq.computed == len(seq.tokens):
            state.latest = seq.name
        self._after(seq)
        return "done"

    def _append(self, op: Append, latest: str | None) -> Outcome:
        state, probe, seq = self.state, self.probe, self.state.live[op.name]
        what = f"append({op.name}, {counted(len(op.tokens), 'token')} to {len(seq.tokens)})"
        count = len(op.tokens)
        tail_shared = self._tail_is_shared(seq)
        answer = probe.truth("can_append", op.name, count) if "can_append" in probe.offers else None
        predicts = "predict_append" in probe.offers and not self._windowed
        predicted = probe.number("predict_append", op.name, count) if predicts else None
        available = calls.num_available(state)
        shared = self._may_be_shared(seq)
        try:
            probe.call("extend" if self._in_halves else "append", op.name, op.tokens)
        except Refused as refusal:
            self._refused(what, str(refusal), self._append_need(seq, count), answer, copy_due=tail_shared)
            return "refused"
        first, before, old = len(seq.tokens), state.cached, seq.blocks
        self._settled = first  # the tokens of the newest append may be drafts that are rolled back
        seq.runs += state.runs.extend(seq.runs[-1], op.tokens)
        seq.tokens += op.tokens
        self._perform_copies(seq, shared)
        if not self._look_at_sequences(seq):
            return "done"
        fresh = [block for block in seq.blocks if block not in old]
        access.judge_fresh(state, seq, fresh)
        self._hand_out(seq, fresh, before)
        self._write(seq, first, len(seq.tokens), fresh)
        if self._in_halves:
            self._publish(seq)
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
            need = self._table_length(parent) if state.capabilities.copy_at_fork else 1
            if state.capabilities.look_ahead:  # the child may get its own room for tokens to come
                need = max(need, state.blocks_for(len(parent.tokens)))
            self._refused(f"fork({op.name})", str(refusal), need, None)
            return "refused"
        parent.family.add(op.child)
        if op.name in state.may_hold:
            state.may_hold[op.child] = state.may_hold[op.name]
        child = LiveSequence(
            op.child,
            parent.salt,
            list(parent.tokens),
            list(parent.runs),
            parent.computed,
            family=parent.family,
        )
        state.live[op.child] = child
        state.marks["a fork"] += 1
        before = state.cached
        shared = parent.blocks
        self._perform_copies(child, shared)
        if self._look_at_sequences(child):
            fresh = [block for block in child.blocks if block not in shared]
            declarations.check_copy_at_fork(state, parent, child)
            access.judge_fresh(state, child, fresh)
            self._hand_out(child, fresh, before)
            self._after(child)
        return "done"

    def _truncate(self, op: Truncate, latest: str | None) -> Outcome:
        state, seq = self.state, self.state.live[op.name]
        shared, old, before = self._may_be_shared(seq), seq.blocks, state.cached
        state.may_hold[op.name] = max(state.may_hold.get(op.name, 0), len(old))
        try:
            self.probe.call("truncate", op.name, op.length)
        except Refused as refusal:
            self._refused(f"truncate({op.name}, {op.length})", str(refusal), self._table_length(seq), None)
            return "refused"
        for slot, run in zip(seq.slots[op.length :], seq.runs[op.length :], strict=False):
            state.dropped[slot] = run
        del seq.tokens[op.length :], seq.runs[op.length :]
        seq.computed = min(seq.computed, op.length)
        state.marks["a truncation"] += 1
        self._perform_copies(seq, shared)
        if self._look_at_sequences(seq):
            fresh = [block for block in seq.blocks if block not in old]
            access.judge_fresh(state, seq, fresh)
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
            need = max(state.blocks_for(len(seq.tokens)), self._table_length(seq))  # a truncation may have kept blocks
            self._refused(f"swap_in({op.name})", str(refusal), need, None)
            return "refused"
        del state.swapped[op.name]
        seq.move("device")
        state.live[op.name] = seq
        self._perform_copies(seq, seq.blocks, quiet=True)
        if self._look_at_sequences(seq):
            found = (before or frozenset()) - self._copied[1]  # in the cache, and not what was copied over another's
            mine = [block for block in seq.blocks if state.holders.get(block) == 1 and block not in found]
            self._hand_out(seq, mine, before)
            access.judge_swapped_in(state, seq)
            self._after(seq)
        return "done"

    def _free(self, op: Free | Preempt, latest: str | None) -> Outcome:
        state = self.state
        preempt = isinstance(op, Preempt) and "preempt" in self.probe.offers
        self.probe.call("preempt" if preempt else "free", op.name)
        seq = state.live.pop(op.name, None) or state.swapped.pop(op.name)
        seq.family.discard(op.name)
        state.may_hold.pop(op.name, None)
        if isinstance(op, Preempt):
            state.parked[op.name] = Parked(tuple(seq.tokens), seq.salt)
        if seq.computed < len(seq.tokens):
            state.marks["freed before it was computed"] += 1
        if seq.location == "device":
            self._release(seq, "released by")
        self._perform_copies(seq, (), quiet=True)  # a compaction may follow a release
        self._look_at_sequences()
        self._after(None)
        return "done"

    def _free_again(self, op: FreeAgain, latest: str | None) -> Outcome:
        state = self.state
        before = (state.free, state.cached, state.refs)
        error = self.probe.attempt("free", op.name)
        how = "was accepted" if error is None else f"raised {type(error).__name__}"
        state.judged["REF-3"] += 1
        try:
            self._look_at_sequences()
            self._look_at_pool()
        except Crashed as crash:
            state.report("REF-3", f"free({op.name}) of a sequence that is not live {how}; after it {crash}")
            return "crashed"
        problem = calls.what_changed(state, before, self._changed)
        if problem:
            state.report(
                "REF-3",
                f"free({op.name}) of a sequence that is not live {how} and changed {problem}. "
                "If that is undefined by design, declare unknown_free=None",
            )
        self._after(None, pool_seen=True)
        declarations.note_unknown_free(state, refused=error is not None)
        return "done"

    def _lookup(self, op: Lookup, latest: str | None) -> Outcome:
        state = self.state
        salted = {"salt": op.salt} if state.capabilities.salts else {}
        cached = self.probe.number("lookup", op.tokens, **salted)
        if not 0 <= cached <= len(op.tokens):
            raise AdapterError(
                f"lookup returned {cached} of {counted(len(op.tokens), 'token')}", "return how many leading tokens hit"
            )
        state.latest = latest
        calls.judge_repeat(state, op.tokens, state.runs.extend(state.runs.root(op.salt), op.tokens), cached)
        self._look_at_sequences()
        self._after(None)
        return "done"

    def _drain(self, op: Drain, latest: str | None) -> Outcome:
        for name in [*self.state.live, *self.state.swapped]:
            self._free(Free(name), None)
        self.state.parked.clear()
        opening.judge_empty(self.state)
        self._fill()
        return "done"

    def _fill(self) -> None:
        """Allocate the whole pool once, with tokens that were never seen, and free it again."""
        state, caps = self.state, self.probe.capabilities
        room = len(state.usable) - caps.watermark_blocks
        most = len(state.usable) if caps.max_sequences is None else caps.max_sequences
        names: list[str] = []
        while room > 0 and len(names) < most and not self._windowed:
            length = room * state.block_size - caps.look_ahead
            length = min(length, caps.max_tokens or length)
            if length <= 0:
                break
            name, first = f"fill{len(names)}", _UNSEEN * (1 + len(names))
            outcome = self._new_sequence(
                name, tuple(range(first, first + length)), None, None, compute=True, verb="fill"
            )
            if outcome == "refused":
                state.report(
                    "ALLOC-5",
                    f"after everything was freed, {counted(length, 'token')} in "
                    f"{counted(state.blocks_for(length), 'block')} met with a "
                    f"refusal, although {room} of {counted(len(state.usable), 'block')} must be "
                    f"there{calls.undeclared_limits(state)}",
                )
                break
            names.append(name)
            room -= state.blocks_for(length)
        for name in names:
            if name in state.live:
                self._free(Free(name), None)


_UNSEEN = 10_000
"""First of the tokens that fill the pool at the end: no strategy draws them, and they fit an int32 and most vocabularies."""

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
