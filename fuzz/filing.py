"""From evidence to findings on file: known, flaky or new. What an adapter did wrong is none of them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from fuzz.campaign_state import Finding, TargetRun
from fuzz.evidence import KEEPS_STATE, Evidence
from fuzz.folder import DiskError, Folder
from fuzz.story import what_is_known
from fuzz.versions import version_under_test
from properties.case import Case, encode, fingerprint, write
from properties.ledger import Ledger
from properties.wording import counted

KILLED = (9, 15)
"""SIGKILL and SIGTERM: somebody ended the process, or memory ran out."""
OUTSIDE = (0, *KILLED)
"""A hang that does not come back (a machine that was busy or asleep), SIGKILL, SIGTERM: not the target's doing."""
LEAST_LIMIT_S = 1.0
"""Once a hang is on file, later ones may cost a fifth of the limit, but no less than this."""


@dataclass(frozen=True)
class Filing:
    """Where findings go, and what is known. `tell` takes lines for the user."""

    folder: Folder
    ledger: Ledger
    tell: Callable[[str], None]

    def file(self, run: TargetRun, evidence: Evidence) -> Finding | None:
        """File what became of a suspect; the finding, if it is a new one. Modifies `run`. Raises `DiskError`."""
        suspect, case = evidence.suspect, evidence.case
        if run.state == "adapter":
            return None  # nothing that this adapter says counts any more
        if case is None:
            self.folder.event("unreadable", target=run.name, path=str(suspect.path), detail=evidence.detail)
            return None
        finding = self._by_kind(run, evidence, case)
        suspect.path.unlink(missing_ok=True)
        return finding

    def _by_kind(self, run: TargetRun, evidence: Evidence, case: Case) -> Finding | None:
        suspect = evidence.suspect
        if evidence.how == "finding":
            return self.keep(run, case)
        if evidence.how == "leaks":
            detail, _, steps = evidence.detail.partition("\n")
            self.adapter(run, f"{suspect.property}: {detail}", KEEPS_STATE, steps)
            run.reason = f"{run.reason}\n\n{steps}" if steps else run.reason
            return None
        if evidence.how == "error":
            self.folder.event("not-examined", target=run.name, property=suspect.property, detail=evidence.detail)
            return self.keep(run, _unsure(case, f"it could not be confirmed: {evidence.detail}"))
        if suspect.death and evidence.how == "gone" and suspect.signal in OUTSIDE:
            self.folder.event("not-reproduced", target=run.name, death=suspect.death)
            return None
        return self.keep(run, _unsure(case, f"{evidence.detail}; {BY_CHANCE}"))

    def adapter(self, run: TargetRun, problem: str, remedy: str, trace: str = "") -> None:
        """The verdict ADAPTER: the target is out; `trace` is only for the record. Modifies `run`. Raises `DiskError`."""
        run.state, run.reason = "adapter", f"{problem}. Remedy: {remedy}"
        self.folder.event("adapter", target=run.name, problem=problem, remedy=remedy, trace=trace)
        self.tell(f"ADAPTER {run.name}: {run.reason}")

    def keep(self, run: TargetRun, case: Case) -> Finding | None:
        """Put a case on file and announce it; the finding, if it is a new one. Modifies `run`. Raises `DiskError`."""
        print_ = fingerprint(case)
        known_already = run.findings.get((case.property, print_))
        if known_already is not None:
            known_already.times += 1
            return None
        version = version_under_test(run.name, case.versions)
        known = None if case.flaky else self.ledger.find(run.name, case.property, print_, version)
        finding = Finding(self.folder.finding(run.name, case.property, print_), case, print_, known)
        self._write(finding)
        run.findings[case.property, print_] = finding
        if case.property == "CRASH-2":
            run.limit_s = min(run.limit_s, max(LEAST_LIMIT_S, run.limit_s / 5))
        self._announce(run, finding)
        return finding if known is None else None

    def _write(self, finding: Finding) -> None:
        case = finding.case
        try:
            if os.path.lexists(
                finding.path
            ):  # a damaged or foreign file: what this run knows of is in `findings` already
                self.folder.set_aside(finding.path)
            self.folder.write_bytes(finding.path, encode(case))
        except DiskError:
            self.tell(f"this case could not be saved; it is here whole:\n{encode(case).decode()}")
            raise
        with contextlib.suppress(OSError):  # a convenience: the finding itself is on file
            write(case, self.folder.corpus(case.target) / f"{case.property}-{finding.fingerprint}.json")

    def _announce(self, run: TargetRun, finding: Finding) -> None:
        case = finding.case
        kind = "known" if finding.known else "flaky" if case.flaky else "finding"
        self.folder.event(
            kind, target=run.name, property=case.property, fingerprint=finding.fingerprint, path=str(finding.path)
        )
        steps = counted(len(case.operations), "step")
        word = {"known": "known", "flaky": "FLAKY", "finding": "FOUND"}[kind]
        known = f" ({what_is_known(finding)}; tracker: {finding.known.tracker})" if finding.known else ""
        self.tell(f"{word} {run.name} {case.property} in {steps}: {finding.path}{known}")


BY_CHANCE = "does the target, or its adapter, keep state between cases, or depend on time or chance?"


def _unsure(case: Case, why: str) -> Case:
    return Case(**{**msgspec.structs.asdict(case), "flaky": True, "message": f"{case.message} FLAKY: {why}"})
