"""The end of a campaign on the terminal: a table, each finding in words, what was not reached, what to do next."""

from __future__ import annotations

from typing import Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fuzz.campaign import Campaign
from fuzz.campaign_state import Finding
from fuzz.loop import safe_name
from fuzz.outcome import Outcome, exit_code, outcome_of
from fuzz.output import hint, on_device
from fuzz.story import Group, breaches_before, grouped, tell, what_is_known
from fuzz.values import plain_seconds
from properties.attention.verdict import NOT_HIGH
from properties.contract import clause
from properties.ledger import not_met
from properties.remedies import may_mean_no_room
from properties.wording import counted


def print_summary(campaign: Campaign, console: Console) -> None:
    """Print what came of the campaign."""
    outcomes = [outcome_of(run) for run in campaign.runs.values()]
    console.print()
    console.print(table(outcomes))
    for outcome in outcomes:
        _print_target(outcome, console, on_device(campaign.options.device))
    _print_expired(campaign, console)
    if campaign.examiners.waiting:
        waiting = counted(campaign.examiners.waiting, "broken case")
        plain(console, f"not confirmed yet: {waiting}; --resume goes on with them")
    for line in _closing(campaign):
        plain(console, line)


def plain(console: Console, text: str) -> None:
    """Print text as it is: no markup, no colours of our own, no wrapping of long lines."""
    console.print(Text(text), soft_wrap=True)


def table(outcomes: list[Outcome]) -> Table:
    """A line for each target; in a narrow place only names of targets are broken."""
    table = Table(box=None, pad_edge=False, collapse_padding=True)
    for name in ("target", "cases", "operations", "ops/s", "succeeded", "new", "known", "verdict"):
        justify: Literal["left", "right"] = "left" if name in ("target", "verdict") else "right"
        table.add_column(
            name, justify=justify, no_wrap=name != "target", overflow="fold"
        )  # long names leave no number out
    for outcome in outcomes:
        tally = outcome.run.tally
        numbers = [f"{tally.cases:,}", f"{tally.operations:,}", f"{tally.per_second:,.0f}", f"{tally.succeeded:.0%}"]
        counts = [str(len(outcome.new)), str(len(outcome.known))]
        table.add_row(safe_name(outcome.run.name), *numbers, *counts, _verdict(outcome))
    return table


def _verdict(outcome: Outcome) -> str:
    state = outcome.run.state
    if state in ("adapter", "failed", "skipped"):
        return {"adapter": "ADAPTER", "failed": "given up", "skipped": "skipped"}[state]
    if outcome.new:
        return "findings"
    return "reached too little" if outcome.unreached else "clean" if not outcome.known else "known findings only"


def _print_target(outcome: Outcome, console: Console, options: list[str]) -> None:
    """`options` are those that a replay needs."""
    run = outcome.run
    if run.reason:
        plain(console, f"\n{run.name}: {run.reason}")
    for group in grouped(outcome.new):
        _print_group(group, console, options)
    for finding in outcome.known:
        assert finding.known is not None
        case = finding.case
        plain(console, f"\nknown: {run.name} {case.property} ({clause(case.property).text}), in {_steps(finding)}")
        plain(console, f"what:    {what_is_known(finding)}\ntracker: {finding.known.tracker}\ncase:    {finding.path}")
        plain(console, f"replay:  {hint('repro', finding.path, *options)}")
    if run.ready:
        _print_reached(outcome, console)


def _print_group(group: Group, console: Console, options: list[str]) -> None:
    """What was broken first in full, and a line for each case of it and behind it."""
    finding, case = group.first, group.first.case
    if case.flaky:
        seen, _, why = case.message.rpartition(" FLAKY: ")
        words = f"{why}\nwhat was seen: {seen}" if seen else case.message
        plain(console, f"\nFLAKY {case.property} of {case.target}: {words}\ncase:   {finding.path}")
        return
    plain(console, f"\n{tell(case, hint('repro', finding.path, *options))}\ncase:   {finding.path}")
    for other in group.together:
        plain(console, f"the same steps break {other.case.property}: {hint('show', other.path)}")
    for other in group.same:
        plain(console, f"also {other.case.property}, in {_steps(other)}: {hint('show', other.path)}")
    if group.after:
        plain(console, f"broken after {case.property} in the same trace, perhaps because of it; mend that first:")
    for other in group.after:
        plain(console, f"  {_behind(other, case.property)}: {hint('show', other.path)}")


def _steps(finding: Finding) -> str:
    return counted(len(finding.case.operations), "step")


def _behind(finding: Finding, property: str) -> str:
    """When the other clause was broken in the trace of this one."""
    step = next(breach.step for breach in breaches_before(finding.case) if breach.property == property)
    return f"{finding.case.property} in {_steps(finding)}, {property} at step {step}"


def _print_reached(outcome: Outcome, console: Console) -> None:
    run = outcome.run
    assert run.ready is not None
    judged = ", ".join(f"{id} {count:,}" for id in run.ready.applicable if (count := run.tally.judged.get(id)))
    marks = ", ".join(f"{mark} {count:,}" for mark in run.ready.marks if (count := run.tally.marks.get(mark)))
    if run.tally.operations:
        plain(console, f"\n{run.name} judged: {judged or 'nothing: no case came to its end'}")
        plain(console, f"{run.name} reached: {marks or 'nothing'}")
    if left_out := run.tally.marks.get(NOT_HIGH):
        plain(console, f"{run.name}: {NOT_HIGH}: {counted(left_out, 'time')}")
    if run.tally.saved:
        plain(console, f"{run.name}: of earlier campaigns {counted(run.tally.saved, 'saved trace')} ran first")
    if run.tally.restarts:
        times = counted(run.tally.restarts, "time")
        plain(console, f"{run.name}: its process ended or hung {times} and was started again")
    crashes = [f.case for f in outcome.new if f.case.property == "CRASH-1"]
    crashed = "a refusal" in run.ready.marks and any(may_mean_no_room(case.level, case.message) for case in crashes)
    if crashed and not run.tally.marks.get("a refusal"):
        plain(
            console, f"{run.name} never refused anything: if CRASH-1 means 'no room', list it in capabilities.refusals"
        )
    for line in outcome.unreached:
        plain(console, f"{run.name} {line}. A verdict that reached nothing is none: give it more time")


def _print_expired(campaign: Campaign, console: Console) -> None:
    judged = {run.name for run in campaign.runs.values() if run.tally.began}
    for entry in campaign.ledger.expired(judged):
        plain(console, not_met(entry))


def _closing(campaign: Campaign) -> list[str]:
    code = exit_code(campaign)
    lines = [f"\nfolder: {campaign.folder.path}   seed: {campaign.options.seed}   exit: {code}"]
    if campaign.stopping:
        lines.append(f"stopped after {plain_seconds(campaign.elapsed_s)}: {campaign.stopping}")
    if campaign.disk is not None:
        lines.append(str(campaign.disk))
    if campaign.internal:
        lines.append(f"internal error of pagefault, not of the target; please report it:\n{campaign.internal}")
    return lines
