"""What a campaign, a Hypothesis machine, `repro` and the minimiser need to know of a level of target, in one place.

One trace, one referee: all of them run `properties.trial.run_trace`, which asks a `LevelSpec` for the referee.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from properties.contract import CLAUSES, Breach, Level


class LevelState(Protocol):
    """The part of a referee's state that every level shares."""

    breaches: list[Breach]
    judged: dict[str, int]
    marks: Counter[str]
    step: int


class Referee(Protocol):
    """Applies operations to one fresh target and judges what comes of each."""

    state: Any

    def apply(self, operation: Any) -> str:
        """Apply one operation: "done", "refused", "illegal" (no meaning here, not applied) or "crashed"."""
        ...

    def close(self) -> None:
        """Let the target release what `open` took."""


class Maker(Protocol):
    """Makes the next operation for a state, from a source of draws."""

    kinds: list[Any]

    def swarm(self) -> None:
        """Favour some kinds of operation for this trace and leave others out."""

    def next(self, state: Any) -> Any:
        """An operation that has a meaning now."""

    def make(self, kind: Any, state: Any) -> Any:
        """An operation of that kind, or None where the state has no room for it."""


Below = Callable[[int], int]


@dataclass(frozen=True)
class LevelSpec:
    """How traces of one level are generated, judged, described and shrunk.

    `promises` are judged only where declared. `applicable(capabilities, offers)` gives the clauses that a campaign must
    reach; `marks(capabilities, offers)` the states it must have seen. `closing` is the operation that ends a trace.
    `shrink` proposes smaller `(geometry, operations)`, the boldest first; `accepts(capabilities, geometry)` says whether a
    target takes a geometry that was not drawn for it. `why_illegal(state, operation)` says why an operation has no meaning.
    `joins`: operations have the same meaning in any trace, so that traces may be laid one behind the other.
    `second_call(operation, capabilities)`: where an operation makes one call after another, the second by itself, or None.
    `num_steps` is the length of a random trace, `limit_s` the time limit of a trace or step in seconds, where they are not
    the usual ones.
    """

    level: Level
    referee: Callable[[Any, Any], Referee]
    choose_geometry: Callable[[Below, Any, frozenset[str]], Any]
    maker: Callable[[Below, Any, Any, frozenset[str]], Maker]
    closing: msgspec.Struct
    operation: Any
    geometry: type[msgspec.Struct]
    applicable: Callable[[Any, frozenset[str]], frozenset[str]]
    marks: Callable[[Any, frozenset[str]], frozenset[str]]
    shrink: Callable[[Any, Sequence[Any]], Any]
    offered: Callable[[Any], frozenset[str]]
    accepts: Callable[[Any, Any], bool]
    why_illegal: Callable[[Any, Any], str | None] | None = None
    num_steps: int | None = None
    limit_s: float | None = None
    joins: bool = False
    second_call: Callable[[Any, Any], Any] | None = None


def clauses_of(level: Level) -> list[str]:
    """Ids of the clauses that are judged at a level, in the order of the contract."""
    return [id for id, clause in CLAUSES.items() if level in clause.levels]
