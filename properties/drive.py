"""One random trace: drawn from a seed while it is applied. The fuzzer's loop, and the second half of `pytest properties`."""

from __future__ import annotations

from collections.abc import Callable, Collection
from random import Random
from typing import Any

from properties.contract import AdapterError
from properties.levels import Below, LevelSpec
from properties.timelimit import TRACE_LIMIT_S, TimedOut, time_limit
from properties.trial import Verdict, ends, hung_outside_a_step, led, new_target, undisturbed

NUM_STEPS = 60
"""Operations of a trace at most: long enough to fill, free and refill a pool of 8 blocks several times."""

LEFT_OPEN = 8
"""One trace in so many ends in the middle of things: a queue or a table that outlives its system is empty after the others."""


def below_of(seed: int) -> Below:
    """A source of draws that depends on nothing but the seed."""
    random = Random(seed).random

    def below(n: int) -> int:
        return int(random() * n)

    return below


def drive(
    spec: LevelSpec,
    make: Callable[[], Any],
    seed: int,
    *,
    num_steps: int = NUM_STEPS,
    tolerate: Collection[str] = (),
    opened: Callable[[Any], None] | None = None,
    before: Callable[[Any], None] | None = None,
    limit_s: float = TRACE_LIMIT_S,
) -> tuple[Any, Verdict]:
    """Draw a geometry and a trace, apply and judge it; the closing operation comes last, but for one trace in `LEFT_OPEN`.

    `opened` is called with the geometry before the target is made, `before` with each operation before it is applied.
    The trace ends early as in `run_trace`. Returns the geometry and what came of it; every draw follows from `seed`.
    """
    below, verdict = below_of(seed), Verdict()
    geometry: Any = None
    referee: Any = None
    try:
        with time_limit(spec.limit_s or limit_s), undisturbed():
            target = new_target(make)
            offers, capabilities = spec.offered(target), target.capabilities
            geometry = spec.choose_geometry(below, capabilities, offers)
            if opened is not None:
                opened(geometry)
            referee = spec.referee(target, geometry)
            verdict.state = referee.state
            maker = spec.maker(below, geometry, capabilities, offers)
            maker.swarm()
            last = None if seed % LEFT_OPEN == LEFT_OPEN - 1 else spec.closing
            _steps(referee, maker, spec.num_steps or num_steps, last, tolerate, before, verdict)
            referee.close()
    except AdapterError as error:
        verdict.adapter = led(error, geometry, verdict.applied)
    except TimedOut:
        call = "making the adapter" if geometry is None else f"open({geometry})"
        verdict.adapter = hung_outside_a_step(call, spec.limit_s or limit_s)
    if referee is not None:
        verdict.breaches = list(referee.state.breaches)
    return geometry, verdict


def _steps(
    referee: Any,
    maker: Any,
    num_steps: int,
    last: Any,
    tolerate: Collection[str],
    before: Callable[[Any], None] | None,
    verdict: Verdict,
) -> None:
    state, breaches, applied = referee.state, referee.state.breaches, verdict.applied
    for number in range(num_steps):
        operation = last if last is not None and number == num_steps - 1 else maker.next(state)
        if before is not None:
            before(operation)
        applied.append(operation)
        seen = len(breaches)
        outcome = referee.apply(operation)
        verdict.outcomes[outcome] += 1
        if outcome == "crashed" or (len(breaches) > seen and ends(breaches[seen:], tolerate)):
            return
