"""The ledger of known failures: what it may cover, and that the shipped one covers only what is somebody else's."""

from __future__ import annotations

import doctest
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fuzz import versions
from fuzz.faults import all_faults
from properties import ledger
from properties.contract import UsageError
from properties.targets import BUILTIN
from tests.fuzz.helpers import bad, pagefault

ENTRY: dict[str, Any] = {
    "target": "torch-flex",
    "property": "CONTENT-1",
    "fingerprints": ["0" * 16],
    "versions": ["2.13.0"],
    "tracker": "issue 1",
    "note": "n",
}
OURS = [name for name in BUILTIN if "ours" in name]


def _file(path: Path, entry: dict[str, Any]) -> Path:
    path.write_bytes(msgspec.json.encode([entry]))
    return path


def test_examples_of_its_docstrings() -> None:
    result = doctest.testmod(ledger)

    assert (result.attempted, result.failed) == (3, 0)


@pytest.mark.parametrize("target", [*OURS, *(fault.target().name for fault in all_faults().values())])
def test_no_entry_may_cover_our_own_code_or_a_planted_fault(target: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is ours: mend the fault instead of noting it"):
        ledger.read_ledger(_file(tmp_path / "l.json", {**ENTRY, "target": target}))


def test_the_shipped_one_covers_targets_that_exist_and_are_not_ours() -> None:
    shipped = ledger.read_ledger(None)

    assert OURS, "the rule above was tested on something"
    assert shipped.entries
    for entry in shipped.entries:
        assert entry.target in BUILTIN
        assert not ledger.is_ours(entry.target)
        assert entry.fingerprints
        assert entry.versions


def test_an_entry_matches_only_its_target_clause_fingerprint_and_version(tmp_path: Path) -> None:
    known = ledger.read_ledger(_file(tmp_path / "l.json", ENTRY))

    assert known.find("torch-flex", "CONTENT-1", "0" * 16, "2.13.0")
    assert known.find("ours", "CONTENT-1", "0" * 16, "2.13.0") is None
    assert known.find("torch-flex", "REF-1", "0" * 16, "2.13.0") is None
    assert known.find("torch-flex", "CONTENT-1", "1" * 16, "2.13.0") is None
    assert known.find("torch-flex", "CONTENT-1", "0" * 16, "2.14.0") is None


def test_an_entry_without_fingerprints_covers_any_case_of_its_clause_and_target(tmp_path: Path) -> None:
    known = ledger.read_ledger(_file(tmp_path / "l.json", {**ENTRY, "fingerprints": []}))

    assert [entry.property for entry in known.expired({"torch-flex"})] == ["CONTENT-1"]
    assert known.find("torch-flex", "REF-1", "1" * 16, "2.13.0") is None
    assert known.find("mini-vllm", "CONTENT-1", "1" * 16, "2.13.0") is None
    assert known.find("torch-flex", "CONTENT-1", "1" * 16, "2.14.0") is None
    assert known.find("torch-flex", "CONTENT-1", "1" * 16, "2.13.0")
    assert known.expired({"torch-flex"}) == []


def test_a_resumed_campaign_keeps_its_ledger(tmp_path: Path) -> None:
    """A changed file is said, a missing one is asked for, another one may be given instead."""
    entry = {**ENTRY, "target": bad("Boasts"), "property": "ALLOC-4P", "fingerprints": [], "versions": []}
    mine = _file(tmp_path / "mine.json", entry)
    run = ["run", "-t", bad("Boasts"), "--cases", 60, "--seed", 2, "--out", "out"]
    again = ["run", "--resume", "out", "--cases", 61]
    first = pagefault(*run, "--known-failures", "mine.json", cwd=tmp_path)
    same = pagefault(*again, cwd=tmp_path)
    _file(mine, {**entry, "note": "changed"})
    changed = pagefault(*again, cwd=tmp_path)
    mine.unlink()
    gone = pagefault(*again, cwd=tmp_path)
    other = pagefault(
        *again, "--known-failures", _file(tmp_path / "o.json", {**entry, "property": "REF-1"}), cwd=tmp_path
    )

    assert [done.code for done in (first, same, changed, gone, other)] == [0, 0, 0, 2, 1], other.err
    assert "tracker: issue 1" in same.out
    assert "was changed since" not in same.err
    assert f"the ledger {mine} was changed since the campaign was started" in changed.err
    assert f"the ledger that the campaign was started with, {mine}, is gone" in gone.err


def test_pytest_announces_what_was_not_met(tmp_path: Path) -> None:
    target = tmp_path / "mine.py"
    target.write_text("from tests.targets.zoo import Sound\n")
    path = _file(tmp_path / "l.json", {**ENTRY, "target": "mine.py:Sound", "note": "long mended"})

    done = pagefault("test", "-t", "mine.py:Sound", "--known-failures", path, "--", "-k", "alloc", cwd=tmp_path)

    assert done.code == 0, done.out + done.err
    words = (
        f"known failure not met: mine.py:Sound {ENTRY['property']} (long mended). Is it fixed? Then remove its entry"
    )
    assert words in done.out


def test_a_file_target_is_met_however_it_is_spelt(tmp_path: Path) -> None:
    known = ledger.read_ledger(_file(tmp_path / "l.json", {**ENTRY, "target": "mine.py:T"}))

    assert len(known.expired({"/elsewhere/mine.py:T"})) == 1
    assert known.expired({"/elsewhere/other.py:T"}) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tracker": " "}, "names no tracker; say where it is reported"),
        ({"tracker": ledger.PLACEHOLDER}, f"or why it is not, in place of '{ledger.PLACEHOLDER}'"),
        ({"property": "HASH-99"}, "no property 'HASH-99'; near it"),
        ({"colour": "red"}, "unknown field `colour`"),
        ({"fingerprints": "all"}, "is not a list of known failures"),
    ],
)
def test_a_bad_entry_stops_a_campaign_before_it_begins(change: dict[str, Any], words: str, tmp_path: Path) -> None:
    path = _file(tmp_path / "l.json", {**ENTRY, **change})
    done = pagefault("run", "-t", "ours", "--known-failures", path, cwd=tmp_path)

    assert done.code == 2
    assert words in done.err
    assert [entry.name for entry in tmp_path.iterdir()] == ["l.json"]


def test_versions_are_those_of_what_is_under_test() -> None:
    assert (
        versions.version_under_test("torch-flex", {"python": "3", "pagefault": "1", "torch": "2.13.0+cpu"}) == "2.13.0"
    )
    assert versions.version_under_test("ours", {"python": "3", "pagefault": "0.1.0"}) == "0.1.0"
    import torch

    of_a_kernel = versions.versions_of("mine.py:Kernel")
    assert of_a_kernel["torch (beside it)"] == torch.__version__
    assert versions.version_under_test("mine.py:Kernel", of_a_kernel) == of_a_kernel["pagefault"]
    assert versions.versions_of("torch-flex")["torch"] == torch.__version__
    assert versions.distribution_of("cache-ours-triton") == "pagefault"
