"""`pagefault test`: the contract under pytest, from anywhere, whatever the user's own set-up is."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.helpers import bad, pagefault


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A folder whose own pytest set-up would break any other run."""
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --no-such-option\ntestpaths = nowhere\n")
    (tmp_path / "conftest.py").write_text("raise RuntimeError('the conftest.py of the user was read')")
    return tmp_path


def test_a_sound_target_passes_in_a_folder_with_a_pytest_set_up_of_its_own(hostile: Path) -> None:
    done = pagefault(
        "test", "-t", bad("Sound"), "--property", "REF-1", "--json", cwd=hostile, PYTEST_ADDOPTS="--no-such-option"
    )

    assert done.code == 0, done.err
    outcomes = [row["outcome"] for row in done.json["tests"]]
    assert outcomes == ["passed"]
    assert "REF-1" in done.json["tests"][0]["test"]


def test_a_broken_target_fails_with_the_clause_and_the_steps(hostile: Path) -> None:
    done = pagefault("test", "-t", bad("Boasts"), "--property", "ALLOC-4P", cwd=hostile)

    assert done.code == 1
    assert "ALLOC-4P: the predicted change of the free count is the actual one" in done.out
    assert "append token 0 to A" in done.out


@pytest.mark.parametrize("arguments", [["-t", "oours"], ["--property", "HASH-99"], ["--no-such-option"]])
def test_mistakes_are_exit_2(arguments: list[str], tmp_path: Path) -> None:
    done = pagefault("test", *arguments, cwd=tmp_path)

    assert done.code == 2
    assert arguments[-1] in done.out + done.err


def test_an_unknown_hypothesis_profile_is_one_line(tmp_path: Path) -> None:
    """Hypothesis by itself answers with an internal error of pytest."""
    done = pagefault("test", "-t", "ours", "--hypothesis-profile=nightly", cwd=tmp_path)

    assert done.code == 2
    assert "INTERNALERROR" not in done.out + done.err
    words = "--hypothesis-profile 'nightly' is unknown: give pagefault-dev, pagefault-ci, pagefault-night"
    assert words in done.out + done.err


def test_strings_have_the_hashes_that_they_have_in_a_replay(tmp_path: Path) -> None:
    """Else what depends on them would break here, and hold in every fresh process."""
    file = tmp_path / "hashing.py"
    file.write_text(HASHING)
    done = pagefault("test", "-t", f"{file}:Hashes", "--property", "SLOT-1", cwd=tmp_path, PYTHONHASHSEED="random")
    case = next((tmp_path / "pagefault-out" / "pytest").glob("*SLOT-1*.json"))

    assert done.code == 1
    assert "fresh process" not in done.out
    assert pagefault("repro", case, cwd=tmp_path).code == 1


HASHING = """
from properties.targets.ours import OurBlocks

class Hashes(OurBlocks):
    # Turned round, where four bits of a string's hash say so.
    def table(self, name):
        table = list(super().table(name))
        return table[::-1] if len(table) == 2 and min(table) >= 0 and hash(f"{table}") % 16 == 0 else table
"""
