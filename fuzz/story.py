"""A case in words, from its first breach on: what went wrong first, and what the same trace broke after it.

One fault breaks many clauses: a leaked block is a wrong reference count, then a refusal, then a pool that is not whole. The
reader should see the first of them. What came later in the same trace *may* follow from it, and is said to come after it,
no more: another fault can stand behind it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from fuzz.campaign_state import Finding
from properties.case import Case, shape
from properties.contract import CLAUSES, Breach, clause
from properties.report import explain, steps_in_words


def first_breach(case: Case) -> Breach | None:
    """What the trace of a case broke first; None where that was not noted."""
    return case.breaches[0] if case.breaches else None


def broken_at(case: Case) -> int | None:
    """The step that breaks the case's own clause; None where that was not noted."""
    return next((breach.step for breach in case.breaches if breach.property == case.property), None)


def breaches_before(case: Case) -> tuple[Breach, ...]:
    """What the trace broke before the case's own clause, in order; nothing where that was not noted."""
    properties = [breach.property for breach in case.breaches]
    return case.breaches[: properties.index(case.property)] if case.property in properties else ()


def tell(case: Case, replay: str | None = None) -> str:
    """The whole text of a case; the first breach is explained before its own, where they are not the same."""
    own, before = broken_at(case), breaches_before(case)
    if not before:
        return explain(case, own, replay)
    first = before[0]
    lines = explain(case, own).split("\n")
    lines[lines.index("") + 1 :] = [
        *_marked(case),
        "",
        f"first, at step {first.step}, {first.property} ({CLAUSES[first.property].text}):",
        first.message,
        "",
        f"then, at step {own}, {case.property}:",
        case.message,
    ]
    return "\n".join([*lines, *(["", f"replay: {replay}"] if replay else [])])


def what_is_known(finding: Finding) -> str:
    """One sentence: the note of the ledger's entry for a known finding, else what the case itself says."""
    note = finding.known.note.strip() if finding.known else ""
    return note or finding.case.message.split("\n")[0].split(". ")[0]


def _marked(case: Case) -> list[str]:
    """The steps, each with all that it breaks."""
    lines = steps_in_words(case.operations, outcomes=case.outcomes)
    for step in range(1, len(lines) + 1):
        here = [breach.property for breach in case.breaches if breach.step == step]
        if here:
            lines[step - 1] += f"   <- breaks {', '.join(here)}"
    return lines


# ---- the findings of one target ------------------------------------------------------------------------------------


@dataclass
class Group:
    """A finding whose clause was broken first, and what belongs to it.

    `same` are other cases of clauses that are told already; `together` broke another clause by the very same steps; `after`
    broke its clause at an earlier step of their own traces.
    """

    first: Finding
    same: list[Finding] = field(default_factory=list)
    together: list[Finding] = field(default_factory=list)
    after: list[Finding] = field(default_factory=list)

    @property
    def rest(self) -> list[Finding]:
        """All but the first."""
        return [*self.same, *self.together, *self.after]


def in_order(findings: list[Finding]) -> list[Finding]:
    """The earliest breach first; then few steps, safety before promises, what is judged first, few tokens. Flaky ones last."""
    return sorted(findings, key=_order)


def grouped(findings: list[Finding]) -> list[Group]:
    """The findings by what was broken first, earliest first; each finding is in exactly one group.

    Another clause that is broken in the same step by *other* steps stays apart: neither can be said to come first.
    """
    groups: list[Group] = []
    later = []
    for finding in in_order(findings):
        if finding.case.flaky:
            groups.append(Group(finding))
        elif _earlier(finding.case):
            later.append(finding)
        else:
            _join_equal(groups, finding)
    for finding in later:
        _join_earlier(groups, finding)
    return sorted(groups, key=lambda group: _order(group.first))


def _join_equal(groups: list[Group], finding: Finding) -> None:
    """A finding whose trace breaks nothing at an earlier step."""
    group = _of_clause(groups, finding.case.property)
    if group is not None:
        group.same.append(finding)
        return
    broken = {breach.property for breach in breaches_before(finding.case)}
    for group in groups:
        case = group.first.case
        if case.property not in broken or case.flaky:
            continue
        if finding.case.property in {other.case.property for other in group.together}:
            group.same.append(finding)
            return
        if shape(case) == shape(finding.case):
            group.together.append(finding)
            return
    groups.append(Group(finding))


def _join_earlier(groups: list[Group], finding: Finding) -> None:
    """A finding whose trace breaks something at an earlier step."""
    group = _of_clause(groups, finding.case.property)
    if group is not None:
        group.same.append(finding)
        return
    for breach in _earlier(finding.case):
        group = _of_clause(groups, breach.property)
        if group is not None:
            group.after.append(finding)
            return
    groups.append(Group(finding))


def _of_clause(groups: list[Group], property: str) -> Group | None:
    found = (group for group in groups if group.first.case.property == property and not group.first.case.flaky)
    return next(found, None)


def _earlier(case: Case) -> tuple[Breach, ...]:
    """What the trace broke at earlier steps than its own clause."""
    own = broken_at(case)
    return tuple(breach for breach in breaches_before(case) if own is not None and breach.step < own)


_RANKS = {id: number for number, id in enumerate(CLAUSES)}


def _order(finding: Finding) -> tuple[bool, int, int, bool, int, int, int, str]:
    case = finding.case
    first = first_breach(case)
    step = first.step if first else len(case.operations)
    promise = clause(case.property).rank == "promise"
    behind = len(breaches_before(case))
    size = sum(len(getattr(operation, "tokens", ())) for operation in case.operations)
    return case.flaky, step, len(case.operations), promise, behind, _RANKS[case.property], size, finding.fingerprint
