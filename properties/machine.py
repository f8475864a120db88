"""The Hypothesis state machine of a level: its rules draw operations, the referee applies and judges them.

Hypothesis owns generation; what a person reads comes from the trace, which the machine writes as it goes, and which our own
minimiser shrinks. One rule stands for each kind of operation, so that Hypothesis chooses and shrinks kinds itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from io import StringIO
from time import perf_counter
from typing import Any, NamedTuple

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.errors import Flaky
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from properties.contract import VIOLATIONS, AdapterError, Breach
from properties.levels import LevelSpec
from properties.timelimit import time_limit
from properties.trial import ends, led, new_target, opened, undisturbed

PROFILES = {
    "pagefault-dev": settings(max_examples=60, stateful_step_count=40, database=None),
    "pagefault-ci": settings(max_examples=300, stateful_step_count=50, derandomize=True, database=None),
    "pagefault-night": settings(max_examples=20_000, stateful_step_count=80, database=None),
}
"""Ours, under our own names: a user's profiles stay what they are. No deadlines: they are the classic cause of flakes."""


_PHASES = (Phase.explicit, Phase.reuse, Phase.generate)
"""Without Hypothesis' shrinking: it may take five minutes and stops above the shortest trace, where ours takes a second."""
STEP_LIMIT_S = 5.0
"""Seconds for one operation in the machine, whose draws must not count."""


def register_profiles() -> None:
    """Make the profiles known to Hypothesis, without loading one."""
    for name, profile in PROFILES.items():
        settings.register_profile(name, _quiet(profile))


def _quiet(profile: settings) -> settings:
    return settings(profile, deadline=None, print_blob=False, suppress_health_check=list(HealthCheck), phases=_PHASES)


class Failing(NamedTuple):
    """A trace that broke a clause, and what was said of it then: it may not break it a second time."""

    geometry: Any
    operations: tuple[Any, ...]
    message: str
    step: int

    @property
    def trace(self) -> tuple[Any, tuple[Any, ...]]:
        return self.geometry, self.operations


@dataclass
class Tally:
    """What the machine reached, over all its traces; `failing` has the shortest failing trace of each clause."""

    traces: int = 0
    steps: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    judged: Counter[str] = field(default_factory=Counter)
    marks: Counter[str] = field(default_factory=Counter)
    failing: dict[str, Failing] = field(default_factory=dict)
    adapter: AdapterError | None = None
    body_s: float = 0.0
    """Seconds spent in the rules' bodies: target and referee, without Hypothesis and its draws."""
    given_up: int = 0
    """Times that Hypothesis ended a search early, since the same calls had another outcome."""

    def count(
        self, steps: int, outcomes: Mapping[str, int], judged: Mapping[str, int], marks: Mapping[str, int]
    ) -> None:
        """Add a trace of so many operations."""
        self.traces += 1
        self.steps += steps
        self.outcomes.update(outcomes)
        self.judged.update({id: count for id, count in judged.items() if count})
        self.marks.update(marks)


def search(
    spec: LevelSpec,
    make: Callable[[], Any],
    profile: settings,
    *,
    tolerate: Collection[str] = (),
    only: str | None = None,
    tally: Tally | None = None,
) -> Tally:
    """Run the machine once. A trace ends at the first breach outside `tolerate` (with `only`: at that clause).

    What was found is in the tally; nothing is raised for it. Raises `AdapterError` where the adapter breaks its protocol.
    """
    tally = tally or Tally()
    machine = build_machine(spec, make, tally, tolerate=tolerate, only=only)
    try:
        with redirect_stdout(StringIO()):  # the machine prints its program; ours is the trace
            run_state_machine_as_test(machine, settings=_quiet(profile))
    except* tuple(VIOLATIONS.values()):
        pass
    except* AdapterError as group:
        tally.adapter = _first(group)
    except* Flaky:
        tally.given_up += 1
    return tally


def _first(group: BaseExceptionGroup[AdapterError]) -> AdapterError:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, AdapterError)
    return error


def build_machine(
    spec: LevelSpec,
    make: Callable[[], Any],
    tally: Tally,
    *,
    tolerate: Collection[str] = (),
    only: str | None = None,
) -> type[RuleBasedStateMachine]:
    """A state machine class for that target. Its traces are counted in `tally`."""
    sample = new_target(make)
    offers = spec.offered(sample)
    capabilities = sample.capabilities
    probe = spec.maker(lambda n: 0, spec.choose_geometry(lambda n: 0, capabilities, offers), capabilities, offers)

    class Machine(RuleBasedStateMachine):
        """One trace on one fresh target."""

        def __init__(self) -> None:
            super().__init__()
            self.trace: list[Any] = []
            self.referee: Any = None
            self.done = False

        @initialize(data=st.data())
        def open(self, data: st.DataObject) -> None:
            def below(n: int) -> int:
                return data.draw(st.integers(0, n - 1)) if n > 1 else 0

            self.below = below
            self.geometry = spec.choose_geometry(below, capabilities, offers)
            self.referee = opened(spec, make, self.geometry, STEP_LIMIT_S)
            self.maker = spec.maker(below, self.geometry, capabilities, offers)

        def step(self, operation: Any) -> None:
            """Apply one operation and raise for a breach that ends the trace."""
            self.trace.append(operation)
            breaches = self.referee.state.breaches
            seen = len(breaches)
            started = perf_counter()
            outcome = self._applied(operation)
            tally.body_s += perf_counter() - started
            tally.steps += 1
            tally.outcomes[outcome] += 1
            self.done = outcome == "crashed"
            new = [b for b in breaches[seen:] if only is None or b.property == only]
            for breach in new:
                self._keep(breach)
            if ends(new, tolerate):
                first = next(b for b in new if b.property not in tolerate)
                self.done = True
                raise VIOLATIONS[first.property](first.message)

        def _applied(self, operation: Any) -> str:
            """The outcome; "crashed" where the adapter fails behind a breach: that may be what came of the breach."""
            try:
                with time_limit(spec.limit_s or STEP_LIMIT_S), undisturbed():
                    return str(self.referee.apply(operation))
            except AdapterError as error:
                if not self.referee.state.breaches:
                    raise led(error, self.geometry, self.trace) from None
                return "crashed"

        def _keep(self, breach: Breach) -> None:
            known = tally.failing.get(breach.property)
            if known is None or len(self.trace) < len(known.operations):
                tally.failing[breach.property] = Failing(
                    self.geometry, tuple(self.trace), breach.message, len(self.trace)
                )

        def teardown(self) -> None:
            if self.referee is None:
                return
            try:
                if not self.done:
                    self.step(spec.closing)
            finally:
                state = self.referee.state
                tally.count(0, {}, state.judged, state.marks)  # its operations were counted one by one
                self.referee.close()

    for kind in probe.kinds:
        _add_rule(Machine, kind)
    return Machine


def _add_rule(machine: type[RuleBasedStateMachine], kind: Any) -> None:
    """One rule for one kind of operation; it does nothing where the state has no room for that kind."""

    def body(self: Any, data: st.DataObject) -> None:
        def below(n: int) -> int:
            return data.draw(st.integers(0, n - 1)) if n > 1 else 0

        if self.done:  # a crash that is tolerated: nothing more can be done with this target
            return
        self.maker.below = below
        operation = self.maker.make(kind, self.referee.state)
        if operation is not None:
            self.step(operation)

    config = getattr(kind, "__struct_config__", None)
    name = str(config.tag if config is not None else kind)
    body.__name__ = name
    ready = precondition(lambda self: self.referee is not None)
    setattr(machine, f"rule_{name}", ready(rule(data=st.data())(body)))
