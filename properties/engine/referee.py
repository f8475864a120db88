"""The referee of engine targets: plays the model, and judges what comes of each operation. Nothing else decides.

Life of a step: ask the target to schedule, look at every request's slots, perform the copies, judge what new rows took
from the cache, judge and play the writes, judge the reads, judge the target's own metadata, sample. `finish` then tells
the target what was sampled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from properties.blocks import opening
from properties.blocks.operations import Operation
from properties.blocks.probe import Crashed, Refused
from properties.engine import progress, reads
from properties.engine.batch import judge_batch, mapped_slots
from properties.engine.bench import EngineBench
from properties.engine.legality import why_illegal
from properties.engine.operations import Cancel, DriveToIdle, Finish, ForkRequest, Launch, Resubmit, Submit
from properties.engine.protocol import Row, Step, StepBatch
from properties.engine.rows import usable_rows
from properties.engine.state import Flight, Request
from properties.protocol import Copy
from properties.timelimit import TimedOut

Outcome = Literal["done", "refused", "illegal", "crashed"]
Pair = tuple[Row, Request]

UNSEEN = 1 << 30
"""First of the tokens that fill the pool at the end; no generator draws them."""
_UNDECLARED = "If what it then does is undefined, leave duplicates out of the capabilities"
FILLER = "fill"
"""Name of the request that fills the pool."""


class EngineReferee(EngineBench):
    """One trace on one fresh engine. The parts of a step are in `EngineBench`."""

    def apply(self, operation: Operation) -> Outcome:
        """Apply and judge one operation. "illegal" means that it has no meaning here and was not applied."""
        state = self.state
        state.step += 1
        if why_illegal(state, operation) is not None:
            return "illegal"
        try:
            return _HANDLERS[type(operation)](self, operation)
        except Crashed as crash:
            state.judged["CRASH-1"] += 1
            state.report("CRASH-1", str(crash))
            return "crashed"
        except Refused as refusal:
            state.judged["CRASH-1"] += 1
            state.report("CRASH-1", f"the target refused with {refusal}, but only submit may refuse")
            return "crashed"
        except TimedOut:
            state.judged["CRASH-2"] += 1
            state.report("CRASH-2", f"{operation.kind} did not return within the time limit of the trace")
            return "crashed"

    # ---- requests come and go ----------------------------------------------------------------------------------------

    def _submit(self, op: Submit) -> Outcome:
        state = self.state
        salted = {"salt": op.salt} if state.capabilities.salts else {}
        fits = state.can_ever_fit(len(op.tokens), len(op.reply))
        try:
            self.probe.call("submit", op.name, op.tokens, len(op.reply), **salted)
        except Refused as refusal:
            self._refused(op, str(refusal), fits)
            return "refused"
        if not fits and not state.geometry.window:  # with a window it may need less than its length
            state.report("LIVE-1", progress.never_fits(state, op.name, len(op.tokens), len(op.reply)))
        self._add(op.name, op.tokens, len(op.reply), op.reply, op.salt)
        self._after()
        return "done"

    def _refused(self, op: Submit, refusal: str, fits: bool) -> None:
        state = self.state
        state.refuse(refusal)
        state.marks["a refusal"] += 1
        state.judged["LIVE-1"] += 1
        if fits:
            id = "ALLOC-5" if state.filling else "LIVE-1"
            state.report(id, progress.refused_in_vain(state, op.name, len(op.tokens), len(op.reply), refusal))
        self._after()

    def _add(
        self, name: str, tokens: Sequence[int], max_new_tokens: int, reply: Sequence[int], salt: str | None
    ) -> Request:
        state = self.state
        runs = state.runs.extend(state.runs.root(salt), tokens)
        request = Request(name, salt, list(tokens), runs, prompt=len(tokens), max_new_tokens=max_new_tokens)
        request.reply = list(reply)
        state.requests[name] = request
        state.ended.pop(name, None)
        state.since_progress = 0
        return request

    def _fork(self, op: ForkRequest) -> Outcome:
        self.probe.call("fork", op.name, op.child, len(op.reply))
        self.forked(op.name, op.child, len(op.reply), op.reply)
        self._after()
        return "done"

    def forked(self, parent: str, child: str, max_new_tokens: int, reply: Sequence[int]) -> None:
        """A request goes on as two."""
        origin = self.state.requests[parent]
        request = self._add(child, origin.tokens, max_new_tokens, reply, origin.salt)
        origin.family = request.family = origin.family or {parent}
        request.family.add(child)
        request.forked = True
        self.state.marks["a fork"] += 1

    def _resubmit(self, op: Resubmit) -> Outcome:
        state, request = self.state, self.state.requests[op.name]
        salted = {"salt": request.salt} if state.capabilities.salts else {}
        try:
            self.probe.call(
                "submit", op.name, tuple(request.tokens[: request.prompt]), request.max_new_tokens, **salted
            )
        except Refused as refusal:
            state.refuse(str(refusal))
            state.marks["a duplicate was refused"] += 1
            self._after()
            return "refused"
        state.report(
            "CRASH-1", f"submit({op.name}) was accepted although a request of that name is live. {_UNDECLARED}"
        )
        return "crashed"  # two requests of one name cannot be told apart any more

    def _cancel(self, op: Cancel) -> Outcome:
        state = self.state
        flying = any(op.name == name for flight in state.flights for name, _ in flight.sampled)
        self.probe.call("cancel", op.name)
        state.marks["a cancel in flight" if flying else "a cancel"] += 1
        self._end(op.name, "cancelled:")
        self._after()
        return "done"

    # ---- steps -------------------------------------------------------------------------------------------------------

    def _launch(self, op: Launch) -> Outcome:
        self._one_step(op.hold)
        return "done"

    def _one_step(self, hold: bool) -> Step:
        step = self.probe.step()
        self.state.launched.append((self.state.step, tuple(step.rows)))
        self.play(step, self.probe.batch(step))
        if len(self.state.flights) > 1:
            self.state.marks["several steps in flight"] += 1
        while self.state.flights and not hold:
            self._finish_at(0)
        return step

    def play(self, step: Step, batch: StepBatch | None) -> Flight | None:
        """Play the model for a launched step and judge it. None where it had no rows and nothing to finish."""
        state = self.state
        state.num_launched += 1
        self._copied = {(copy.src, copy.dst) for copy in step.copies if _is_within_the_pool(copy)}
        state.marks["a shared block was copied"] += len(self._copied)
        self._look()
        self._copied = set()
        self._perform(step.copies)
        rows = usable_rows(state, step.rows)
        pairs = [(row, request) for row in rows if self._has_slots(row, request := state.requests[row.name])]
        self._arrive(pairs)
        all_there = len(pairs) == len(step.rows)  # else the entries of the batch belong to rows that cannot be played
        self._play_writes(pairs, mapped_slots(state, pairs, batch if all_there else None))
        self._judge_reads(pairs)
        if batch is not None and all_there:
            judge_batch(state, pairs, batch)
        flight = Flight(state.num_launched, step, self._sample(step.rows))
        progress.judge_step(state, step)
        if step.rows:
            state.flights.append(flight)
        self._after(looked=True)
        return flight if step.rows else None

    def _arrive(self, pairs: Sequence[Pair]) -> None:
        """Rows that are the first on their blocks: which blocks were hit, which are fresh, and is the hit right?"""
        sharing = self.state.capabilities.same_step_sharing
        self._hand_out([(row, request) for row, request in pairs if request.arriving])
        for row, request in pairs:
            reads.judge_zero_tokens(self.state, request, row)
            if request.arriving and not sharing:
                self._judge_arrival(request, row)

    def _judge_arrival(self, request: Request, row: Row) -> None:
        if not request.forked:
            self._mark_arrival(request, row)
        reads.judge_arrival(self.state, request, row)
        request.arriving = request.forked = False
        request.computed = row.start

    def _play_writes(self, pairs: Sequence[Pair], slots: Sequence[Sequence[int]]) -> None:
        state, written = self.state, dict[int, str]()
        for (row, request), row_slots in zip(pairs, slots, strict=True):
            reads.judge_writes(state, request, row, row_slots, written)
            if -1 in row_slots:
                kept = [(p, slot) for p, slot in enumerate(row_slots, row.start) if slot >= 0]
                for position, slot in kept:
                    state.shadow.write(request.name, position, (slot,), (request.runs[position],), state.step)
            else:
                state.shadow.write(
                    request.name, row.start, row_slots, request.runs[row.start : row.start + len(row_slots)], state.step
                )

    def _judge_reads(self, pairs: Sequence[Pair]) -> None:
        state = self.state
        for row, request in pairs:
            if request.arriving:
                self._judge_arrival(request, row)
            if row.start < request.computed:
                state.marks["positions were computed again"] += 1
                request.verified = min(request.verified, row.start)
            reads.judge_reads(state, request, row)
            if request.prompt > row.stop > row.start:
                state.marks["a chunked prefill"] += 1
            request.computed = max(request.computed, row.stop)
        reads.judge_untouched(state, state.requests.values())

    def _sample(self, rows: Sequence[Row]) -> list[tuple[str, int]]:
        """The token of each row that samples, in row order; the requests grow by them at once."""
        sampled = []
        requests = self.state.requests
        for row in rows:
            if not row.samples:
                continue
            token = 0
            request = requests.get(row.name)
            if request is not None:
                reads.judge_sampling(self.state, request, row)
                token = self._grow(request)
            sampled.append((row.name, token))
        return sampled

    def _grow(self, request: Request) -> int:
        if request.sampled >= request.max_new_tokens:
            self.state.report("LIVE-1", progress.too_many(request))
            return 0
        token = request.reply[request.sampled] if request.sampled < len(request.reply) else 0
        request.sampled += 1
        request.tokens.append(token)
        request.runs += self.state.runs.extend(request.runs[-1], (token,))
        return token

    def _finish(self, op: Finish) -> Outcome:
        if op.index:
            self.state.marks["a step finished out of order"] += 1
        self._finish_at(op.index)
        return "done"

    def _finish_at(self, index: int) -> None:
        state = self.state
        flight = state.flights.pop(index)
        self.probe.call("finish", flight.step, [token for _, token in flight.sampled])
        self.tell(flight)

    def tell(self, flight: Flight) -> None:
        """The target knows now what a step sampled: requests that have all their tokens end."""
        state = self.state
        for name, _ in flight.sampled:
            request = state.requests.get(name)
            if request is None:
                continue
            request.told += 1
            state.since_progress = 0
            if request.told == request.max_new_tokens:
                self._end(name, "released by")
        self._after()

    # ---- the end -----------------------------------------------------------------------------------------------------

    def _drive_to_idle(self, op: DriveToIdle) -> Outcome:
        self._run_dry()
        if self.state.requests:
            return "done"  # stuck, which LIVE-1 has said
        opening.judge_empty(self.state)
        self._fill()
        return "done"

    def _run_dry(self) -> None:
        state = self.state
        while state.flights:
            self._finish_at(0)
        while state.requests and not progress.is_stuck(state):
            self._one_step(hold=False)

    def _fill(self) -> None:
        """One request takes the whole pool, with tokens that were never seen."""
        state, caps = self.state, self.state.capabilities
        room = state.room * state.block_size - caps.look_ahead
        limits = [room, (caps.max_tokens or room + 1) - 1]
        if not caps.chunked_prefill:
            limits.append(state.geometry.max_tokens_per_step)
        length = min(limits)
        if length <= 0 or (FILLER in state.requests):
            return
        state.filling = True
        state.judged["ALLOC-5"] += 1
        self._submit(Submit(FILLER, tuple(range(UNSEEN, UNSEEN + length)), (0,)))
        self._run_dry()
        state.filling = False


def _is_within_the_pool(copy: Copy) -> bool:
    return copy.unit == "block" and copy.src_space == copy.dst_space == "device"


_Handler = Callable[[EngineReferee, Any], Outcome]
_HANDLERS: dict[type[Operation], _Handler] = {
    Submit: EngineReferee._submit,
    Resubmit: EngineReferee._resubmit,
    ForkRequest: EngineReferee._fork,
    Launch: EngineReferee._launch,
    Finish: EngineReferee._finish,
    Cancel: EngineReferee._cancel,
    DriveToIdle: EngineReferee._drive_to_idle,
}
