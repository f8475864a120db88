"""Judges of calls: refusals, can-do answers, calls that must change nothing (ALLOC-3, -4, -6, COW-3P, COW-4, REF-3)."""

from __future__ import annotations

from collections.abc import Sequence

from paged_ref.ownership import LiveSequence
from properties.blocks.state import State
from properties.protocol import Copy
from properties.wording import counted

AS_TOKENS = "If the number that was returned counts the blocks that were hit: it must count their tokens"


def what_changed(state: State, before: tuple[object, object, object], slots_changed: Sequence[str]) -> str | None:
    """In words, what a call that must change nothing did change; None if nothing."""
    if slots_changed:
        return f"the slots of sequence {slots_changed[0]}"
    free, cached, refs = before
    if free is not None and set(free) != set(state.free or ()):  # type: ignore[call-overload]
        return f"the free blocks from {sorted(free)} to {sorted(state.free or ())}"  # type: ignore[call-overload]
    if cached is not None and cached != state.cached:
        return f"the cached blocks from {sorted(cached)} to {sorted(state.cached or ())}"  # type: ignore[call-overload]
    if refs is not None and refs != state.refs:
        return f"the reference counts from {refs} to {state.refs}"
    return None


def judge_refusal(
    state: State, what: str, refusal: str, need: int | None, answer: bool | None, *, copy_due: bool
) -> None:
    """A call was refused: was that honest, and needed? `need` is the most blocks it could take, None = unknown."""
    state.marks["a refusal"] += 1
    if answer is not None:
        id = "COW-4" if copy_due else "ALLOC-4"
        state.judged[id] += 1
        if answer:
            state.report(id, f"the can-do answer for {what} was yes, then it was refused with {refusal}")
    if need is None:
        return
    state.judged["ALLOC-6"] += 1
    unowned = state.num_unowned() - state.capabilities.watermark_blocks
    if need <= unowned:
        free = "" if state.free is None else f" ({len(set(state.free) - state.holders.keys())} on the free list)"
        state.report(
            "ALLOC-6",
            f"{what} was refused with {refusal}, but it needs no more than {blocks_in_words(need)}, and "
            f"{unowned} of {len(state.usable)} are held by nobody{free}: free plus evictable blocks suffice"
            f"{undeclared_limits(state)}",
        )


def undeclared_limits(state: State) -> str:
    """A refusal may be meant: by a limit that could have been declared, and was not."""
    caps = state.capabilities
    limits = {
        "max_sequences": caps.max_sequences is None,
        "max_tokens": caps.max_tokens is None,
        "watermark_blocks": not caps.watermark_blocks,
        "look_ahead": not caps.look_ahead,
    }
    undeclared = [name for name, absent in limits.items() if absent]
    return f". If it is meant, declare the limit ({', '.join(undeclared)})" if undeclared else ""


def blocks_in_words(count: int) -> str:
    """`1 block`, `2 blocks`."""
    return f"{count} block{'s' * (count != 1)}"


def judge_answer(state: State, what: str, answer: bool | None, *, copy_due: bool) -> None:
    """A call succeeded: did the can-do answer say so?"""
    if answer is None:
        return
    id = "COW-4" if copy_due else "ALLOC-4"
    state.judged[id] += 1
    if not answer:
        method = "can_append" if what.startswith("append") else "can_admit"
        meant = f"If it says no to be on the safe side, by design, leave {method} out of the adapter"
        state.report(id, f"the can-do answer for {what} was no, then it succeeded. {meant}")


def num_available(state: State) -> int | None:
    """Blocks that could be allocated by the target's own account: free, or cached and held by nobody."""
    if state.free is None:
        return None
    return len((set(state.free) | (state.cached or frozenset())) - state.holders.keys())


def judge_prediction(state: State, what: str, predicted: int | None, before: int | None) -> None:
    """The predicted change of the number of available blocks is the actual one."""
    after = num_available(state)
    if predicted is None or before is None or after is None or "ALLOC-4P" not in state.capabilities.promises:
        return
    state.judged["ALLOC-4P"] += 1
    if before - after != predicted:
        state.report(
            "ALLOC-4P",
            f"{what} was predicted to take {counted(predicted, 'block')}, and took {before - after} "
            f"(available: {before} before, "
            f"{after} after)",
        )


def judge_copies(state: State, seq: LiveSequence, copies: Sequence[Copy], shared: Sequence[int]) -> None:
    """No copy where nothing is shared. `shared` are the blocks that were shared or cached before the call."""
    if not copies:
        return
    state.marks["a copy on write"] += 1
    if "COW-3P" not in state.capabilities.promises:
        return
    state.judged["COW-3P"] += 1
    for copy in copies:
        block = copy.src if copy.unit == "block" else copy.src // state.block_size
        if copy.src_space == copy.dst_space == "device" and block not in shared:
            state.report(
                "COW-3P",
                f"block {block} was copied to {copy.dst} for sequence {seq.name}, which alone holds it. "
                f"History of {state.shadow.history(block)}",
            )
            return


def judge_repeat(state: State, tokens: Sequence[int], runs: Sequence[int], cached: int) -> None:
    """The operation before this one computed a sequence: its full blocks, but one token, must be hit now."""
    if state.latest is None or "HASH-3P" not in state.capabilities.promises:
        return
    latest = state.live.get(state.latest)
    weak = state.geometry.hash_bits is not None  # a collision may lose a hit, never give a wrong one
    if latest is None or latest.computed < len(latest.tokens) or state.geometry.window or weak:
        return
    common = 0
    for ours, theirs in zip(runs, latest.runs, strict=False):
        if ours != theirs:
            break
        common += 1
    size = state.block_size
    expected = min(common, len(tokens) - 1) // size * size
    if not expected:
        return
    state.judged["HASH-3P"] += 1
    if cached < expected:
        state.report(
            "HASH-3P",
            f"{counted(len(tokens), 'token')} that share {common} with sequence {latest.name}, computed just "
            f"before, hit {cached} "
            f"and not {expected} (full blocks of {size}, one token left to compute)"
            + (f". {AS_TOKENS}" if cached and cached * size == expected and size > 1 else ""),
        )
