"""Judges of the pool as a whole: ALLOC-1, ALLOC-2, REF-1, REF-2, SLOT-1 and EVICT-2P."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from paged_ref.ownership import LiveSequence
from properties.blocks.state import Release, State
from properties.contract import AdapterError
from properties.protocol import slots_from_table
from properties.wording import counted


def _names(blocks: Iterable[int]) -> str:
    found = sorted(blocks)
    return f"block {found[0]} is" if len(found) == 1 else f"blocks {', '.join(map(str, found))} are"


def judge_slots(state: State, seq: LiveSequence) -> bool:
    """Are there enough slots, all distinct and in the pool? False where they cannot be used any further."""
    state.judged["ALLOC-2"] += 1
    slots, length = seq.slots, len(seq.tokens)
    if len(slots) < length:
        _report_too_few(state, seq)
        return False
    windowed = bool(state.geometry.window)
    for position, slot in enumerate(slots):
        if not -1 <= slot < state.shadow.num_slots:
            state.report(
                "ALLOC-1",
                f"sequence {seq.name}, position {position} has slot {slot}, outside the pool of "
                f"{counted(state.geometry.num_blocks, 'block')} of {state.block_size} (slots 0 to "
                f"{state.shadow.num_slots - 1})",
            )
            return False
        if slot == -1 and position < length and not windowed:
            state.report("ALLOC-2", f"sequence {seq.name}, position {position} has slot -1: it has no place")
            return False
    valid = [slot for slot in slots if slot >= 0]
    if len(set(valid)) != len(valid):
        _report_twice(state, seq, valid)
    return True


def with_table(slots: Sequence[int], table: Sequence[int], block_size: int, least: int) -> Sequence[int]:
    """The slots that a target tells, and behind them those of blocks that its table alone tells; the same object if none.

    Of fewer than `least` slots, and of such that contradict the table, nothing more is believed.
    """
    whole = slots_from_table(table, block_size)
    if not least <= len(slots) < len(whole) or tuple(slots) != whole[: len(slots)]:
        return slots
    return whole


def look_like_blocks(slots: Sequence[int], num_tokens: int, state: State) -> str:
    """Advice where there is one slot for each block and none for each token; "" where they can be slots.

    Slots that follow from a table come by whole blocks of consecutive numbers, however few they are.
    """
    size = state.block_size
    if size == 1 or len(slots) != -(-num_tokens // size) or not all(-1 <= s < state.geometry.num_blocks for s in slots):
        return ""
    starts = range(0, len(slots), size)
    if all(list(slots[at : at + size]) == [slots[at] + offset for offset in range(size)] for at in starts):
        return ""
    return f"These look like block ids, one for each {counted(size, 'token')}: {list(slots)}"


AS_SLOTS = "if slots() returns the block table, return slots_from_table(table, block_size) of properties.protocol"
LEAST_MISSING = 2
"""One slot too few may be one token that a manager forgot; more of them, one slot a block, are a table."""


def _report_too_few(state: State, seq: LiveSequence) -> None:
    slots, length = seq.slots, len(seq.tokens)
    what = f"sequence {seq.name} has {counted(length, 'token')} but only {counted(len(slots), 'slot')}"
    advice = look_like_blocks(slots, length, state)
    if advice and length - len(slots) >= LEAST_MISSING:
        raise AdapterError(f"{what}. {advice}", AS_SLOTS)
    more = f". {advice}; {AS_SLOTS}" if advice else ""
    state.report("ALLOC-2", f"{what}: position {len(slots)} has no place{more}")


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
            f"sequence {seq.name} has {counted(len(seq.tokens), 'token')}, {counted(want, 'block')} of "
            f"{size}, but holds {have}",
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
    if refs == [holders.get(block, 0) for block in range(len(refs))]:
        return
    for block, stored in enumerate(refs):
        derived = holders.get(block, 0)
        if stored != derived and block in state.usable:
            names = [s.name for s in state.live.values() if block in s.blocks]
            state.report(
                "REF-1",
                f"block {block} has a stored reference count of {stored}, but is held by {counted(derived, 'sequence')}"
                f"{' (' + ', '.join(names) + ')' if names else ''}. History of {state.shadow.history(block)}"
                + _by_the_cache(state, block, stored - derived),
            )
            return


def _by_the_cache(state: State, block: int, surplus: int) -> str:
    """Advice where a count may include the reference that the prefix cache holds itself."""
    silent = state.capabilities.prefix_cache and "cached_blocks" not in state.offers
    if surplus != 1 or not (silent or block in (state.cached or ())):
        return ""
    return ". If the prefix cache holds a reference of its own, by design, leave it out of what ref_count() returns"


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
        return f"on the free list: {_names(outside)} reserved, or outside the pool of {state.geometry.num_blocks}"
    cached: Collection[int] = state.cached or ()
    if cached:
        overlap = free_set & set(cached)
        if overlap and not state.capabilities.cached_overlaps_free:
            return f"{_names(overlap)} cached and free at once. If by design, declare cached_overlaps_free=True"
    leaked = state.usable - free_set - state.holders.keys() - set(cached)
    if leaked:
        block = min(leaked)
        what = f"{_names(leaked)} neither free, nor held by a sequence, nor cached"
        if not state.step:
            return f"{what}. If they are never handed out, by design, declare reserved_blocks={tuple(sorted(leaked))}"
        return f"{what}: lost. History of {state.shadow.history(block)}{_by_a_silent_cache(state)}"
    return None


def _by_a_silent_cache(state: State) -> str:
    """Advice where a prefix cache may keep what it does not tell."""
    if not state.capabilities.prefix_cache or "cached_blocks" in state.offers:
        return ""
    return ". If the prefix cache keeps it, offer cached_blocks(), or name what can be evicted in free_blocks() too"


def _last_run(state: State, block: int) -> int:
    """The run in the last slot of a block: for a full block, what a lookup finds it by."""
    return state.shadow.run[(block + 1) * state.block_size - 1]


def _has_twin(state: State, block: int, before: Collection[int]) -> bool:
    """Whether another cached block holds the same run: then no prefix is lost with this one, whatever its age."""
    run = _last_run(state, block)
    return any(_last_run(state, other) == run for other in before if other != block)


def _is_orphan(state: State, run: int) -> bool:
    """Whether the block in front of that run is cached no more: then nothing could have found the run's own block."""
    for _ in range(state.block_size):
        run = state.runs.parent(run)
    return state.runs.length(run) > 0 and not any(_has_run(state, block, run) for block in state.cached or ())


def _has_run(state: State, block: int, run: int) -> bool:
    """Whether a block held that run before this step: one written again in this step had been forgotten in between."""
    write = state.shadow.writes[(block + 1) * state.block_size - 1]
    return _last_run(state, block) == run and write is not None and write.step < state.step


class Eviction(NamedTuple):
    """A cached block that nobody held was handed out: when it was released, and what else could have been."""

    block: int
    released: Release
    older: tuple[int, ...]
    run: int


def evictions(state: State, before: Collection[int], fresh: Collection[int]) -> list[Eviction]:
    """The cached blocks among those just handed out, with the cached blocks that were released before each of them."""
    found, released = [], state.released
    for block in fresh:
        if block not in before or block not in released or _has_twin(state, block, before):
            continue
        state.marks["a cached block was evicted"] += 1
        stamp = released[block]
        older = tuple(b for b in before if b not in fresh and b in released and released[b] < stamp)
        found.append(Eviction(block, stamp, older, _last_run(state, block)))
    return found


def judge_eviction_order(state: State, evicted: Collection[Eviction], spared: Collection[int] = ()) -> None:
    """Of the cached blocks that nobody held, the one released longest ago goes first (leaf before parent).

    An older block that the same call hit, or copied from (`spared`), or that can no longer be found after it, was no candidate.
    """
    if "EVICT-2P" not in state.capabilities.promises:
        return
    cached = state.cached or frozenset()
    for eviction in evicted:
        state.judged["EVICT-2P"] += 1
        passed_over = [
            b for b in eviction.older
            if b in cached and b not in state.holders and b in state.released and b not in spared
        ]  # fmt: skip
        if passed_over and not _is_orphan(state, eviction.run):
            block = passed_over[0]
            state.report(
                "EVICT-2P",
                f"block {eviction.block} (released at step {eviction.released.step}) was evicted although block {block} "
                f"was released before it, at step {state.released[block].step}"
                + (", as a leaf behind it" if state.released[block].serial == eviction.released.serial else ""),
            )
            return
