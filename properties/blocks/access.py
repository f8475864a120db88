"""Judges of what is read and written: HASH, SLOT, COW, EVICT-1, SWAP-1, TRIM-1, WINDOW-1 and CONTENT-1."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from paged_ref.ownership import LiveSequence
from properties.blocks.calls import AS_TOKENS
from properties.blocks.state import State
from properties.wording import counted


def describe_run(state: State, run: int) -> str:
    """A token run in words: the last token and the prefix behind it."""
    return state.runs.describe(run)


def _misread(state: State, seq: LiveSequence, position: int, slot: int, verb: str) -> str:
    block = slot // state.block_size
    return (
        f"sequence {seq.name}, position {position} ({describe_run(state, seq.runs[position])}) {verb} "
        f"{state.shadow.describe_slot(slot, state.runs)}. History of {state.shadow.history(block)}"
    )


RECOMPUTED = "If what was hit is computed again by design, declare recomputes_hits=True"
TOO_MANY = "If it is the adapter that counts otherwise: it must return how many leading tokens hit"


def counts_blocks(state: State, seq: LiveSequence, cached: int) -> bool:
    """Whether a new sequence holds at least as many blocks of the cache as it is said to have tokens from there."""
    size, content = state.block_size, state.shadow.run
    if size == 1 or not cached or cached * size > len(seq.tokens) or state.geometry.window:
        return False
    return all(content[slot] == run for slot, run in zip(seq.slots[: cached * size], seq.runs, strict=False))


def judge_hits(state: State, seq: LiveSequence, cached: int, said: int) -> None:
    """The leading `cached` tokens of a new sequence were taken from the cache: are they its own, and written?

    said: what the target said, which may be more than there are.
    """
    judged = state.judged
    recomputes = state.capabilities.recomputes_hits
    judged["HASH-4"] += not recomputes
    if cached == len(seq.tokens) and not recomputes:
        state.report(
            "HASH-4",
            f"sequence {seq.name} has {counted(len(seq.tokens), 'token')} and {said} are said to be cached: no token is left "
            f"to compute, so there is no query and no output; at most {len(seq.tokens) - 1} may be taken. "
            f"{RECOMPUTED if said == cached and _is_hit(state, seq, cached) else TOO_MANY}",
        )
    if not cached:
        return
    if cached == len(seq.tokens):
        state.marks["a hit of a whole prompt"] += 1
    judged["HASH-1"] += 1
    judged["HASH-2"] += 1
    judged["HASH-5"] += 1
    if "truncate" in state.offers:
        judged["TRIM-1"] += 1
    content = state.shadow.run
    for position in range(cached):
        slot = seq.slots[position]
        if slot < 0:
            continue  # released by the window within the same call
        if content[slot] != seq.runs[position]:
            never = state.shadow.writes[slot] is None and "copies" not in state.offers
            copies = ". If a copy put it there, offer copies()" if never else ""
            text = f"{_misread(state, seq, position, slot, 'was hit in')}{copies}"
            state.report(_bad_hit(state, seq, position, slot), text)
            return


def _is_hit(state: State, seq: LiveSequence, cached: int) -> bool:
    """Whether what is said to be hit is there."""
    content = state.shadow.run
    return all(slot < 0 or content[slot] == run for slot, run in zip(seq.slots[:cached], seq.runs, strict=False))


def _bad_hit(state: State, seq: LiveSequence, position: int, slot: int) -> str:
    """The clause that a wrong hit breaks. A block that nobody could find, with a right one behind it, is a miss that the
    hit went past."""
    write = state.shadow.writes[slot]
    hole, stop = slot // state.block_size, (position // state.block_size + 1) * state.block_size
    content = state.shadow.run
    behind = range(stop, min(len(seq.tokens), stop + state.block_size))
    if not _could_be_found(state, hole) and behind and all(content[seq.slots[p]] == seq.runs[p] for p in behind):
        block = seq.slots[stop] // state.block_size
        if state.cached is None or block in state.cached:  # what a released block holds by chance is no hit
            return "HASH-5"
    if write is None or write.step < state.handed[slot // state.block_size]:
        return "HASH-2"
    if state.dropped.get(slot) == seq.runs[position]:
        return "TRIM-1"
    return "HASH-1"


def _could_be_found(state: State, block: int) -> bool:
    """Whether a lookup could find the block before the call: cached by the target's account, or held by another."""
    return block in state.cached if state.cached is not None else state.holders.get(block, 0) > 1


def judge_fresh(state: State, seq: LiveSequence, fresh: Collection[int], cached: int = 0) -> None:
    """Blocks just handed out must be nobody else's, and not among those matched in the same call (`cached` tokens)."""
    state.judged["EVICT-1"] += 1
    for block in fresh:
        if state.holders.get(block, 0) > 1 and not _continues(state, seq, block):
            others = [s.name for s in state.live.values() if s is not seq and block in s.blocks]
            state.report(
                "EVICT-1",
                f"block {block} was handed to sequence {seq.name} while sequence {others[0]} still holds it. "
                f"History of {state.shadow.history(block)}",
            )
    if cached and len(set(seq.slots)) != len(seq.slots) and not state.geometry.window:
        _judge_matched(state, seq, cached)


def _continues(state: State, seq: LiveSequence, block: int) -> bool:
    """Whether the block already holds what the sequence will put there: then it is shared, and SLOT-2 judges the write."""
    first = next(position for position, slot in enumerate(seq.slots) if slot // state.block_size == block)
    return first < len(seq.runs) and state.shadow.run[seq.slots[first]] == seq.runs[first]


def _judge_matched(state: State, seq: LiveSequence, cached: int) -> None:
    size = state.block_size
    end = -(-cached // size) * size
    again = {slot // size for slot in seq.slots[end:]} & {slot // size for slot in seq.slots[:end]}
    if again:
        block = min(again)
        state.report(
            "EVICT-1",
            f"block {block} was matched for sequence {seq.name} and handed out again in the same call for its end. "
            f"History of {state.shadow.history(block)}",
        )


def _since_the_fork(state: State) -> str:
    due = " since the fork: a copy was due"
    declared = " at the fork, since copy_at_fork=True is declared; without it at this write"
    return due + (declared if state.capabilities.copy_at_fork else "")


def judge_writes(state: State, seq: LiveSequence, first: int, fresh: Collection[int]) -> None:
    """Positions from `first` on are about to be written: is each slot this sequence's alone?"""
    judged = state.judged
    judged["SLOT-2"] += 1
    forked = len(seq.family) > 1
    if forked:
        judged["COW-1"] += 1
    holders, size, again = state.holders, state.block_size, state.capabilities.recomputes_hits
    for position in range(first, len(seq.tokens)):
        slot = seq.slots[position]
        block = slot // size
        if slot < 0 or holders.get(block, 0) <= 1 or (block in fresh and not _continues(state, seq, block)):
            continue
        if again and state.shadow.run[slot] == seq.runs[position]:
            state.marks["a shared slot was written once more"] += 1
            continue
        others = [s for s in state.live.values() if s is not seq and block in s.blocks]
        related = [s.name for s in others if s.name in seq.family]
        state.report(
            "COW-1" if related else "SLOT-2",
            f"sequence {seq.name} is about to write position {position} into slot {slot} (block {block}), which "
            f"{'its relative' if related else 'sequence'} {(related or [others[0].name])[0]} holds too"
            f"{_since_the_fork(state) if related else ''}. History of {state.shadow.history(block)}"
            + (f". {AS_TOKENS}" if seq.name in state.as_blocks else _published(state, slot, seq.runs[position])),
        )
        return


def _published(state: State, slot: int, run: int) -> str:
    """Advice where the slot holds that very KV already: a hit that is computed again, or a block that was exchanged."""
    if state.shadow.run[slot] != run:
        return ""
    exchanged = (
        ""
        if {"allocate", "computed", "extend"} <= state.offers
        else ". If an equal block was put in the place of the one just computed, by design, offer allocate, extend and "
        "computed, so that both are seen"
    )
    return f". It holds the same KV. {RECOMPUTED}{exchanged}"


def judge_content(state: State, sequences: Collection[LiveSequence]) -> None:
    """Every computed position of every live sequence still holds what its own tokens put there."""
    content = state.shadow.run
    judged = state.judged
    for seq in sequences:
        judged["CONTENT-1"] += 1
        slots = seq.slots[: seq.computed] if seq.computed < len(seq.slots) else seq.slots
        found = list(map(content.__getitem__, slots))
        if found != seq.runs[: seq.computed]:
            _explain_content(state, seq, found)


def _explain_content(state: State, seq: LiveSequence, found: Sequence[int]) -> None:
    window = state.geometry.window
    for position, (run, expected) in enumerate(zip(found, seq.runs, strict=False)):
        slot = seq.slots[position]
        if run == expected or (slot < 0 and window):
            continue  # released by the window: WINDOW-1 judges whether it may be
        state.report("CONTENT-1", _misread(state, seq, position, slot, "reads"))
        return


def judge_swapped_in(state: State, seq: LiveSequence) -> None:
    """A sequence is back from host memory: does every position hold what went out?"""
    state.judged["SWAP-1"] += 1
    content = state.shadow.run
    for position in range(seq.computed):
        slot = seq.slots[position]
        if slot >= 0 and content[slot] != seq.runs[position]:
            state.report("SWAP-1", _misread(state, seq, position, slot, "came back from host memory and reads"))
            return


def judge_window(state: State, seq: LiveSequence, settled: int) -> None:
    """Positions inside the window of the next token, and sinks, must not be released; blocks outside should be.

    The promise counts `settled` tokens: those of the newest append may be rolled back, and then more is read again.
    """
    window = state.geometry.window
    if not window:
        return
    state.judged["WINDOW-1"] += 1
    if min(seq.slots[: seq.computed], default=0) < 0:
        state.marks["a window released a block"] += 1
    first_needed = seq.computed - window + 1
    for position in range(seq.computed):
        needed = position >= first_needed or position < state.geometry.num_sinks
        if needed and seq.slots[position] < 0:
            state.report(
                "WINDOW-1",
                f"sequence {seq.name}, position {position} was released, but "
                + (
                    f"it is one of {state.geometry.num_sinks} sinks"
                    if position < state.geometry.num_sinks
                    else f"the next token, {seq.computed}, reads the last {window} positions, from {max(first_needed, 0)}"
                ),
            )
            return
    if "WINDOW-1P" in state.capabilities.promises:
        _judge_window_promise(state, seq, min(settled, seq.computed) - window + 1)


def _judge_window_promise(state: State, seq: LiveSequence, first_needed: int) -> None:
    state.judged["WINDOW-1P"] += 1
    size, sinks = state.block_size, state.geometry.num_sinks
    stop = min(max(first_needed, 0) // size * size, len(seq.slots))
    for start in range(-(-sinks // size) * size, stop, size):
        if seq.slots[start] >= 0:
            state.report(
                "WINDOW-1P",
                f"sequence {seq.name} still holds block {seq.slots[start] // size} for positions "
                f"{start} to {start + size - 1}, wholly before position {first_needed}, the first that is still read",
            )
            return


def judge_read_path(state: State, seq: LiveSequence, pairs: Sequence[tuple[int, int]]) -> None:
    """CONTENT-1 along the target's own read path: each position once, each slot with the right content."""
    state.judged["CONTENT-1"] += 1
    content = state.shadow.run
    seen: dict[int, int] = {}
    for position, slot in pairs:
        if not 0 <= position < seq.computed:
            continue
        if not 0 <= slot < state.shadow.num_slots or content[slot] != seq.runs[position]:
            text = (
                _misread(state, seq, position, slot, "is read from")
                if 0 <= slot < state.shadow.num_slots
                else f"sequence {seq.name}, position {position} is read from slot {slot}, outside the pool"
            )
            state.report("CONTENT-1", f"{text}. The write path has it in slot {seq.slots[position]}")
            return
        if position in seen:
            state.report("CONTENT-1", _read_twice(state, seq, position, (seen[position], slot)))
            return
        seen[position] = slot
    absent = seq.computed - len(seen)
    if absent and not state.geometry.window:
        first = next(p for p in range(seq.computed) if p not in seen)
        state.report("CONTENT-1", f"sequence {seq.name}, position {first} is never read: no slot maps to it")


def _read_twice(state: State, seq: LiveSequence, position: int, slots: Sequence[int]) -> str:
    """Attention takes one position from two slots, so that it counts twice in the softmax: which is the foreign one?"""
    wrong = next((slot for slot in slots if slot != seq.slots[position]), slots[-1])
    block = wrong // state.block_size
    return (
        f"sequence {seq.name}, position {position} is read twice, from slots {slots[0]} and {slots[1]}. The write path "
        f"has it in slot {seq.slots[position]}; the other is {state.shadow.describe_slot(wrong, state.runs)}. "
        f"History of {state.shadow.history(block)}"
    )
