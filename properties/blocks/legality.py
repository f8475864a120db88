"""Which operations have a meaning in a state. One rule book for generators, the minimiser and hand-edited cases."""

from __future__ import annotations

from properties.blocks.operations import (
    Admit,
    Allocate,
    Append,
    Computed,
    Drain,
    Fork,
    Free,
    FreeAgain,
    Lookup,
    Operation,
    Preempt,
    Resume,
    SwapIn,
    SwapOut,
    Truncate,
)
from properties.blocks.state import State

_NEEDS: dict[type[Operation], tuple[str, ...]] = {
    Fork: ("fork",),
    Truncate: ("truncate",),
    SwapOut: ("swap_out", "swap_in", "copies"),
    SwapIn: ("swap_out", "swap_in", "copies"),
    Lookup: ("lookup",),
    Allocate: ("allocate", "computed"),
    Computed: ("allocate", "computed"),
}


def offered_operations(offers: frozenset[str], unknown_free: str | None) -> set[type[Operation]]:
    """The kinds of operation that a target with these optional methods understands."""
    kinds: set[type[Operation]] = {Admit, Append, Free, Preempt, Resume, Drain}
    kinds |= {kind for kind, needs in _NEEDS.items() if all(need in offers for need in needs)}
    return kinds | ({FreeAgain} if unknown_free else set())


def why_illegal(state: State, op: Operation) -> str | None:
    """Why an operation has no meaning here, in words; None if it has."""
    needs = _NEEDS.get(type(op))
    if needs and not all(need in state.offers for need in needs):
        return f"the target does not offer {' and '.join(needs)}"
    if isinstance(op, Admit | Allocate | Resume):
        return _why_not_new(state, op)
    if isinstance(op, Append):
        return _why_not_append(state, op)
    if isinstance(op, FreeAgain):
        if not state.capabilities.unknown_free:
            return "the target declares a free of an unknown name undefined"
        return "the sequence is live" if _is_known(state, op.name) else None
    if isinstance(op, Free | Preempt):
        if op.name in state.live or (isinstance(op, Free) and op.name in state.swapped):
            return None
        return f"no live sequence {op.name}"
    if isinstance(op, SwapIn):
        return None if op.name in state.swapped else f"sequence {op.name} is not in host memory"
    if isinstance(op, Lookup):
        return _why_not_tokens(state, op.tokens, op.salt)
    if isinstance(op, Fork | Truncate | SwapOut | Computed):
        return _why_not_change(state, op)
    return None


def _is_known(state: State, name: str) -> bool:
    return name in state.live or name in state.swapped or name in state.parked


def _why_not_new(state: State, op: Admit | Allocate | Resume) -> str | None:
    most = state.capabilities.max_sequences
    if most is not None and len(state.live) + len(state.swapped) >= most:
        return f"the target takes at most {most} sequences"
    if isinstance(op, Resume):
        return None if op.name in state.parked else f"no preempted sequence {op.name}"
    if _is_known(state, op.name):
        return f"sequence {op.name} exists already"
    return _why_not_tokens(state, op.tokens, op.salt)


def _why_not_tokens(state: State, tokens: tuple[int, ...], salt: str | None) -> str | None:
    if not tokens:
        return "no tokens"
    if salt is not None and not state.capabilities.salts:
        return "the target takes no salt"
    most = state.capabilities.max_tokens
    if most is not None and len(tokens) > most:
        return f"{len(tokens)} tokens; the target takes at most {most}"
    return "token ids must be whole numbers from 0" if min(tokens) < 0 else None


def _why_not_append(state: State, op: Append) -> str | None:
    seq = state.live.get(op.name)
    if seq is None:
        return f"no live sequence {op.name}"
    if seq.computed < len(seq.tokens):
        return f"sequence {op.name} is not computed yet"
    if not op.tokens or min(op.tokens) < 0:
        return "no tokens, or negative ones"
    most = state.capabilities.max_append
    if most is not None and len(op.tokens) > most:
        return f"{len(op.tokens)} tokens in one append; the target takes at most {most}"
    most = state.capabilities.max_tokens
    if most is not None and len(seq.tokens) + len(op.tokens) > most:
        return f"sequence {op.name} would have {len(seq.tokens) + len(op.tokens)} tokens; at most {most}"
    return None


def _why_not_change(state: State, op: Fork | Truncate | SwapOut | Computed) -> str | None:
    seq = state.live.get(op.name)
    if seq is None:
        return f"no live sequence {op.name}"
    if isinstance(op, Computed):
        ok = seq.computed < op.upto <= len(seq.tokens)
        return None if ok else f"sequence {op.name} has {seq.computed} of {len(seq.tokens)} tokens computed"
    if seq.computed < len(seq.tokens):
        return f"sequence {op.name} is not computed yet"
    if isinstance(op, Fork):
        most = state.capabilities.max_sequences
        if most is not None and len(state.live) + len(state.swapped) >= most:
            return f"the target takes at most {most} sequences"
        return f"sequence {op.child} exists already" if _is_known(state, op.child) else None
    if isinstance(op, Truncate):
        if state.geometry.window:
            return "truncation behind a sliding window may need released positions"
        return None if 0 < op.length < len(seq.tokens) else f"sequence {op.name} has {len(seq.tokens)} tokens"
    return None if state.geometry.num_host_blocks else "the geometry has no host blocks"
