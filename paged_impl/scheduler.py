"""The scheduler: which requests compute which positions in the next step.

Continuous batching: every step takes rows of running requests first (one token to decode, or the next chunk of a prompt),
then admits requests in order of arrival. The oldest request goes first everywhere, and only younger ones are preempted for
it, so from every state some request gets on and none starves. A step is launched by `schedule` and ended by `finish`;
several may be between the two. The device runs them in the order in which they were scheduled.
"""

from array import array
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from paged_impl.block_manager import BlockManager, Copy
from paged_impl.errors import RequestRefused
from paged_impl.prefix_cache import Salt

Name = Hashable


class ScheduledRow(NamedTuple):
    """Positions `[start, stop)` of a request are computed now; with `samples`, a token is sampled after the last."""

    name: Name
    start: int
    stop: int
    samples: bool


@dataclass(frozen=True, eq=False)
class ScheduledStep:
    """One step: perform `copies` in order, then compute `rows`. No rows: nothing can run until a step is finished.

    `admitted` are the requests whose block table is new to a step, or in which a shared block was exchanged for a copy; the
    tables of all others have only grown.
    """

    rows: tuple[ScheduledRow, ...]
    copies: tuple[Copy, ...]
    admitted: tuple[Name, ...] = ()


@dataclass(slots=True, eq=False)
class Request:
    """A live request. `tokens` are its prompt and what was sampled; `num_scheduled` positions are computed or in flight."""

    name: Name
    arrival: int
    tokens: "array[int]"
    num_prompt: int
    max_new_tokens: int
    salt: Salt
    num_scheduled: int = 0
    num_in_flight: int = 0
    waits_for_sample: bool = False
    running: bool = False  # holds device blocks
    forked: bool = False  # its table was not in a step yet
    swapped: bool = False  # holds host blocks

    @property
    def num_sampled(self) -> int:
        return len(self.tokens) - self.num_prompt


@dataclass
class Limits:
    """What one step may hold: tokens computed, and rows."""

    max_tokens_per_step: int
    max_rows: int
    swap: bool = True  # preempt to host memory while that has room, by recompute otherwise

    def __post_init__(self) -> None:
        for name in ("max_tokens_per_step", "max_rows"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} is too small: give at least 1")


@dataclass
class _Draft:
    """A step while it is put together."""

    tokens_left: int
    rows_left: int
    rows: list[ScheduledRow] = field(default_factory=list)
    taken: set[Name] = field(default_factory=set)
    admitted: list[Name] = field(default_factory=list)
    preempted: bool = False

    @property
    def is_full(self) -> bool:
        return not self.tokens_left or not self.rows_left


class Scheduler:
    """Schedules requests over `manager`, which it alone uses."""

    def __init__(self, manager: BlockManager, limits: Limits) -> None:
        self.manager = manager
        self.limits = limits
        self._requests: dict[Name, Request] = {}
        self._running: list[Request] = []  # in order of arrival; they hold blocks
        self._waiting: list[Request] = []  # in order of arrival; they hold none (new, preempted, swapped out)
        self._in_flight: dict[
            int, tuple[ScheduledStep, list[Request]]
        ] = {}  # by id; the step is kept, so ids are unique
        self._num_arrived = 0
        self._blocked: tuple[Request, int] | None = None  # the head that found no room, and how many blocks were free

    # ---- requests

    def submit(self, name: Name, tokens: Sequence[int], max_new_tokens: int, salt: Salt = None) -> None:
        """A new request; it ends when `max_new_tokens` tokens were sampled for it.

        Raises `RequestRefused` for a request that can never fit, and for a name in use; `ValueError` for a request without
        a token to compute or to sample. A refused request changes nothing.
        """
        if name in self._requests:
            raise RequestRefused(f"a request called {name!r} is live: choose another name, or cancel that one")
        if not tokens or max_new_tokens < 1:
            raise ValueError(f"{len(tokens)} tokens and max_new_tokens={max_new_tokens}: give at least 1 of each")
        needed = -(-(len(tokens) + max_new_tokens - 1) // self.manager.block_size)  # the last token is never computed
        if needed > self.manager.num_blocks:
            raise RequestRefused(
                f"{len(tokens)} tokens and {max_new_tokens} new ones need {needed} blocks of {self.manager.block_size} at "
                f"the end, and the pool has {self.manager.num_blocks}: it can never be served; shorten it"
            )
        request = Request(name, self._num_arrived, array("q", tokens), len(tokens), max_new_tokens, salt)
        self._num_arrived += 1
        self._requests[name] = request
        self._waiting.append(request)

    def fork(self, parent: Name, child: Name, max_new_tokens: int) -> None:
        """A new request that goes on from all that `parent` has by now; it ends when `max_new_tokens` were sampled for it.

        It shares the blocks of a parent whose tokens are computed, and takes none; else it waits like one that is submitted.
        Raises `KeyError` for an unknown parent, `ValueError` while a step of it is in flight, and as `submit`; then nothing
        was changed.
        """
        origin = self._requests[parent]
        if origin.num_in_flight:
            raise ValueError(
                f"{origin.num_in_flight} steps of {parent!r} are in flight: finish them before it is forked"
            )
        self.submit(child, origin.tokens, max_new_tokens, origin.salt)
        request, manager = self._requests[child], self.manager
        if origin.running and manager.num_computed(parent) == manager.num_tokens(parent):
            manager.fork(parent, child)
            request.num_scheduled = manager.num_tokens(child)
            request.running = request.forked = True
            self._waiting.remove(request)
            self._running.append(request)

    def cancel(self, name: Name) -> None:
        """End a request wherever it is; what is in flight for it is computed and dropped. Raises `KeyError`."""
        self._end(self._requests[name])

    def live(self) -> list[Name]:
        """Names of the requests that have not ended, in order of arrival."""
        return list(self._requests)

    def is_live(self, name: Name) -> bool:
        """Whether a request of that name has not ended."""
        return name in self._requests

    def tokens(self, name: Name) -> "array[int]":
        """Prompt and sampled tokens of a live request. Not a copy: do not change it."""
        return self._requests[name].tokens

    def table(self, name: Name) -> tuple[int, ...]:
        """Block table of a live request; empty while it has no blocks."""
        request = self._requests[name]
        return self.manager.table(name) if request.running else ()

    # ---- steps

    def schedule(self) -> ScheduledStep:
        """Put together the next step and count it as launched. Without rows if nothing can run now."""
        draft = _Draft(self.limits.max_tokens_per_step, self.limits.max_rows)
        for request in list(self._running):
            if draft.is_full:
                break
            if request.running:  # else it was preempted for an older one
                self._continue(request, draft)
        while self._waiting and not draft.is_full and not draft.preempted:
            if not self._admit(self._waiting[0], draft):
                break
        step = ScheduledStep(tuple(draft.rows), tuple(self.manager.take_copies()), tuple(draft.admitted))
        if step.rows:
            self._in_flight[id(step)] = (step, [self._requests[row.name] for row in step.rows])
        return step

    def finish(self, step: ScheduledStep, tokens: Sequence[int]) -> list[tuple[Name, int]]:
        """A launched step has run. `tokens` are those sampled, one for each row with `samples`, in row order.

        Returns the requests that go on, each with the token that it got: not those that end with it, or were cancelled.
        Steps may be finished in any order. Raises `ValueError` for a step that is not in flight, or a wrong number of
        tokens; then nothing was changed.
        """
        if id(step) not in self._in_flight:
            raise ValueError("this step is not in flight: finish each scheduled step that has rows once")
        num_samples = sum(row.samples for row in step.rows)
        if len(tokens) != num_samples:
            raise ValueError(f"{len(tokens)} tokens for a step that samples {num_samples}")
        _, requests = self._in_flight.pop(id(step))
        sampled = iter(tokens)
        going_on = []
        for row, request in zip(step.rows, requests, strict=True):
            token = next(sampled) if row.samples else None
            if self._requests.get(row.name) is request:  # else it was cancelled meanwhile
                self._row_done(request, row, token)
                if token is not None and row.name in self._requests:
                    going_on.append((row.name, token))
        return going_on

    # ---- parts of a step

    def _continue(self, request: Request, draft: _Draft) -> None:
        """The next row of a running request, if it has one and room can be made for it."""
        if request.waits_for_sample:
            return
        num_new = min(len(request.tokens) - request.num_scheduled, draft.tokens_left)
        num_copies = self.manager.num_copies
        missing = request.tokens[self.manager.num_tokens(request.name) :]
        if missing:
            while not self.manager.can_append(request.name, len(missing)):
                if not self._make_room(request, draft):
                    return
            num_copies = self.manager.num_copies
            self.manager.append(request.name, missing)
        if request.forked or self.manager.num_copies > num_copies:
            draft.admitted.append(request.name)
            request.forked = False
        self._add_row(request, num_new, draft)

    def _make_room(self, request: Request, draft: _Draft) -> bool:
        """Preempt the youngest request that is younger, has nothing in flight and no row in this step."""
        for victim in reversed(self._running):
            if victim is request:
                return False
            if not victim.num_in_flight and victim.name not in draft.taken:
                self._preempt(victim)
                draft.preempted = True
                return True
        return False

    def _preempt(self, request: Request) -> None:
        manager, name = self.manager, request.name
        if self.limits.swap and request.num_scheduled and manager.num_free_host and manager.can_swap_out(name):
            manager.swap_out(name)
            request.swapped = True
        else:
            manager.free(name)
            request.num_scheduled = 0
        request.running = request.forked = False
        self._running.remove(request)
        self._waiting.append(request)
        self._waiting.sort(key=_arrival)

    def _admit(self, request: Request, draft: _Draft) -> bool:
        """Give blocks to the first that waits, and its first row. False where there is no room: nobody overtakes it."""
        manager, name = self.manager, request.name
        if self._is_blocked(request):
            return False
        self._blocked = (request, manager.num_free)
        spare = self._num_spare()
        if request.swapped:
            if manager.blocks_needed_swap_in(name) + spare > manager.num_free:
                return False
            manager.swap_in(name)
            request.swapped = False
        else:
            if manager.blocks_needed_allocate(request.tokens, request.salt) + spare > manager.num_free:
                return False
            request.num_scheduled = manager.allocate(name, request.tokens, request.salt)
        self._blocked = None
        draft.admitted.append(name)
        request.running = True
        self._waiting.remove(request)
        self._running.append(request)
        self._running.sort(key=_arrival)
        self._continue(request, draft)
        return True

    def _is_blocked(self, request: Request) -> bool:
        """Whether it found no room before, and nothing was freed since: its prefix need not be looked up again."""
        if not self._running or self._blocked is None:
            return False
        head, num_free = self._blocked
        return head is request and self.manager.num_free <= num_free

    def _num_spare(self) -> int:
        """Blocks that an admission leaves free: one for each running request, or the newcomer is preempted at once."""
        return len(self._running)

    def _add_row(self, request: Request, num_new: int, draft: _Draft) -> None:
        start = request.num_scheduled
        stop = request.num_scheduled = start + num_new
        request.waits_for_sample = stop == len(request.tokens)
        request.num_in_flight += 1
        draft.rows.append(ScheduledRow(request.name, start, stop, request.waits_for_sample))
        draft.taken.add(request.name)
        draft.tokens_left -= num_new
        draft.rows_left -= 1

    def _row_done(self, request: Request, row: ScheduledRow, token: int | None) -> None:
        request.num_in_flight -= 1
        self.manager.computed(request.name, row.stop)
        if token is None:
            return
        request.waits_for_sample = False
        request.tokens.append(token)
        if request.num_sampled == request.max_new_tokens:
            self._end(request)

    def _end(self, request: Request) -> None:
        del self._requests[request.name]
        if request.running:
            self._running.remove(request)
            self.manager.free(request.name)
            return
        self._waiting.remove(request)
        if request.swapped:
            self.manager.free(request.name)


def _arrival(request: Request) -> int:
    return request.arrival
