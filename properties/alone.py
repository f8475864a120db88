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
from properties.minimise import REPEATS
from properties.targets import Unavailable
from properties.wording import HELD_ALONE

NOT_ALONE = (
    f"{HELD_ALONE}. Either the target, or its adapter, keeps state between cases (a class attribute, a default argument, a "
    "buffer that is made once): `pagefault run` shows the shortest earlier case behind which it breaks. Or it depends on time, "
    "on chance, on id(), or on hash() of strings, which begins afresh in each process (not with PYTHONHASHSEED=0)"
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
        step = broken_elsewhere(case, device).get(case.property)
        again = step is not None and case.flaky and _breaks_again(case, device, step)
    except (AdapterError, UsageError, Unavailable, OwnError):
        return case
    if step is None:
        return replace(case, flaky=True, message=f"{case.message}. {NOT_ALONE}")
    if again:
        return replace(case, flaky=False, message=case.message.replace(ONCE, f"{ONCE} here. {ONLY_ALONE}"))
    return case


def _breaks_again(case: Case, device: str, step: int) -> bool:
    """Whether what did not break each time here does so there, at the same step: once may be chance there, too."""
    return all(broken_elsewhere(case, device).get(case.property) == step for _ in range(REPEATS - 1))
