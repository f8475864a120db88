"""Judges of the pool as a whole: ALLOC-1, ALLOC-2, REF-1, REF-2, SLOT-1 and EVICT-2P."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from paged_ref.ownership import LiveSequence
from properties.blocks.state import State
from properties.protocol import slots_from_table


def _names(blocks: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(blocks)))


def judge_slots(state: State, seq: LiveSequence) -> bool:
    """Are there enough slots, all distinct and in the pool? False where they cannot be used any further."""
    state.judged["ALLOC-2"] += 1
    slots, length = seq.slots, len(seq.tokens)
    if len(slots) < length:
        state.report(
            "ALLOC-2",
            f"sequence {seq.name} has {length} tokens but only {len(slots)} slots: position {len(slots)} has no place",
        )
        return False
    windowed = bool(state.geometry.window)
    for position, slot in enumerate(slots):
        if not -1 <= slot < state.shadow.num_slots:
            state.report(
                "ALLOC-1",
                f"sequence {seq.name}, position {position} has slot {slot}, outside the pool of "
                f"{state.geometry.num_blocks} blocks of {state.block_size} (slots 0 to {state.shadow.num_slots - 1})",
            )
            return False
        if slot == -1 and position < length and not windowed:
            state.report("ALLOC-2", f"sequence {seq.name}, position {position} has slot -1: it has no place")
            return False
    valid = [slot for slot in slots if slot >= 0]
    if len(set(valid)) != len(valid):
        _report_twice(state, seq, valid)
    return True


def _report_twice(state: State, seq: LiveSequence, valid: Sequence[int]) -> None:
    twice = next(slot for index, slot in enumerate(valid) if slot in valid[:index])
    first = list(seq.slots).index(twice)
    second = list(seq.slots).index(twice, first + 1)
    state.report(
        "ALLOC-2",
        f"sequence {seq.name} has slot {twice} (block {twice // state.block_size}) twice, for positions {first} and "
        f"{second}. History of {state.shadow.history(twice // state.block_size)}",
    )


def judge_length(state: State, seq: LiveSequence) -> None:
    """The promise of exactly `ceil(length / block size)` blocks."""
    state.judged["ALLOC-2P"] += 1
    size = state.block_size
    want, have = -(-len(seq.tokens) // size), -(-len(seq.slots) // size)
    if have != want:
        state.report(
            "ALLOC-2P",
            f"sequence {seq.name} has {len(seq.tokens)} tokens, {want} blocks of {size}, but holds {have}",
        )


def judge_table(state: State, seq: LiveSequence, table: Sequence[int]) -> None:
    """The slot formula, where the target offers its table."""
    state.judged["SLOT-1"] += 1
    expected = slots_from_table(table, state.block_size)
    length = len(seq.tokens)
    if tuple(expected[:length]) == tuple(seq.slots[:length]):
        return
    for position, slot in enumerate(seq.slots[:length]):
        formula = expected[position] if position < len(expected) else None
        if slot != formula:
            state.report(
                "SLOT-1",
                f"sequence {seq.name}, position {position} has slot {slot}, but its table {list(table)} says {formula} "
                f"(table[{position // state.block_size}] * {state.block_size} + {position % state.block_size})",
            )
            return


def judge_refs(state: State, refs: Sequence[int]) -> None:
    """Stored reference counts against the holders derived from the tables."""
    state.judged["REF-1"] += 1
    holders = state.holders
    for block, stored in enumerate(refs):
        derived = holders.get(block, 0)
        if stored != derived and block in state.usable:
            names = [s.name for s in state.live.values() if block in s.blocks]
            state.report(
                "REF-1",
                f"block {block} has a stored reference count of {stored}, but {derived} sequences hold it"
                f"{' (' + ', '.join(names) + ')' if names else ''}. History of {state.shadow.history(block)}",
            )
            return


def judge_free(state: State, free: Sequence[int]) -> None:
    """Free, owned and cached blocks cover the pool without duplicates; nothing owned is free."""
    judged = state.judged
    judged["REF-2"] += 1
    free_set = set(free)
    owned_free = free_set & state.holders.keys()
    if owned_free:
        block = min(owned_free)
        names = ", ".join(s.name for s in state.live.values() if block in s.blocks)
        state.report(
            "REF-2",
            f"block {block} is held by sequence {names} and on the free list at once. "
            f"History of {state.shadow.history(block)}",
        )
    judged["ALLOC-1"] += 1
    problem = _conservation_problem(state, free, free_set)
    if problem:
        state.report("ALLOC-1", problem)


def _conservation_problem(state: State, free: Sequence[int], free_set: set[int]) -> str | None:
    if len(free_set) != len(free):
        twice = next(block for index, block in enumerate(free) if block in free[:index])
        return f"block {twice} is on the free list twice: {list(free)}"
    outside = free_set - state.usable
    if outside:
        return f"the free list holds {_names(outside)}: reserved, or outside the pool of {state.geometry.num_blocks}"
    cached: Collection[int] = state.cached or ()
    if cached:
        overlap = free_set & set(cached)
        if overlap and not state.capabilities.cached_overlaps_free:
            return f"blocks {_names(overlap)} are cached and free at once, which the target does not declare"
    leaked = state.usable - free_set - state.holders.keys() - set(cached)
    if leaked:
        block = min(leaked)
        return (
            f"blocks {_names(leaked)} are neither free, nor held by a sequence, nor cached: they are lost. "
            f"History of {state.shadow.history(block)}"
        )
    return None


def _has_twin(state: State, block: int, before: Collection[int]) -> bool:
    """Whether another cached block holds the same run: then no prefix is lost with this one, whatever its age."""
    last = (block + 1) * state.block_size - 1
    run = state.shadow.run[last]
    return any(state.shadow.run[(other + 1) * state.block_size - 1] == run for other in before if other != block)


def judge_eviction_order(state: State, before: frozenset[int], fresh: Collection[int]) -> None:
    """Of the cached blocks that nobody held, the one released longest ago goes first (leaf before parent)."""
    evicted = [block for block in fresh if block in before and block in state.released]
    evicted = [block for block in evicted if not _has_twin(state, block, before)]
    if not evicted:
        return
    state.marks["a cached block was evicted"] += 1
    if "EVICT-2P" not in state.capabilities.promises:
        return
    state.judged["EVICT-2P"] += 1
    kept = [b for b in before if b not in fresh and b not in state.holders and b in state.released]
    newest = max(evicted, key=state.released.__getitem__)
    for block in kept:
        if state.released[block] < state.released[newest]:
            state.report(
                "EVICT-2P",
                f"block {newest} (released at step {state.released[newest][0]}) was evicted although block {block} "
                f"was released before it, at step {state.released[block][0]}"
                + ("" if state.released[block][0] != state.released[newest][0] else ", as a leaf behind it"),
            )
            return
