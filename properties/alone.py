"""Whether a finding needs what came before it: its case once more, in a process that has run nothing else.

What a target keeps from trace to trace (a global, a buffer that is made once) breaks clauses here that `pagefault repro`,
which runs the case alone, finds whole. Who reads the finding must be told, and keep what was seen.
"""

from __future__ import annotations

from msgspec.structs import replace

from properties.case import Case
from properties.contract import AdapterError, UsageError
from properties.elsewhere import OwnError, broken_elsewhere
from properties.judging import ONCE, Results
from properties.targets import Unavailable

NOT_ALONE = (
    "Alone, in a fresh process, this case holds: does the target, or its adapter, keep state between cases (a global, a class "
    "attribute, a buffer that is made once), or depend on time or chance? `pagefault run` looks for the cases that must come "
    "before it"
)
ONLY_ALONE = "In a fresh process it broke again, and that is what `pagefault repro` shows"


def confirm(results: Results, device: str) -> None:
    """Run the cases of the findings alone, but for known ones and deaths, and say in them what came of it."""
    if results.ended is not None:
        return
    for finding in results.findings.values():
        if finding.known is None:
            finding.case = confirmed(finding.case, device)


def confirmed(case: Case, device: str) -> Case:
    """The case with `flaky` and `message` by whether it breaks its clause alone; as it is where that cannot be told."""
    try:
        broken = broken_elsewhere(case, device)
    except (AdapterError, UsageError, Unavailable, OwnError):
        return case
    if case.property not in broken:
        return replace(case, flaky=True, message=f"{case.message}. {NOT_ALONE}")
    if case.flaky:
        return replace(case, flaky=False, message=case.message.replace(ONCE, f"{ONCE} here. {ONLY_ALONE}"))
    return case
