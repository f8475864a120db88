"""The bench of the engine referee: the parts that every operation is made of. Which comes when is in `referee.py`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paged_ref.ownership import blocks_of_slots
from properties.blame import shown
from properties.blocks import opening, pool
from properties.blocks.probe import Crashed, Refused
from properties.contract import AdapterError
from properties.engine import progress, reads
from properties.engine.operations import EngineGeometry
from properties.engine.probe import EngineProbe
from properties.engine.protocol import Row
from properties.engine.state import EngineState, Request
from properties.protocol import Copy
from properties.wording import counted

MOST_EVENTS = 64
"""Events of a block that are kept; the explanation shows the last 8."""


MOST_ENDED = 100_000
"""Names of ended requests that are remembered; in a long history the oldest are forgotten."""


class EngineBench:
    """A fresh engine and the model beside it.

    Raises `AdapterError` where the adapter breaks its protocol. `state.breaches` grows as clauses break.
    """

    def __init__(self, target: Any, geometry: EngineGeometry) -> None:
        self.probe = EngineProbe(target)
        self.target = target
        self.state = EngineState(geometry, self.probe.capabilities, self.probe.offers)
        try:
            self.probe.call("open", geometry)
        except (Refused, Crashed) as error:
            raise AdapterError(
                f"open({geometry}) failed: {error}", "declare in capabilities what sizes and limits it accepts"
            ) from None
        self._told: dict[str, tuple[Sequence[int], Sequence[int]]] = {}
        """What each request's slots and its table were said to be, at the last look."""
        self._copied: set[tuple[int, int]] = set()
        """Blocks that the step at hand copies inside the pool: from, to."""
        try:
            self._look_at_pool()
            opening.judge_fresh_system(self.state, type(self.probe.target))
            live = self.probe.live()
        except (Refused, Crashed) as failure:
            raise AdapterError(
                f"right after open({geometry}): {failure}", "every question must have an answer"
            ) from None
        if live:
            raise AdapterError(
                f"right after open() live() names {shown(live)}", f"{opening.RESET}. {opening.NOT_THE_ADAPTER}"
            )

    def close(self) -> None:
        """Give the target the chance to release what `open` took."""
        if "close" not in self.probe.offers:
            return
        try:
            self.probe.call("close")
        except (Refused, Crashed) as failure:
            raise AdapterError(f"close() failed: {failure}", "close() must not fail") from None

    # ---- looking -----------------------------------------------------------------------------------------------------

    def _after(self, *, looked: bool = False) -> None:
        """Look at the target after an operation, and judge what must hold at any time."""
        state = self.state
        if not looked:
            self._look()
        self._judge_tables()
        self._look_at_pool()
        progress.judge_pace(state)

    def _look(self) -> None:
        """Ask who is live, and for the slots of each request; what they have lost and gained follows."""
        probe = self.probe
        named = set(probe.live())
        for name in progress.judge_live(self.state, named):
            self._end(name, "lost with")
        moved = []
        for request in self.state.requests.values():
            if request.name not in named:
                continue  # its last token is in flight, and the target has let go of it
            slots = self._slots(request)
            if slots is not request.slots:
                old = request.blocks
                self._moved(request, slots)
                moved.append((request, old))
        for request, old in moved:  # when every loss is known: a block may have gone from one to another
            if not request.arriving:
                self._take(request, [block for block in request.blocks if block not in old])

    def _slots(self, request: Request) -> Sequence[int]:
        """The slots of a request, those of its whole table where it tells fewer; the same object where nothing changed."""
        known = request.slots
        if "table" not in self.probe.offers:
            return self.probe.slots(request.name, known)
        told, _ = self._told.get(request.name, ((), ()))
        now, table = self.probe.slots(request.name, told), self.probe.ids("table", request.name)
        self._told[request.name] = now, table
        whole = pool.with_table(now, table, self.state.block_size, least=1)
        return known if known == whole else whole

    def _moved(self, request: Request, slots: Sequence[int]) -> None:
        """The slots of a request have changed: grown, dropped (preempted, swapped out), or exchanged."""
        state = self.state
        if not self._are_slots(request, slots):
            slots = ()
        gone = bool(request.computed) and self._has_lost(request, slots)
        if gone:
            request.away, request.left_at = "preempted", self.state.num_launched
            request.computed = request.verified = 0
        if gone or not slots:
            request.arriving, request.new_blocks = True, ()
        old, request.slots = request.blocks, slots
        request.blocks = blocks_of_slots(slots, state.block_size)
        self._count(old, request, everything=gone)

    def _has_lost(self, request: Request, slots: Sequence[int]) -> bool:
        """Whether what a request had computed is elsewhere now. Blocks that a window released are no loss."""
        before, now = request.slots[: request.computed], slots[: request.computed]
        if tuple(before) == tuple(now):
            return False
        if len(now) < len(before):
            return True
        if self._copied:
            before = self._after_copies(request, before, now)
            if tuple(before) == tuple(now):
                return False
        if not self.state.geometry.window:
            return True
        released = [slot for slot, new in zip(before, now, strict=True) if new != slot and new == -1]
        if released:
            self.state.marks["a window released a block"] += 1
        return any(new not in (slot, -1) for slot, new in zip(before, now, strict=True))

    def _after_copies(self, request: Request, before: Sequence[int], now: Sequence[int]) -> list[int]:
        """Where what was computed is, by the copies of the step and the new table. What was copied is to be looked at again."""
        size, moved = self.state.block_size, list(before)
        for position, (slot, new) in enumerate(zip(before, now, strict=True)):
            if slot == new or slot < 0 or slot % size != new % size:
                continue
            if (slot // size, new // size) in self._copied:
                moved[position] = new
                request.verified = min(request.verified, position)
        return moved

    def _count(self, old: Sequence[int], request: Request, *, everything: bool) -> None:
        """Holders and histories follow a change of blocks."""
        held = self.state.holders
        left, new = set(old) - set(request.blocks), set(request.blocks) - set(old)
        for block in left:
            held[block] -= 1
            if not held[block]:
                del held[block]
                self._note(block, f"released by {request.name}")
        for block in new:
            held[block] = held.get(block, 0) + 1
        if everything:
            request.new_blocks = request.blocks
        elif request.arriving:
            pending = new.union(request.new_blocks)
            request.new_blocks = tuple(block for block in request.blocks if block in pending)

    def _take(self, request: Request, fresh: Sequence[int]) -> None:
        """Blocks that a request got to write into."""
        state = self.state
        reads.judge_fresh(state, request, fresh)
        for block in fresh:
            if state.handed[block]:
                state.marks["a freed block was reused"] += 1
            state.handed[block] = state.step
            state.from_host.pop(block, None)
            state.taker[block] = request.name
            self._note(block, f"handed to {request.name}")

    def _hand_out(self, arrivals: Sequence[tuple[Row, Request]]) -> None:
        """The first row on its blocks tells which of them are hits: those that `[0, start)` reaches into."""
        for row, request in arrivals:
            hits = set(blocks_of_slots(request.slots[: row.start], self.state.block_size))
            if self.state.capabilities.recomputes_hits:
                hits |= self._computed_again(request, row.start)
            if any(self.state.from_host.get(block, -1) >= request.left_at for block in hits) and request.away:
                request.away = "swapped"
            self._take(request, [block for block in request.new_blocks if block not in hits])
            verb = "filled for" if request.away == "swapped" else "hit by"
            for block in request.new_blocks:
                if block in hits:
                    self._note(block, f"{verb} {request.name}")
        for _, request in arrivals:
            request.new_blocks = ()

    def _computed_again(self, request: Request, start: int) -> set[int]:
        """Blocks behind `start` that somebody else holds for the very same tokens: they were hit all the same."""
        places: dict[int, list[int]] = {}
        for position in range(start, min(len(request.slots), len(request.runs))):
            places.setdefault(request.slots[position] // self.state.block_size, []).append(position)
        others = [other for other in self.state.requests.values() if other is not request]
        return {
            block
            for block, positions in places.items()
            if self.state.holders.get(block, 0) > 1
            and any(
                all(reads.has_run_there(other, p, request.slots[p], request.runs[p]) for p in positions)
                for other in others
            )
        }

    def _mark_arrival(self, request: Request, row: Row) -> None:
        marks = self.state.marks
        if request.away == "swapped":
            marks["a request came back from host memory"] += 1
        elif row.start:
            marks["a prefix hit"] += 1

    def _note(self, block: int, sentence: str) -> None:
        events = self.state.shadow.events[block]
        events.append((self.state.step, sentence))
        if len(events) > MOST_EVENTS:
            del events[: MOST_EVENTS // 2]

    def _are_slots(self, request: Request, slots: Sequence[int]) -> bool:
        """In the pool and distinct? False where they cannot be used any further."""
        state = self.state
        state.judged["ALLOC-2"] += 1
        most = state.shadow.num_slots
        if slots and not -1 <= min(slots) <= max(slots) < most:
            position = next(p for p, slot in enumerate(slots) if not -1 <= slot < most)
            state.report(
                "ALLOC-1",
                f"request {request.name}, position {position} has slot {slots[position]}, outside the pool of "
                f"{counted(state.geometry.num_blocks, 'block')} of {state.block_size} (slots 0 to {most - 1})",
            )
            return False
        held = [slot for slot in slots if slot >= 0] if state.geometry.window else slots
        request.twice = len(set(held)) != len(held)
        if request.twice:
            self._report_twice(request, slots)
        return True

    def _report_twice(self, request: Request, slots: Sequence[int]) -> None:
        first: dict[int, int] = {}
        for position, slot in enumerate(slots):
            if slot >= 0 and slot in first:
                block = slot // self.state.block_size
                self.state.report(
                    "ALLOC-2",
                    f"request {request.name} has slot {slot} (block {block}) twice, for positions {first[slot]} and "
                    f"{position}. History of {self.state.shadow.history(block)}",
                )
                return
            first[slot] = position

    def _has_slots(self, row: Row, request: Request) -> bool:
        """Does a request have a place for every position that a row computes and reads?"""
        state = self.state
        slots = request.slots
        if state.geometry.window:
            state.judged["WINDOW-1"] += 1
        if len(slots) >= row.stop and -1 not in slots[: row.stop]:
            return True
        held = slots[: row.stop]
        missing = next((p for p, slot in enumerate(held) if slot < 0 and state.is_read(p, row.start)), len(held))
        if missing == row.stop:
            return True
        if state.geometry.window and missing < min(row.start, len(slots)):
            state.report("WINDOW-1", _released_early(state, row, missing))
            return len(slots) >= row.stop and -1 not in slots[row.start : row.stop]
        state.report(
            "ALLOC-2",
            f"the step computes positions {row.start} to {row.stop - 1} of request {request.name}, but position {missing} "
            f"has no slot: it holds {counted(len(request.blocks), 'block')} of {state.block_size}{self._advice(request)}",
        )
        return False

    def _advice(self, request: Request) -> str:
        advice = pool.look_like_blocks(request.slots, len(request.tokens), self.state)
        return f". {advice}; {pool.AS_SLOTS}" if advice else ""

    # ---- copies ------------------------------------------------------------------------------------------------------

    def _perform(self, copies: Sequence[Copy]) -> None:
        """Do to the shadow what the step asks to be copied, in its order."""
        state, size = self.state, self.state.block_size
        for copy in copies:
            source = state.shadow if copy.src_space == "device" else state.host
            dest = state.shadow if copy.dst_space == "device" else state.host
            width = size if copy.unit == "block" else 1
            if not (0 <= copy.src * width < source.num_slots and 0 <= copy.dst * width < dest.num_slots):
                state.report("ALLOC-1", f"{copy} reaches outside the pool")
                continue
            for offset in range(width):
                dest.copy_slot(source, copy.src * width + offset, copy.dst * width + offset, state.step)
            self._mark_copy(copy, copy.dst * width // size)

    def _mark_copy(self, copy: Copy, block: int) -> None:
        state = self.state
        if copy.dst_space == "device":
            self._note(block, f"filled by a copy of {copy.src_space} {copy.unit} {copy.src}")
            if copy.src_space == "host":
                state.from_host[block] = state.num_launched
            reads.judge_copied(state, block)
        elif copy.src_space == "device":
            state.marks["a swap to host memory"] += 1

    # ---- the pool ----------------------------------------------------------------------------------------------------

    def _judge_tables(self) -> None:
        if "table" not in self.probe.offers:
            return
        for request in self.state.requests.values():
            if request.slots:
                pool.judge_table(self.state, request, self._told[request.name][1])

    def _look_at_pool(self) -> None:
        state, probe, offers = self.state, self.probe, self.probe.offers
        if any(row.name not in state.requests for flight in state.flights for row in flight.step.rows):
            return  # a request was cancelled in flight: its blocks may stay taken until that step is finished
        if "cached_blocks" in offers:
            state.cached = frozenset(probe.ids("cached_blocks"))
        if "ref_count" in offers:
            state.refs = probe.ref_counts(state.geometry.num_blocks, state.usable)
            pool.judge_refs(state, state.refs)
        if "free_blocks" in offers:
            state.free = probe.ids("free_blocks")
            pool.judge_free(state, state.free)

    def _end(self, name: str, how: str) -> None:
        """A request has ended: its blocks are nobody's any more."""
        state = self.state
        request = state.requests.pop(name)
        for block in request.blocks:
            state.holders[block] -= 1
            if not state.holders[block]:
                del state.holders[block]
                self._note(block, f"{how} {name}")
        self._told.pop(name, None)
        state.ended[name] = state.step
        if len(state.ended) > MOST_ENDED:
            del state.ended[next(iter(state.ended))]
        state.since_progress = 0


def _released_early(state: EngineState, row: Row, position: int) -> str:
    if position < state.geometry.num_sinks:
        why = f"it is one of {state.geometry.num_sinks} sinks, which every row reads"
    else:
        first = state.first_read(row.start)
        why = f"with a window of {state.geometry.window} the query at {row.start} reads from position {first} on"
    return (
        f"request {row.name}, position {position} has no slot any more when the row [{row.start}, {row.stop}) is computed, "
        f"but {why}"
    )
