"""Fixtures of the fuzzer's tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.helpers import Finished, bad, pagefault


@pytest.fixture(scope="session")
def leaky(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Finished]:
    """One campaign on a target with a leak: its folder, and how it ended."""
    cwd = tmp_path_factory.mktemp("leaky")
    done = pagefault("run", "-t", bad("Leaky"), "--time", "3s", "--seed", 1, "--out", "out", "--json", cwd=cwd)
    return cwd, done


@pytest.fixture(scope="session")
def leaky_case(leaky: tuple[Path, Finished]) -> Path:
    """A minimised case of that campaign."""
    return sorted((leaky[0] / "out" / "findings").glob("*REF-1*.json"))[0]
