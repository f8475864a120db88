"""Short traces at random, for when no smaller version of a trace fails any more.

The same fault often has a shorter trace of quite another make, which no step-by-step shortening reaches. In the small
geometry that the minimiser has come to, a thousand short traces of the same kinds of operation meet it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from random import Random

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

NUM_GUESSES = 800
LONGEST = 8
"""Longer traces are not guessed at: too few of their kind would be met."""


def guesses(geometry: Geometry, operations: Sequence[Operation]) -> Iterator[tuple[Operation, ...]]:
    """Traces with fewer operations, of the kinds that are in the trace, mostly legal. The same ones every time."""
    if not 2 < len(operations) <= LONGEST:
        return
    kinds = {type(op) for op in operations} & {Admit, Allocate, Drain, Lookup, *_MAKERS}
    random = Random(len(operations))
    most = max((len(op.tokens) for op in operations if isinstance(op, Admit | Allocate)), default=1)
    for number in range(NUM_GUESSES):
        length = len(operations) - 1 - number % min(3, len(operations) - 2)
        yield tuple(_Guess(random, kinds | {Admit, Free, Append}, most + geometry.block_size).operations(length))


class _Guess:
    """One trace in the making. `live` maps each sequence to its length."""

    def __init__(self, random: Random, kinds: set[type[Operation]], most_tokens: int) -> None:
        self.random = random
        self.kinds = sorted(kinds, key=lambda kind: kind.__name__)
        self.most_tokens = most_tokens
        self.live: dict[str, int] = {}
        self.ended: list[str] = []
        self.away: list[str] = []

    def operations(self, length: int) -> Iterator[Operation]:
        for _ in range(length):
            yield self._next()

    def _next(self) -> Operation:
        kind = self.random.choice(self.kinds)
        if kind in (Admit, Allocate, Lookup, Drain) or not self.live:
            return self._without_a_sequence(kind)
        name = self.random.choice(list(self.live))
        return _MAKERS[kind](self, name)

    def _without_a_sequence(self, kind: type[Operation]) -> Operation:
        if kind is Drain:
            return Drain()
        if kind is Lookup:
            return Lookup(self._tokens(self.most_tokens))
        if kind is Resume and self.away:
            return Resume(self.away.pop())
        if kind is SwapIn and self.away:
            return SwapIn(self.away.pop())
        if kind is FreeAgain and self.ended:
            return FreeAgain(self.random.choice(self.ended))
        tokens = self._tokens(self.most_tokens)
        name = self._new_name(len(tokens))
        return Allocate(name, tokens) if kind is Allocate else Admit(name, tokens)

    def _new_name(self, length: int) -> str:
        name = chr(65 + len(self.live) + len(self.ended))
        self.live[name] = length
        return name

    def _tokens(self, most: int) -> tuple[int, ...]:
        return tuple(self.random.randrange(2) for _ in range(self.random.randint(1, most)))

    def _end(self, name: str, *, away: bool = False) -> str:
        del self.live[name]
        self.ended.append(name)
        if away:
            self.away.append(name)
        return name

    def _append(self, name: str) -> Operation:
        tokens = self._tokens(2)
        self.live[name] += len(tokens)
        return Append(name, tokens)


_MAKERS: dict[type[Operation], Callable[[_Guess, str], Operation]] = {
    Append: _Guess._append,
    Computed: lambda guess, name: Computed(name, guess.live[name]),
    Fork: lambda guess, name: Fork(name, guess._new_name(guess.live[name])),
    Free: lambda guess, name: Free(guess._end(name)),
    FreeAgain: lambda guess, name: FreeAgain(guess.random.choice(guess.ended or [name])),
    Preempt: lambda guess, name: Preempt(guess._end(name, away=True)),
    Resume: lambda guess, name: Resume(guess.away.pop() if guess.away else name),
    SwapIn: lambda guess, name: SwapIn(guess.away.pop() if guess.away else name),
    SwapOut: lambda guess, name: SwapOut(guess._end(name, away=True)),
    Truncate: lambda guess, name: Truncate(name, guess.random.randint(1, max(1, guess.live[name] - 1))),
}
