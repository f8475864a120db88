"""Operations on an engine target, and the geometry they run in.

A request brings its reply along: the tokens that the model will "sample" for it. So the referee knows what a step samples
when it is launched, and deleting one operation keeps the meaning of the rest.
"""

from __future__ import annotations

from properties.blocks.operations import Geometry, Operation


class EngineGeometry(Geometry, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The system a trace runs in: a pool, and the limits of a step.

    `max_tokens_per_step` is the token budget of a step, `max_rows` the most rows of one, `max_in_flight` the most steps
    launched and not finished.
    """

    max_tokens_per_step: int
    max_rows: int
    max_in_flight: int = 1


class Submit(Operation, frozen=True, tag="submit"):
    """A new request with its prompt; the model will sample `reply` for it, token by token, and then it ends."""

    name: str
    tokens: tuple[int, ...]
    reply: tuple[int, ...]
    salt: str | None = None


class Resubmit(Operation, frozen=True, tag="resubmit"):
    """The name of a live request is submitted again: to be refused, and to change nothing."""

    name: str


class Launch(Operation, frozen=True, tag="step"):
    """Launch a step, then finish all that is in flight, oldest first; with `hold` leave it in flight."""

    hold: bool = False


class Finish(Operation, frozen=True, tag="finish"):
    """Finish a step that is in flight: the oldest, or the one `index` places behind it."""

    index: int = 0


class ForkRequest(Operation, frozen=True, tag="fork_request"):
    """`child` goes on from all that request `name` has by now; the model will sample `reply` for it."""

    name: str
    child: str
    reply: tuple[int, ...]


class Cancel(Operation, frozen=True, tag="cancel"):
    """The request ends now, wherever it is."""

    name: str


class DriveToIdle(Operation, frozen=True, tag="idle"):
    """Step until every request has ended, then let one request fill the whole pool (LIVE-1, ALLOC-5)."""


EngineOperation = Submit | Resubmit | ForkRequest | Launch | Finish | Cancel | DriveToIdle
