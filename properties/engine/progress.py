"""Judges of progress (LIVE-1): every state moves on within a bound, nothing is lost, nothing goes on for ever."""

from __future__ import annotations

from collections.abc import Set

from properties.blocks import opening
from properties.contract import AdapterError
from properties.engine.protocol import Step
from properties.engine.state import EngineState, Request
from properties.wording import counted


def judge_step(state: EngineState, step: Step) -> None:
    """Count what a step brought. An empty one is fine now and then, or while others are in flight."""
    state.judged["LIVE-1"] += 1
    if not step.rows:
        state.marks["an empty step"] += 1
        if state.flights:
            return
    state.since_progress += 1
    state.idle = 0 if step.rows else state.idle + 1
    if state.idle > state.capabilities.max_idle_steps:
        _report_stuck(state, f"{counted(state.idle, 'step')} in a row came back empty with nothing in flight")


def judge_pace(state: EngineState) -> None:
    """Rows that never lead to a token: preemptions that undo each other, a request that is computed again and again."""
    if state.since_progress > most_steps(state):
        _report_stuck(state, f"{counted(state.since_progress, 'step')} did not bring a single token")


def most_steps(state: EngineState) -> int:
    """Steps within which some token must come: every live request computed from nothing, one position a step, twice."""
    return 8 + 2 * sum([len(request.tokens) + 1 for request in state.requests.values()])


def is_stuck(state: EngineState) -> bool:
    """Whether going on would not end."""
    return state.idle > state.capabilities.max_idle_steps or state.since_progress > most_steps(state)


def _report_stuck(state: EngineState, what: str) -> None:
    waiting = "; ".join(_standing(request) for request in state.requests.values())
    unowned = state.num_unowned()
    id = "ALLOC-5" if state.filling else "LIVE-1"
    start = "after everything was freed, a request for the whole pool is not served: " if state.filling else ""
    kept = any(not r.blocks and _keeps_a_slot(state, r.prompt, r.max_new_tokens) for r in state.requests.values())
    state.report(
        id,
        f"{start}{what}. Live: {waiting}. No request holds {unowned} of the {counted(len(state.usable), 'block')}"
        f"{f'. {KEEPS_A_SLOT}' if kept else ''}",
    )


KEEPS_A_SLOT = "If a slot is kept for the last token sampled, by design, declare look_ahead=1"


def _keeps_a_slot(state: EngineState, num_prompt: int, num_new: int) -> bool:
    """Whether a request is too large only for who keeps a slot for its last token, which is never written."""
    return not state.capabilities.look_ahead and state.blocks_for_request(num_prompt, num_new + 1) > state.room


def _standing(request: Request) -> str:
    holds = f"holds {counted(len(request.blocks), 'block')}" if request.blocks else "holds no block"
    left = request.max_new_tokens - request.told
    return f"{request.name} ({counted(len(request.tokens), 'token')}, {request.computed} computed, {left} to sample) {holds}"


def never_fits(state: EngineState, name: str, num_prompt: int, num_new: int) -> str:
    """A request that can never be served was accepted, in words."""
    return (
        f"submit({name}, {counted(num_prompt, 'token')}, {num_new} new) was accepted, but at its end it needs "
        f"{counted(state.blocks_for_request(num_prompt, num_new), 'block')} and there are {state.room}: "
        "it can never end; refuse it"
    )


def refused_in_vain(state: EngineState, name: str, num_prompt: int, num_new: int, refusal: str) -> str:
    """A request that can be served was refused, in words, with the declaration by which it may be."""
    need = state.blocks_for_request(num_prompt, num_new)
    by_design = (
        KEEPS_A_SLOT
        if _keeps_a_slot(state, num_prompt, num_new)
        else "If it is meant, declare the limit (max_tokens, watermark_blocks, look_ahead)"
    )
    return (
        f"submit({name}, {counted(num_prompt, 'token')}, {num_new} new) was refused with {refusal}, but it can be served: at "
        f"its end it needs {counted(need, 'block')} of {state.room}, for {counted(num_prompt + num_new - 1, 'token')} "
        f"({num_prompt} + {num_new} - 1: the KV of the last token sampled is never written). {by_design}"
    )


def too_many(request: Request) -> str:
    """A request goes on after its end, in words."""
    return f"request {request.name} has all its {request.max_new_tokens} new tokens, and a row samples one more"


def judge_live(state: EngineState, names: Set[str]) -> list[str]:
    """The target's own account of who has not ended is right; returns the requests that it has lost.

    A request whose last token is in flight may be gone from it already.
    """
    for name in names - state.requests.keys():
        if name not in state.ended:
            raise AdapterError(
                f"live() names {name!r}, which was never submitted",
                f"return the names that submit was given; {opening.LEFT}",
            )
        state.report("LIVE-1", f"live() still names request {name}, which ended at step {state.ended[name]}")
    lost = []
    for name in state.requests.keys() - names:
        request = state.requests[name]
        if request.sampled < request.max_new_tokens:
            lost.append(name)
            state.report(
                "LIVE-1",
                f"live() does not name request {name}, which has {request.told} of its {request.max_new_tokens} new tokens: "
                "it is lost",
            )
    return lost
