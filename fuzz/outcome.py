"""What a campaign amounts to: is each target's verdict one, and which exit status follows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fuzz.campaign import Campaign
from fuzz.campaign_state import Finding, TargetRun
from fuzz.output import hint, on_device
from fuzz.story import first_breach, grouped, in_order
from fuzz.values import plain_seconds
from properties import remedies

LEAST_JUDGED = 1000
"""Times that each applicable clause must have been judged in a run of `FULL_RUN_S`; fewer in shorter runs."""
FULL_RUN_S = 600.0


@dataclass(frozen=True)
class Outcome:
    """What came of one target. `unreached` are sentences: clauses judged too rarely, states never seen."""

    run: TargetRun
    new: list[Finding]
    known: list[Finding]
    unreached: list[str]

    @property
    def exit_code(self) -> int:
        """0 nothing new, 1 findings, 2 no verdict."""
        if self.run.state in ("adapter", "failed"):
            return 2
        if self.new:
            return 1
        return 2 if self.unreached else 0


def least_judged(busy_s: float) -> int:
    """How often each applicable clause must have been judged in that many seconds of work.

    It falls with the square of the time: a short run on a slow or busy machine must not fail for its speed.

    >>> least_judged(600), least_judged(60), least_judged(0.1)
    (1000, 10, 1)
    """
    return max(1, int(LEAST_JUDGED * min(1.0, busy_s / FULL_RUN_S) ** 2))


def outcome_of(run: TargetRun) -> Outcome:
    """Judge one target's part of a campaign."""
    findings = in_order(list(run.findings.values()))
    new = [finding for finding in findings if finding.known is None]
    known = [finding for finding in findings if finding.known is not None]
    return Outcome(run, new, known, _unreached(run) if run.state in ("running", "done", "new") else [])


def _unreached(run: TargetRun) -> list[str]:
    if run.ready is None:
        return [f"it was never ready: {run.reason or 'it was still being imported'}. Give it more time"]
    least = least_judged(run.tally.busy_s)
    judged = run.tally.judged
    unjudged = [id for id in run.ready.applicable if not judged.get(id)]
    rare = [f"{id} ({judged[id]} times)" for id in run.ready.applicable if 0 < judged.get(id, 0) < least]
    never = [mark for mark in run.ready.marks if not run.tally.marks.get(mark)]
    lines = [f"{run.hung}, once: the adapter's fault if it does so again"] if run.hung else []
    within = f"in {plain_seconds(run.tally.busy_s)}"
    if unjudged:
        lines.append(f"never judged {within}: " + ", ".join(unjudged))
    if rare:
        lines.append(f"judged fewer than {least} times {within}: " + ", ".join(rare))
    if never:
        lines.append(f"never reached in {run.tally.cases:,} cases: " + "; ".join(_with_remedy(m, run) for m in never))
    return lines


ENOUGH_CASES = 100
"""Cases after which a state that is still missing may be the adapter's doing, and not only a matter of time."""


def _with_remedy(mark: str, run: TargetRun) -> str:
    remedy = remedies.of_mark(mark) if run.tally.cases >= ENOUGH_CASES else ""
    return f"{mark} ({remedy})" if remedy else mark


def exit_code(campaign: Campaign) -> int:
    """0 no new finding, 1 findings, 2 an error, a broken adapter, or a verdict that reached nothing."""
    if campaign.disk is not None or campaign.internal:
        return 2
    judged = [outcome_of(run) for run in campaign.runs.values() if run.state != "skipped"]
    codes = [outcome.exit_code for outcome in judged]
    if any(outcome.run.state in ("adapter", "failed") for outcome in judged):
        return 2
    if 1 in codes or campaign.examiners.waiting:
        return 1
    return max(codes, default=2)


def as_json(campaign: Campaign) -> dict[str, Any]:
    """The whole outcome for `--json`."""
    options = on_device(campaign.options.device)
    return {
        "exit_code": exit_code(campaign),
        "folder": str(campaign.folder.path),
        "seed": campaign.options.seed,
        "elapsed_s": round(campaign.before_s + campaign.elapsed_s, 2),
        "stopped": campaign.stopping,
        "error": str(campaign.disk or campaign.internal or ""),
        "unconfirmed": campaign.examiners.waiting,
        "targets": {run.name: _target_json(outcome_of(run), options) for run in campaign.runs.values()},
    }


def _target_json(outcome: Outcome, options: list[str]) -> dict[str, Any]:
    run, tally = outcome.run, outcome.run.tally
    return {
        "state": run.state,
        "reason": run.reason,
        "versions": run.ready.versions if run.ready else {},
        "cases": tally.cases,
        "saved_traces": tally.saved,
        "operations": tally.operations,
        "operations_per_s": round(tally.per_second, 1),
        "succeeded": round(tally.succeeded, 4),
        "restarts": tally.restarts,
        "judged": {id: tally.judged.get(id, 0) for id in (run.ready.applicable if run.ready else ())},
        "marks": {mark: tally.marks.get(mark, 0) for mark in (run.ready.marks if run.ready else ())},
        "unreached": outcome.unreached,
        "findings": _findings_json(outcome, options),
    }


def _findings_json(outcome: Outcome, options: list[str]) -> list[dict[str, Any]]:
    """In the order in which the summary names them; `behind` is the fingerprint of the finding that was broken first."""
    rows = []
    for group in grouped(outcome.new):
        rows.append(_finding_json(group.first, options))
        rows += [_finding_json(other, options, group.first.fingerprint) for other in group.rest]
    return rows + [_finding_json(finding, options) for finding in outcome.known]


def _finding_json(finding: Finding, options: list[str], behind: str | None = None) -> dict[str, Any]:
    case, first = finding.case, first_breach(finding.case)
    return {
        "property": case.property,
        "fingerprint": finding.fingerprint,
        "first_breach": {"property": first.property, "step": first.step} if first else None,
        "behind": behind,
        "known": finding.known.tracker if finding.known else None,
        "flaky": case.flaky,
        "steps": len(case.operations),
        "message": case.message,
        "path": str(finding.path),
        "replay": hint("repro", finding.path, *options),
    }
