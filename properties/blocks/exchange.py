"""Smaller traces by exchange: what no single cut improves, one step traded for another does.

With these the same fault comes to the same trace from nearly every start, and so to one fingerprint.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from properties.blocks.operations import (
    Admit,
    Allocate,
    Append,
    Fork,
    Free,
    Operation,
    Preempt,
    Resume,
    Truncate,
)


def plain_returns(ops: tuple[Operation, ...]) -> Iterator[tuple[Operation, ...]]:
    """A preemption as a plain end, and a return as the admission of a new sequence: fewer kinds of step to understand."""
    returning = {op.name for op in ops if isinstance(op, Resume)}
    for index, op in enumerate(ops):
        if isinstance(op, Preempt) and op.name not in returning:
            yield (*ops[:index], Free(op.name), *ops[index + 1 :])
    for index, op in enumerate(ops):
        if isinstance(op, Resume):
            before = [Free(op.name) if isinstance(o, Preempt) and o.name == op.name else o for o in ops[:index]]
            name = f"{op.name}_again"
            after = [_renamed(o, op.name, name) for o in ops[index + 1 :]]
            tokens = _tokens_of(op.name, ops[:index])
            if tokens:
                yield (*before, Admit(name, tokens), *after)


def _tokens_of(name: str, ops: Sequence[Operation]) -> tuple[int, ...]:
    """The tokens that a sequence has after these steps, as far as they succeed."""
    tokens: dict[str, tuple[int, ...]] = {}
    for op in ops:
        if isinstance(op, Admit | Allocate):
            tokens[op.name] = op.tokens
        elif isinstance(op, Append):
            tokens[op.name] = tokens.get(op.name, ()) + op.tokens
        elif isinstance(op, Truncate):
            tokens[op.name] = tokens.get(op.name, ())[: op.length]
        elif isinstance(op, Fork):
            tokens[op.child] = tokens.get(op.name, ())
    return tokens.get(name, ())


MOST_STEPS_FOR_TWO = 10
"""Longer traces have too many pairs of steps, and a shorter one is found by the plain ways first."""


def one_for_two(ops: tuple[Operation, ...]) -> Iterator[tuple[Operation, ...]]:
    """A run one token longer in exchange for one or two other steps: the way out of traces that no single cut improves."""
    count = len(ops)
    if not 2 < count <= MOST_STEPS_FOR_TWO:
        return
    for index, op in enumerate(ops):
        if not isinstance(op, Admit | Allocate | Append):
            continue
        grown = (*ops[:index], msgspec.structs.replace(op, tokens=(*op.tokens, op.tokens[-1])), *ops[index + 1 :])
        others = [other for other in range(count) if other != index]
        for first in others:
            yield grown[:first] + grown[first + 1 :]
        for first in others:
            for second in range(first + 1, count):
                if second != index:
                    yield grown[:first] + grown[first + 1 : second] + grown[second + 1 :]


def _renamed(op: Operation, old: str, new: str) -> Operation:
    return msgspec.structs.replace(op, name=new) if getattr(op, "name", None) == old else op
