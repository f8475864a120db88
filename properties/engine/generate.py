"""What to try next on an engine: one generator behind the Hypothesis machine and the fuzzer.

Habits that find real bugs: tiny pools, so that requests are preempted; budgets that cut prompts into chunks; prompts made
from earlier prompts and their replies, so that hits end inside a reply; equal prompts side by side, in one step; steps held
in flight while others are launched, finished and cancelled; requests that fill the pool to its last slot, or can never fit.
"""

from __future__ import annotations

from collections.abc import Callable

from properties.blocks.generate import SALTS
from properties.blocks.operations import Operation
from properties.engine.legality import offered_operations, why_illegal
from properties.engine.operations import Cancel, EngineGeometry, Finish, ForkRequest, Launch, Resubmit, Submit
from properties.engine.protocol import EngineCapabilities
from properties.engine.state import EngineState

Below = Callable[[int], int]

WEIGHTS: dict[type[Operation], int] = {Submit: 5, Launch: 9, Finish: 4, Cancel: 1, Resubmit: 1, ForkRequest: 2}
MOST_REMEMBERED = 12


def choose_geometry(below: Below, capabilities: EngineCapabilities, offers: frozenset[str]) -> EngineGeometry:
    """A geometry that the target accepts: small ones most of the time."""
    sizes = sorted(capabilities.block_sizes)
    small = [size for size in sizes if size <= 5] or sizes[:1]
    size = sizes[below(len(sizes))] if below(12) == 11 else small[below(len(small))]
    least, most = capabilities.num_blocks
    num_blocks = max(least, min(most, len(capabilities.reserved_blocks) + 3 + below(6)))
    fewest, rows = capabilities.max_batch_rows
    max_rows = max(fewest, min(rows, 1 + below(4)))
    whole_prompts = num_blocks * size + below(2 * size)
    budget = max_rows + below(2 * size + 3) if capabilities.chunked_prefill else whole_prompts
    num_host_blocks = below(num_blocks + 1) if capabilities.swaps else 0
    hash_bits = 1 + below(3) if capabilities.weak_hash and below(6) == 5 else None
    max_in_flight = 1 + below(capabilities.max_in_flight)
    window = 1 + below(3 * size) if capabilities.window and below(5) == 4 else None
    return EngineGeometry(
        block_size=size,
        num_blocks=num_blocks,
        num_host_blocks=num_host_blocks,
        hash_bits=hash_bits,
        window=window,
        num_sinks=below(size + 2) if window else 0,
        max_tokens_per_step=budget,
        max_rows=max_rows,
        max_in_flight=max_in_flight,
    )


class EngineOperationMaker:
    """Makes operations of each kind for the state at hand; None where the state has no room for that kind."""

    def __init__(
        self, below: Below, geometry: EngineGeometry, capabilities: EngineCapabilities, offers: frozenset[str]
    ) -> None:
        self.below = below
        self.geometry = geometry
        self.capabilities = capabilities
        self.alphabet = 2 + below(2)
        self.past: list[tuple[int, ...]] = []
        self.most_live = 2 + below(4)
        self._names = 0
        kinds = offered_operations(capabilities, offers)
        self.kinds = [kind for kind in WEIGHTS if kind in kinds]
        self.wheel = [kind for kind in self.kinds for _ in range(WEIGHTS[kind])]

    def swarm(self) -> None:
        """Leave out some kinds and favour others for this trace: rare combinations become common ones."""
        wheel: list[type[Operation]] = []
        for kind in self.kinds:
            share = WEIGHTS[kind] * (1, 1, 2, 4, 0)[self.below(5)]
            wheel += [kind] * (max(share, 2) if kind in (Submit, Launch, Finish) else share)
        self.wheel = wheel

    def next(self, state: EngineState) -> Operation:
        """Any operation that has a meaning now."""
        for _ in range(6):
            operation = self.make(self.wheel[self.below(len(self.wheel))], state)
            if operation is not None:
                return operation
        if state.flights:
            return Finish()
        return Launch() if state.requests else (self.make(Submit, state) or self._plain())

    def make(self, kind: type[Operation], state: EngineState) -> Operation | None:
        """An operation of that kind, or None where the state has no room for it."""
        operation = _MAKERS[kind](self, state)
        return operation if operation is not None and why_illegal(state, operation) is None else None

    # ---- one kind each ---------------------------------------------------------------------------------------------

    def submit(self, state: EngineState) -> Operation | None:
        if len(state.requests) >= self.most_live:
            return None
        oversized = self.capabilities.oversized and self.below(12) == 11
        prompt = self._prompt(oversized=bool(oversized))
        reply = self._tokens(1 + self.below(2 * self.geometry.block_size + 2))
        if not oversized:
            prompt, reply = self._fitted(state, prompt, reply)
        if len(self.past) >= MOST_REMEMBERED:
            del self.past[0]
        self.past.append(prompt + reply if self.below(3) == 2 else prompt)
        salt = SALTS[self.below(3)] if self.capabilities.salts and self.below(4) == 3 else None
        self._names += 1
        return Submit(_name(self._names - 1), prompt, reply, salt)

    def launch(self, state: EngineState) -> Operation | None:
        return Launch(hold=self.below(3) == 2)

    def finish(self, state: EngineState) -> Operation | None:
        most = len(state.flights)
        if not most:
            return None
        return Finish(self.below(most) if self.capabilities.any_finish_order else 0)

    def cancel(self, state: EngineState) -> Operation | None:
        names = list(state.requests)
        return Cancel(names[self.below(len(names))]) if names else None

    def resubmit(self, state: EngineState) -> Operation | None:
        names = list(state.requests)
        return Resubmit(names[self.below(len(names))]) if names else None

    def fork(self, state: EngineState) -> Operation | None:
        names = [name for name, request in state.requests.items() if request.computed] or list(state.requests)
        if not names or len(state.requests) > self.most_live + 1:
            return None
        self._names += 1
        reply = self._tokens(1 + self.below(self.geometry.block_size + 2))
        return ForkRequest(names[self.below(len(names))], _name(self._names - 1), reply)

    # ---- parts -----------------------------------------------------------------------------------------------------

    def _plain(self) -> Operation:
        self._names += 1
        return Submit(_name(self._names - 1), (0,), (0,))

    def _fitted(
        self, state: EngineState, prompt: tuple[int, ...], reply: tuple[int, ...]
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Cut a request down to what can be served: the prompt first, to a half at most, then the reply."""
        limit = state.room * self.geometry.block_size - self.capabilities.look_ahead + 1
        if self.capabilities.max_tokens is not None:
            limit = min(limit, self.capabilities.max_tokens)
        if not self.capabilities.chunked_prefill:
            limit = min(limit, self.geometry.max_tokens_per_step + 1)
        reply = reply[: max(1, limit // 2)]
        return prompt[: max(1, limit - len(reply))], reply

    def _tokens(self, count: int) -> tuple[int, ...]:
        below, alphabet = self.below, self.alphabet
        if count > 8:  # a short pattern repeated: blocks repeat, and few draws are needed
            pattern = [below(alphabet) for _ in range(5)]
            return tuple((pattern * (count // 5 + 1))[:count])
        return tuple([below(alphabet) for _ in range(count)])

    def _length(self, *, oversized: bool) -> int:
        size, pool = self.geometry.block_size, self.geometry.num_blocks
        if oversized:
            return pool * size + 1 + self.below(size + 1)
        return max(1, (1 + self.below(min(pool, 3))) * size - 1 + self.below(3))

    def _prompt(self, *, oversized: bool) -> tuple[int, ...]:
        past, below = self.past, self.below
        how = below(6) if past and not oversized else 0
        if how == 0:
            return self._tokens(self._length(oversized=oversized))
        tokens = past[below(len(past))]
        if how == 1:
            return tokens
        if how == 2:
            return tokens + self._tokens(1 + below(self.geometry.block_size + 1))
        cut = below(len(tokens))
        if how == 3:
            return tokens[: cut + 1]
        if how == 4:
            return (*tokens[:cut], below(self.alphabet), *tokens[cut + 1 :])
        start = cut // self.geometry.block_size * self.geometry.block_size
        return tokens[start:] + self._tokens(below(3))  # the end of a prompt, without its prefix


def _name(number: int) -> str:
    """A, B, ... Z, A1, B1, ..."""
    return chr(65 + number % 26) + (str(number // 26) if number >= 26 else "")


_MAKERS: dict[type[Operation], Callable[[EngineOperationMaker, EngineState], Operation | None]] = {
    Submit: EngineOperationMaker.submit,
    Launch: EngineOperationMaker.launch,
    Finish: EngineOperationMaker.finish,
    Cancel: EngineOperationMaker.cancel,
    Resubmit: EngineOperationMaker.resubmit,
    ForkRequest: EngineOperationMaker.fork,
}
