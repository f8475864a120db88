"""Judge one target on the whole contract, as `pytest properties` does: corpus first, then Hypothesis, then seeded traces.

Everything is judged in every trace, so that each clause gets the whole budget; a clause that was found broken does not
end later traces, so that one loud fault does not hide a quiet one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from hypothesis import settings

from properties.ahead import Ahead
from properties.blame import passes
from properties.blocks.declarations import lie
from properties.case import Case, fingerprint, read
from properties.contract import AdapterError
from properties.drive import drive
from properties.leading import with_steps
from properties.ledger import Entry, Ledger
from properties.levels import LevelSpec
from properties.machine import Failing, Tally, search
from properties.minimise import REPEATS, Trace, breaks, judge, minimise, step_broken, trimmed
from properties.specs import spec_of
from properties.targets import Target
from properties.trial import EVERYTHING, MUST_RETURN, new_target, run_trace

CORPUS = Path(__file__).with_name("corpus")
NUM_SEEDS = {"pagefault-dev": 1500, "pagefault-ci": 3000, "pagefault-night": 200_000}
"""Seeded traces after Hypothesis. 1,500 traces are about 5 s on our manager and judge each clause hundreds of times; a
campaign (`pagefault run`) draws as many every few seconds and looks deeper."""
HANG = "CRASH-2"
"""The clause that a call breaks which does not return in time."""
MOST_ROUNDS = 12
"""Hypothesis runs again without the clauses found so far, at most this often."""


@dataclass
class Finding:
    """A broken clause of one target, minimised. `known` is its entry in the ledger."""

    case: Case
    broken_at: int
    known: Entry | None


@dataclass
class Results:
    """What judging a target gave. `adapter` is set where the adapter breaks its own protocol: then nothing else counts.

    `ended` says how judging ended before its time (see `elsewhere`); what was not judged by then is unknown.
    """

    target: Target
    findings: dict[str, Finding] = field(default_factory=dict)
    tally: Tally = field(default_factory=Tally)
    applicable: frozenset[str] = frozenset()
    marks: frozenset[str] = frozenset()
    corpus: int = 0
    ended: str | None = None

    @property
    def adapter(self) -> AdapterError | None:
        return self.tally.adapter

    @property
    def judged(self) -> Counter[str]:
        return self.tally.judged

    @property
    def hung_once(self) -> bool:
        """Whether something did not return in time that may return the next time: on a machine that stood still, say."""
        hang = self.findings.get(HANG)
        return (hang is not None and hang.case.flaky) or (
            self.adapter is not None and self.adapter.remedy == MUST_RETURN
        )


@cache
def applicable_clauses(target: Target) -> frozenset[str] | None:
    """The clauses that can be judged on a target; None where that cannot be told, and judging it will say why."""
    try:
        sample = new_target(target.make)
        spec = spec_of(target.level)
        return spec.applicable(sample.capabilities, spec.offered(sample))
    except BaseException as error:  # an adapter may fail in any way here; it is reported when it is judged
        passes(error)
        return None


def judge_target(
    target: Target,
    profile: settings,
    num_seeds: int,
    ledger: Ledger,
    corpus: Sequence[Case],
    spec: LevelSpec | None = None,
    ahead: Ahead | None = None,
) -> Results:
    """Judge a target on every clause that applies to it. Raises `Unavailable` where it cannot run here.

    spec: the target's level, where its referees are to do more than judge. ahead: seeded traces that were judged already.
    """
    spec, ahead = spec or spec_of(target.level), ahead or Ahead()
    results = Results(target, tally=ahead.tally)
    try:
        sample = new_target(target.make)
        offers = spec.offered(sample)
        results.applicable = spec.applicable(sample.capabilities, offers)
        results.marks = spec.marks(sample.capabilities, offers)
        _replay(spec, results, corpus)
        _search(spec, results, profile)
        _seeds(spec, results, [seed for seed in range(num_seeds) if seed not in ahead.seeds], ahead.broken)
        if results.adapter is None:
            results.tally.adapter = lie(sample.capabilities, results.tally.marks, results.tally.failing)
    except AdapterError as error:
        results.tally.adapter = error
    if results.adapter is not None:
        results.tally.adapter = with_steps(spec, target.make, results.adapter)
    else:
        for id, failing in results.tally.failing.items():
            results.findings[id] = _finding(spec, target, id, failing, ledger)
    return results


def _replay(spec: LevelSpec, results: Results, corpus: Sequence[Case]) -> None:
    """Past failures of any target of this level: a trace that broke one implementation is worth trying on each."""
    caps = results.target.make().capabilities
    for case in corpus:
        if case.level != spec.level or not spec.accepts(caps, case.geometry):
            continue
        verdict = run_trace(spec, results.target.make, case.geometry, case.operations, tolerate=EVERYTHING)
        _count(results, verdict)
        results.corpus += 1
        _keep(results, verdict, case.geometry)


def _search(spec: LevelSpec, results: Results, profile: settings) -> None:
    for _ in range(MOST_ROUNDS):
        found = set(results.tally.failing)
        search(spec, results.target.make, profile, tolerate=found, tally=results.tally)
        if results.tally.adapter is not None or found == set(results.tally.failing):
            return


def _seeds(spec: LevelSpec, results: Results, seeds: Sequence[int], broken: Mapping[int, Sequence[str]]) -> None:
    """broken: clauses that the trace of a seed has broken before, which it need not do again."""
    if results.tally.adapter is not None:
        return
    for seed in seeds:
        geometry, verdict = drive(spec, results.target.make, seed, tolerate=set(results.tally.failing))
        _count(results, verdict)
        _keep(results, verdict, geometry)
        applied = tuple(verdict.applied)
        for id in broken.get(seed, ()):
            results.tally.failing.setdefault(id, Failing(geometry, applied, _AHEAD, len(applied)))


_AHEAD = "it was broken in another process, which judged this trace ahead"


def _count(results: Results, verdict: Any) -> None:
    if verdict.adapter is not None and not verdict.breaches:  # behind a breach it may be what came of that
        raise verdict.adapter
    state = verdict.state
    results.tally.count(len(verdict.applied), verdict.outcomes, state.judged, state.marks)


def _keep(results: Results, verdict: Any, geometry: Any) -> None:
    for breach in verdict.breaches:
        failing = Failing(geometry, tuple(verdict.applied), breach.message, breach.step)
        results.tally.failing.setdefault(breach.property, failing)


def _finding(spec: LevelSpec, target: Target, id: str, failing: Failing, ledger: Ledger) -> Finding:
    fails = breaks(spec, target.make, id)
    caps = target.make().capabilities
    trace = failing.trace
    if fails(*trace):
        trace = trimmed(spec, target.make, trace, id)
        trace = minimise(spec, trace, fails, accepts=lambda geometry: spec.accepts(caps, geometry))
    verdict = judge(spec, target.make, *trace)
    step = step_broken(verdict, id)
    if step is not None and id != HANG and not _breaks_again(spec, target, trace, id, step):
        step = None
    flaky = step is None
    if step is None:  # what was seen the first time is all there is, and smaller traces were luck
        trace, step = failing.trace, failing.step
    case = Case(
        level=target.level,
        target=target.name,
        property=id,
        message=f"{failing.message}. {ONCE}" if flaky else verdict.message(id),
        geometry=trace[0],
        operations=trace[1],
        flaky=flaky,
        outcomes={} if flaky else getattr(verdict.state, "outcomes", {}),
    )
    return Finding(case, step, ledger.find(target.name, id, fingerprint(case)))


def _breaks_again(spec: LevelSpec, target: Target, trace: Trace, id: str, step: int) -> bool:
    """Whether it breaks at that step each time: what is wrong by chance may be so twice. Not for hangs, which take long."""
    return all(step_broken(judge(spec, target.make, *trace), id) == step for _ in range(REPEATS - 1))


ONCE = "It broke once, and not each time when the same steps were done again"
"""Of what was seen, and could not be seen as often as it was looked for."""


def read_corpus(folder: Path = CORPUS) -> list[Case]:
    """The committed cases of past failures, in the order of their names."""
    return [read(path) for path in sorted(folder.glob("*.json"))]
