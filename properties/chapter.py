"""The body of every chapter's test: one clause of one target."""

from __future__ import annotations

from typing import Any

import pytest

from properties.contract import VIOLATIONS
from properties.judging import Results
from properties.report import explain
from properties.targets import Unavailable


def check(contract: Any, clause_id: str, target_name: str) -> None:
    """Fail with the explanation where the clause is broken, and where it applies but was never reached."""
    __tracebackhide__ = True
    results = results_of(contract, target_name)
    finding = results.findings.get(clause_id)
    if finding is not None:
        replay = f"pagefault repro CASE.json, with the case below saved; or: pytest properties --target {target_name}"
        text = explain(finding.case, finding.broken_at) + "\n\n" + _case_text(finding.case) + f"\n{replay}"
        if finding.known is not None:
            pytest.xfail(f"known: {finding.known.tracker}")
        raise VIOLATIONS[clause_id](text)
    if clause_id not in results.applicable:
        if clause_id.startswith("CRASH"):
            return  # judged by every call that returned
        pytest.skip(f"{target_name} does not offer or promise what {clause_id} judges")
    if not results.judged[clause_id]:
        pytest.fail(f"{clause_id} applies to {target_name} but was never judged: a clean verdict would say nothing")


def results_of(contract: Any, target_name: str) -> Results:
    """The results of a target. Skips where it cannot run here, fails with verdict ADAPTER where the adapter is wrong."""
    __tracebackhide__ = True
    results = contract.judge(target_name)
    if isinstance(results, Unavailable):
        pytest.skip(str(results))
    if results.adapter is not None:
        pytest.fail(f"verdict ADAPTER for {target_name}: {results.adapter}", pytrace=False)
    assert isinstance(results, Results)
    return results


def _case_text(case: Any) -> str:
    from properties.case import encode

    return encode(case).decode()
