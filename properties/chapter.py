"""The body of every chapter's test: one clause of one target."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, NoReturn

import pytest

from properties.case import Case, encode, fingerprint, write
from properties.contract import UsageError
from properties.elsewhere import OwnError
from properties.judging import Results
from properties.report import explain
from properties.targets import Unavailable

SAVED = Path("pagefault-out") / "pytest"
"""Where the cases of failing properties are kept, from the folder that pytest was started in."""


def check(contract: Any, clause_id: str, target_name: str) -> None:
    """Fail with the explanation where the clause is broken, and where it applies but was never reached."""
    __tracebackhide__ = True
    results = results_of(contract, target_name, whole=False)
    finding = results.findings.get(clause_id)
    if finding is None and results.ended is not None:
        pytest.skip(_ended(results))
    if finding is not None:
        if finding.known is not None:
            pytest.xfail(f"known: {finding.known.tracker}")
        pytest.fail(explain(finding.case, finding.broken_at, _replay(finding.case)), pytrace=False)
    if clause_id.startswith("CRASH"):
        assert results.tally.steps, f"{clause_id}: nothing was called"
        return
    if clause_id not in results.applicable:
        pytest.skip(f"{target_name} does not offer or promise what {clause_id} judges")
    if not results.judged[clause_id]:
        reason = f"{clause_id} applies to {target_name} but was never judged: a clean verdict would say nothing"
        pytest.fail(reason, pytrace=False)


def results_of(contract: Any, target_name: str, *, whole: bool = True) -> Results:
    """The results of a target. Skips where it cannot run here; where the adapter is wrong the first test that asks fails.

    whole: skips, too, where judging ended before its time; its finding says why.
    """
    __tracebackhide__ = True
    results: Any = None
    why_not = ""
    try:
        results = contract.judge(target_name)
    except (UsageError, OwnError) as error:
        why_not = str(error)
    if why_not:  # not inside the handler: pytest would tell both exceptions
        _fail_once(contract, target_name, f"{target_name} was not judged: {why_not}")
    if isinstance(results, Unavailable):
        pytest.skip(str(results))
    if results.adapter is not None:
        before = f". Broken before that: {', '.join(results.tally.failing)}" if results.tally.failing else ""
        _fail_once(contract, target_name, f"verdict ADAPTER for {target_name}: {results.adapter}{before}")
    assert isinstance(results, Results)
    if whole and results.ended is not None:
        pytest.skip(_ended(results))
    return results


def _fail_once(contract: Any, target_name: str, why: str) -> NoReturn:
    """Fail the first test that asks, and the same again when it is run again; skip the rest, where copies would hide it."""
    __tracebackhide__ = True
    asking = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" (")[0]
    first = contract.told_by.setdefault(target_name, asking)
    if asking != first:
        pytest.skip(f"{target_name} is not judged: {first} says why")
    pytest.fail(why, pytrace=False)


def _ended(results: Results) -> str:
    return f"not judged to the end: {results.ended}; see {', '.join(results.findings)}"


def _replay(case: Case) -> str:
    """Save the case and say how to replay it; where it cannot be saved, the case itself."""
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", case.target).strip("-")
    file = SAVED / f"{name}-{case.property}-{fingerprint(case)}.json"
    try:
        SAVED.mkdir(parents=True, exist_ok=True)
        write(case, file)
    except OSError as error:
        return f"pagefault repro FILE, with this in it ({SAVED} cannot be written: {error.strerror}):\n{encode(case).decode()}"
    return f"pagefault repro {file}"
