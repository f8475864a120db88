"""Which operations have a meaning on an engine in a state. One rule book for generators, minimiser and edited cases."""

from __future__ import annotations

from properties.blocks.operations import Operation
from properties.engine.operations import Cancel, DriveToIdle, Finish, ForkRequest, Launch, Resubmit, Submit
from properties.engine.protocol import EngineCapabilities
from properties.engine.state import EngineState


def offered_operations(capabilities: EngineCapabilities, offers: frozenset[str]) -> set[type[Operation]]:
    """The kinds of operation that a target with these capabilities understands."""
    kinds: set[type[Operation]] = {Submit, Launch, Finish, DriveToIdle}
    if "cancel" in offers:
        kinds.add(Cancel)
    if capabilities.duplicates:
        kinds.add(Resubmit)
    if "fork" in offers:
        kinds.add(ForkRequest)
    return kinds


def why_illegal(state: EngineState, op: Operation) -> str | None:
    """Why an operation has no meaning here, in words; None if it has."""
    if isinstance(op, Submit):
        return _why_not_submit(state, op)
    if isinstance(op, Resubmit):
        if not state.capabilities.duplicates:
            return "the target declares a second request of a live name undefined"
        return None if op.name in state.requests else f"no live request {op.name}"
    if isinstance(op, ForkRequest):
        return _why_not_fork(state, op)
    if isinstance(op, Launch):
        if not state.requests:
            return "no live request"
        most = state.geometry.max_in_flight
        return None if len(state.flights) < most else f"{most} steps are in flight, the most"
    if isinstance(op, Finish):
        if op.index and not state.capabilities.any_finish_order:
            return "the target finishes steps in order"
        return None if op.index < len(state.flights) else f"{len(state.flights)} steps are in flight"
    if isinstance(op, Cancel):
        if "cancel" not in state.offers:
            return "the target does not offer cancel"
        return None if op.name in state.requests else f"no live request {op.name}"
    return None


def _why_not_submit(state: EngineState, op: Submit) -> str | None:
    if not op.tokens or min(op.tokens) < 0:
        return "no prompt, or negative tokens"
    if op.salt is not None and not state.capabilities.salts:
        return "the target takes no salt"
    if (why := _why_not_new(state, op.name, len(op.tokens), op.reply)) is not None:
        return why
    if state.can_ever_fit(len(op.tokens), len(op.reply)):
        return None
    return None if state.capabilities.oversized else "the request can never fit, and the target declares that undefined"


def _why_not_fork(state: EngineState, op: ForkRequest) -> str | None:
    if "fork" not in state.offers:
        return "the target does not offer fork"
    if op.name not in state.requests:
        return f"no live request {op.name}"
    if any(row.name == op.name for flight in state.flights for row in flight.step.rows):
        return f"a step of request {op.name} is in flight"
    length = len(state.requests[op.name].tokens)
    if (why := _why_not_new(state, op.child, length, op.reply)) is not None:
        return why
    return None if state.can_ever_fit(length, len(op.reply)) else "the request can never fit"


def _why_not_new(state: EngineState, name: str, num_tokens: int, reply: tuple[int, ...]) -> str | None:
    """Why a request of that name, length and reply has no meaning here."""
    caps, geometry = state.capabilities, state.geometry
    if name in state.requests:
        return f"request {name} is live"
    if any(name == other for flight in state.flights for other, _ in flight.sampled):
        return f"a step of the request that was called {name} is in flight"
    if not reply or min(reply) < 0:
        return "no reply, or negative tokens"
    if caps.max_sequences is not None and len(state.requests) >= caps.max_sequences:
        return f"the target takes at most {caps.max_sequences} requests"
    longest = num_tokens + len(reply) - 1  # a preempted request may be computed again with all but its last token
    if not caps.chunked_prefill and longest > geometry.max_tokens_per_step:
        return f"{longest} tokens do not fit a step of {geometry.max_tokens_per_step}, and the target does not chunk"
    return None
