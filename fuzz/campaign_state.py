"""What a supervisor knows: what was asked for, each target, each worker, each finding."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fuzz import journal, messages
from fuzz.child import Child
from fuzz.tally import Tally
from fuzz.values import DEFAULT_LIMIT_S
from properties.case import Case
from properties.ledger import Entry


@dataclass(frozen=True)
class Options:
    """What a campaign was asked to do. `seconds` or `cases` (of each target) ends it, whichever comes first."""

    targets: tuple[str, ...]
    chosen: bool
    seconds: float | None
    cases: int | None
    workers: int
    device: str
    seed: int
    fail_fast: bool
    limit_s: float


@dataclass
class Finding:
    """A confirmed (or flaky) case on file. `known` is its entry in the ledger."""

    path: Path
    case: Case
    fingerprint: str
    known: Entry | None = None
    times: int = 1


@dataclass
class TargetRun:
    """One target of a campaign. `state` is "new", "running", "done", "skipped", "adapter" or "failed"."""

    name: str
    tally: Tally = field(default_factory=Tally)
    state: str = "new"
    reason: str = ""
    ready: messages.Ready | None = None
    tolerate: set[str] = field(default_factory=set)
    findings: dict[tuple[str, str], Finding] = field(default_factory=dict)
    rerun: bool = False
    limit_s: float = DEFAULT_LIMIT_S
    deaths: int = 0
    start_deaths: int = 0
    hung: str = ""
    """What did not return, where that may have been the machine's doing: no clean verdict, and no fault either."""

    @property
    def going(self) -> bool:
        """Whether there may be more to do."""
        return self.state in ("new", "running")

    def case(self, property_id: str, message: str, tail: journal.Tail) -> Case:
        """What a worker's journal shows, as a case. The target is ready: else there was no journal."""
        assert self.ready is not None
        return Case(
            level=self.ready.level,  # type: ignore[arg-type]
            target=self.name,
            property=property_id,
            message=message,
            geometry=tail.geometry,
            operations=tail.operations,
            seed=tail.head.seed,
            versions=self.ready.versions,
        )

    def status(self) -> dict[str, Any]:
        """Its part of the status file."""
        return {
            "state": self.state,
            "reason": self.reason,
            "cases": self.tally.cases,
            "operations": self.tally.operations,
            "operations_per_s": round(self.tally.per_second),
            "succeeded": round(self.tally.succeeded, 3),
            "restarts": self.tally.restarts,
            "new": sum(finding.known is None for finding in self.findings.values()),
            "known": sum(finding.known is not None for finding in self.findings.values()),
        }


@dataclass
class Worker:
    """A child process and what it is doing. `busy` is the range it was given, `since` when it last gave its counts."""

    child: Child
    run: TargetRun
    slot: int
    journal: Path
    busy: tuple[int, int] | None = None
    reruns: bool = False
    next: int = 0
    since: float = 0.0
