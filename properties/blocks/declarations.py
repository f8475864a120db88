"""Declared behaviour against what was seen: an adapter that declares what it does not do is at fault, not the cache."""

from __future__ import annotations

from paged_ref.ownership import LiveSequence
from properties.blocks.state import State
from properties.contract import AdapterError


def check_unknown_free(state: State, name: str, how: str, *, refused: bool) -> None:
    """A free of a sequence that is not live changed nothing. Raises `AdapterError` unless it went as declared."""
    declared = state.capabilities.unknown_free
    if refused == (declared == "refused"):
        return
    right = "refused" if refused else "ignored"
    raise AdapterError(
        f"unknown_free={declared!r} is declared, but free({name}) of a sequence that is not live {how}",
        f"declare unknown_free={right!r}, or None if it may do either; or mend free",
    )


def check_copy_at_fork(state: State, parent: LiveSequence, child: LiveSequence) -> None:
    """A fork succeeded: was the partial last block copied at once just where that is declared? Raises `AdapterError`.

    What a refused fork needed, and whether a copy is due at the next write, is judged by this declaration.
    """
    declared, size, length = state.capabilities.copy_at_fork, state.block_size, len(parent.tokens)
    positions = [p for p in range(length) if parent.slots[p] >= 0 and child.slots[p] >= 0]
    copied = [p for p in positions if child.slots[p] != parent.slots[p]]
    if copied and not declared:
        raise AdapterError(
            f"fork({parent.name}, {child.name}) copied: position {copied[0]} is in slot {parent.slots[copied[0]]} of the "
            f"parent and slot {child.slots[copied[0]]} of the child, and copy_at_fork=False is declared",
            "declare copy_at_fork=True",
        )
    if declared and length % size and positions and positions[-1] == length - 1 and length - 1 not in copied:
        raise AdapterError(
            f"copy_at_fork=True is declared, but after fork({parent.name}, {child.name}) both have position "
            f"{length - 1} in slot {child.slots[length - 1]}, in a block that is not full",
            "leave copy_at_fork out: then the first write into that block is judged as the one that copies it",
        )
