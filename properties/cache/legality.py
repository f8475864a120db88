"""Which operations have a meaning in a state of a cache target."""

from __future__ import annotations

from properties.blocks.legality import why_illegal as why_illegal_blocks
from properties.blocks.operations import Append, Operation
from properties.blocks.state import State
from properties.cache.operations import BatchStep


def parts_of(state: State, op: BatchStep) -> list[tuple[str, tuple[int, ...]]]:
    """The rows of a batch whose sequence is there and may grow or be computed, each once."""
    found: dict[str, tuple[int, ...]] = {}
    for name, run in zip(op.names, op.runs, strict=False):
        seq = state.live.get(name)
        if seq is None or name in found or not run:
            continue
        if seq.computed < len(seq.tokens) or why_illegal_blocks(state, Append(name, run)) is None:
            found[name] = run
    return list(found.items())


def why_illegal(state: State, op: Operation) -> str | None:
    """Why an operation has no meaning here, in words; None if it has."""
    if not isinstance(op, BatchStep):
        return why_illegal_blocks(state, op)
    if len(op.names) != len(op.runs) or op.padding < 0:
        return f"{len(op.names)} sequences, {len(op.runs)} runs and {op.padding} padding tokens"
    if op.padding and not getattr(state.capabilities, "pads", False):
        return "the target takes no padding tokens"
    return None if parts_of(state, op) else f"none of {', '.join(op.names) or 'no sequences'} can grow"
