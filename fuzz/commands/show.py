"""`pagefault show`: a case in words, as a test, or as a bug report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from fuzz import values
from fuzz.output import Json, emit, hint, note
from fuzz.story import tell
from fuzz.versions import distribution_of, version_under_test
from fuzz.whereabouts import check_level, located
from properties.case import Case, fingerprint, read
from properties.contract import UsageError, clause
from properties.ledger import PLACEHOLDER
from properties.report import steps_in_words


def command(
    case: Annotated[str, typer.Argument(help="A case file.", metavar="CASE")],
    as_test: Annotated[bool, typer.Option("--as-test", help="Print a stand-alone pytest file.")] = False,
    as_issue: Annotated[bool, typer.Option("--as-issue", help="Print a bug report.")] = False,
    target: Annotated[
        str | None, typer.Option("--target", "-t", help="Target to name instead of the one named in the case.")
    ] = None,
    json_: Json = False,
) -> int:
    """Print a case: its clause, steps, explanation and replay command. Nothing is run."""
    if as_test and as_issue:
        raise UsageError("--as-test and --as-issue were both given: choose one")
    path = values.case_path(case)
    found = read(path)
    if target is not None:
        found.target = target
        check_level(found)
    text = _text(found, path, as_test, as_issue)
    emit(_fields(found, text), as_json=json_, text=text)
    return 0


def _text(case: Case, path: Path, as_test: bool, as_issue: bool) -> str:
    if as_test:
        from fuzz.as_test import as_test as text_of_test

        return text_of_test(case, _absolute(case, path))
    if as_issue:
        from fuzz.as_issue import issue_of

        return issue_of(case, located(case.target, path))
    flaky = "\n\nThis case is marked flaky: it did not fail every time." if case.flaky else ""
    versions = ", ".join(f"{name} {version}" for name, version in case.versions.items())
    found_with = f"\nfound with: {versions}" if versions else ""
    return f"{tell(case, replay=hint('repro', path))}{found_with}\nfingerprint: {fingerprint(case)}{flaky}"


def _absolute(case: Case, path: Path) -> str:
    found = located(case.target, path)
    file = found.rpartition(":")[0]
    if file.endswith(".py") and not Path(file).is_absolute():
        note(f"pagefault: {file} was not found from here: put its path into TARGET, or start where it can be found")
    return found


def _fields(case: Case, text: str) -> dict[str, object]:
    return {
        "target": case.target,
        "property": case.property,
        "clause": clause(case.property).text,
        "message": case.message,
        "breaches": [breach._asdict() for breach in case.breaches],
        "geometry": msgspec.to_builtins(case.geometry),
        "steps": [line.strip() for line in steps_in_words(case.operations, outcomes=case.outcomes)],
        "flaky": case.flaky,
        "versions": case.versions,
        "fingerprint": fingerprint(case),
        "ledger_entry": _ledger_entry(case),
        "text": text,
    }


def _ledger_entry(case: Case) -> dict[str, object]:
    """An entry for a ledger of known failures, to be completed by hand: where the fault is tracked."""
    version = version_under_test(case.target, case.versions)
    return {
        "target": case.target,
        "property": case.property,
        "fingerprints": [fingerprint(case)],
        "versions": [version] if distribution_of(case.target) else [],
        "tracker": PLACEHOLDER,
        "note": "",
    }
