"""What to try next: one generator behind the Hypothesis machine (its draws) and the fuzzer (a seeded random source).

Habits that find real bugs: tiny pools and blocks, an alphabet of two or three tokens, prompts made from earlier prompts
(same, extended, cut, changed in the middle, or only their end), lengths around multiples of the block size, calls that
must fail, forks whose sides diverge, weak hashes, cancelled allocations, names that come back.
"""

from __future__ import annotations

from collections.abc import Callable

from properties.blocks.legality import offered_operations, why_illegal
from properties.blocks.operations import (
    Admit,
    Allocate,
    Append,
    Computed,
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
from properties.blocks.reach import FEW_BLOCKS
from properties.blocks.state import State
from properties.protocol import Capabilities

Below = Callable[[int], int]
"""`below(n)` draws a whole number from 0 to n - 1; 0 is the simplest choice."""

WEIGHTS: dict[type[Operation], int] = {
    Admit: 6,
    Append: 6,
    Free: 4,
    Fork: 3,
    Truncate: 2,
    Preempt: 1,
    Resume: 2,
    SwapOut: 1,
    SwapIn: 2,
    Lookup: 1,
    Allocate: 2,
    Computed: 4,
    FreeAgain: 1,
}
SALTS = (None, "a", "b")
MOST_REMEMBERED = 12
"""Earlier prompts that new ones are made from; more would only make repeats rarer."""


def choose_geometry(below: Below, capabilities: Capabilities, offers: frozenset[str]) -> Geometry:
    """A geometry that the target accepts: small ones most of the time."""
    sizes = sorted(capabilities.block_sizes)
    small = [size for size in sizes if size <= 5] or sizes[:1]
    size = sizes[below(len(sizes))] if below(12) == 11 else small[below(len(small))]
    least, most = capabilities.num_blocks
    unusable = len(capabilities.reserved_blocks) + capabilities.watermark_blocks
    num_blocks = max(least, min(most, unusable + FEW_BLOCKS + below(6)))
    weak = capabilities.weak_hash and below(6) == 5
    window = 1 + below(3 * size) if capabilities.window and below(6) == 5 else None
    swaps = {"swap_out", "swap_in", "copies"} <= offers
    return Geometry(
        block_size=size,
        num_blocks=num_blocks,
        num_host_blocks=below(num_blocks + 1) if swaps else 0,
        hash_bits=1 + below(3) if weak else None,
        window=window,
        num_sinks=below(size + 2) if window else 0,
    )


def accepts(capabilities: Capabilities, geometry: Geometry) -> bool:
    """Whether a target takes a geometry that was not drawn for it (from another target, or from the minimiser)."""
    least, most = capabilities.num_blocks
    return (
        geometry.block_size in capabilities.block_sizes
        and least <= geometry.num_blocks <= most
        and geometry.num_blocks > len(capabilities.reserved_blocks)
        and (geometry.hash_bits is None or capabilities.weak_hash)
        and (geometry.window is None or capabilities.window)
    )


class OperationMaker:
    """Makes operations of each kind for the state at hand; returns None where the state has no room for that kind.

    `wheel` holds the kinds that this target understands, each as often as its weight.
    """

    def __init__(self, below: Below, geometry: Geometry, capabilities: Capabilities, offers: frozenset[str]) -> None:
        self.below = below
        self.geometry = geometry
        self.capabilities = capabilities
        self.alphabet = 2 + below(2)
        self.past: list[tuple[int, ...]] = []
        self._names = 0
        self.kinds = sorted(
            offered_operations(offers, capabilities.unknown_free) & set(WEIGHTS), key=list(WEIGHTS).index
        )
        self.wheel = [kind for kind in self.kinds for _ in range(WEIGHTS[kind])]

    def swarm(self) -> None:
        """Leave out some kinds and favour others for this trace: rare combinations become common ones."""
        below = self.below
        wheel: list[type[Operation]] = []
        for kind in self.kinds:
            share = WEIGHTS[kind] * (1, 1, 2, 4, 0)[below(5)]
            wheel += [kind] * (max(share, 1) if kind in (Admit, Free) else share)
        self.wheel = wheel

    def next(self, state: State) -> Operation:
        """Any operation that has a meaning now."""
        wheel, below = self.wheel, self.below
        for _ in range(6):
            kind = wheel[below(len(wheel))]
            operation = _MAKERS[kind](self, state)
            if operation is not None:
                return operation
        return self.free(state) or self.admit(state) or Free(next(iter(state.swapped)))

    def make(self, kind: type[Operation], state: State) -> Operation | None:
        """An operation of that kind, or None where the state has no room for it."""
        return _MAKERS[kind](self, state)

    # ---- one kind each ---------------------------------------------------------------------------------------------

    def admit(self, state: State) -> Operation | None:
        return self._new(state, Admit)

    def allocate(self, state: State) -> Operation | None:
        return self._new(state, Allocate)

    def append(self, state: State) -> Operation | None:
        name = self._pick(state, computed=True)
        if name is None:
            return None
        most = self.geometry.block_size + 2
        if self.capabilities.max_append is not None:
            most = min(most, self.capabilities.max_append)
        count = 1 if self.below(3) < 2 else 1 + self.below(most)
        return self._legal(state, Append(name, self._tokens(count)))

    def free(self, state: State) -> Operation | None:
        names = [*state.live, *state.swapped]
        if not names:
            return None
        name = names[self.below(len(names))]
        self._remember(state, name)
        return Free(name)

    def free_again(self, state: State) -> Operation | None:
        ended = self._names - len(state.live)
        if ended <= 0:
            return None
        return self._legal(state, FreeAgain(_name(self.below(self._names))))

    def fork(self, state: State) -> Operation | None:
        name = self._pick(state, computed=True)
        return None if name is None else self._legal(state, Fork(name, self._new_name()))

    def truncate(self, state: State) -> Operation | None:
        name = self._pick(state, computed=True)
        if name is None or len(state.live[name].tokens) < 2:
            return None
        self._remember(state, name)
        return self._legal(
            state,
            Truncate(name, len(state.live[name].tokens) - 1 - self.below(len(state.live[name].tokens) - 1)),
        )

    def preempt(self, state: State) -> Operation | None:
        name = self._pick(state, computed=False)
        return None if name is None else Preempt(name)

    def resume(self, state: State) -> Operation | None:
        names = list(state.parked)
        return self._legal(state, Resume(names[self.below(len(names))])) if names else None

    def swap_out(self, state: State) -> Operation | None:
        name = self._pick(state, computed=True)
        return None if name is None else self._legal(state, SwapOut(name))

    def swap_in(self, state: State) -> Operation | None:
        names = list(state.swapped)
        return self._legal(state, SwapIn(names[self.below(len(names))])) if names else None

    def lookup(self, state: State) -> Operation | None:
        return self._legal(state, Lookup(self._prompt(state), self._salt()))

    def computed(self, state: State) -> Operation | None:
        names = [seq.name for seq in state.live.values() if seq.computed < len(seq.tokens)]
        if not names:
            return None
        seq = state.live[names[self.below(len(names))]]
        rest = len(seq.tokens) - seq.computed
        upto = len(seq.tokens) if self.below(2) == 0 else seq.computed + 1 + self.below(rest)
        return Computed(seq.name, upto)

    # ---- parts -----------------------------------------------------------------------------------------------------

    def _new(self, state: State, kind: type[Admit] | type[Allocate]) -> Operation | None:
        most = self.capabilities.max_sequences
        if most is not None and len(state.live) + len(state.swapped) >= most:
            return None
        tokens = self._prompt(state)
        if len(self.past) >= MOST_REMEMBERED:
            del self.past[0]
        self.past.append(tokens)
        return self._legal(state, kind(self._new_name(), tokens, self._salt()))

    def _legal(self, state: State, operation: Operation) -> Operation | None:
        return operation if why_illegal(state, operation) is None else None

    def _pick(self, state: State, *, computed: bool) -> str | None:
        names = [s.name for s in state.live.values() if not computed or s.computed == len(s.tokens)]
        return names[self.below(len(names))] if names else None

    def _new_name(self) -> str:
        self._names += 1
        return _name(self._names - 1)

    def _salt(self) -> str | None:
        return SALTS[self.below(3)] if self.capabilities.salts and self.below(4) == 3 else None

    def _tokens(self, count: int) -> tuple[int, ...]:
        below, alphabet = self.below, self.alphabet
        if count > 8:  # long runs: a short pattern repeated, so that blocks repeat and few draws are needed
            pattern = [below(alphabet) for _ in range(5)]
            return tuple((pattern * (count // 5 + 1))[:count])
        return tuple([below(alphabet) for _ in range(count)])

    def _length(self) -> int:
        """Around a multiple of the block size; one block more than the pool now and then, to be refused."""
        size, pool = self.geometry.block_size, self.geometry.num_blocks
        most = pool + 1 if self.below(8) == 7 else min(pool, 3)
        length = max(1, (1 + self.below(most)) * size - 1 + self.below(3))
        limit = self.capabilities.max_tokens
        return length if limit is None else min(length, limit)

    def _prompt(self, state: State) -> tuple[int, ...]:
        past, below = self.past, self.below
        how = below(6) if past else 0
        if how == 0:
            return self._tokens(self._length())
        tokens = past[below(len(past))]
        limit = self.capabilities.max_tokens or 1 << 30
        if how == 1:
            return tokens
        if how == 2:
            return (tokens + self._tokens(1 + below(self.geometry.block_size + 1)))[:limit]
        cut = below(len(tokens))
        if how == 3:
            return tokens[: cut + 1]
        if how == 4:
            return (*tokens[:cut], below(self.alphabet), *tokens[cut + 1 :])
        start = cut // self.geometry.block_size * self.geometry.block_size
        return (tokens[start:] + self._tokens(below(3)))[:limit]  # the end of a prompt, without its prefix

    def _remember(self, state: State, name: str) -> None:
        """What a sequence grew into is worth asking for again."""
        seq = state.live.get(name)
        if seq is not None and len(self.past) < MOST_REMEMBERED:
            self.past.append(tuple(seq.tokens))


def _name(number: int) -> str:
    """A, B, ... Z, A1, B1, ..."""
    return chr(65 + number % 26) + (str(number // 26) if number >= 26 else "")


_Maker = Callable[[OperationMaker, State], Operation | None]
_MAKERS: dict[type[Operation], _Maker] = {
    Admit: OperationMaker.admit,
    Allocate: OperationMaker.allocate,
    Append: OperationMaker.append,
    Computed: OperationMaker.computed,
    Fork: OperationMaker.fork,
    Free: OperationMaker.free,
    FreeAgain: OperationMaker.free_again,
    Lookup: OperationMaker.lookup,
    Preempt: OperationMaker.preempt,
    Resume: OperationMaker.resume,
    SwapIn: OperationMaker.swap_in,
    SwapOut: OperationMaker.swap_out,
    Truncate: OperationMaker.truncate,
}
