"""A folder of the user's that holds a `properties.py`, or packages of our names, hides nothing of ours."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.helpers import BAD, ROOT, environment, pagefault

TINY = ROOT / "tests" / "targets"


@pytest.fixture(params=["properties.py", "properties/__init__.py"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A target with its neighbour, beside a module that must never be imported."""
    for name in (request.param, "paged_impl/__init__.py", "paged_ref.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("raise RuntimeError('the file of the user was imported')")
    for name in ("tiny_manager.py", "tiny_target.py"):
        shutil.copy(TINY / name, tmp_path)
    return tmp_path


@pytest.mark.parametrize(("target", "path"), [("tiny_target.py:Tiny", str(ROOT)), ("tiny_target:Tiny", f".:{ROOT}")])
def test_a_campaign_finds_ours_and_the_neighbours_of_the_target(target: str, path: str, folder: Path) -> None:
    done = pagefault("run", "-t", target, "--cases", 60, "--seed", 1, "--out", "out", cwd=folder, PYTHONPATH=path)

    assert "HASH-1: a hit block holds exactly" in done.out, done.err


def test_the_properties_are_ours_and_the_neighbours_the_target_s(folder: Path) -> None:
    pagefault("run", "-t", "tiny_target.py:Tiny", "--cases", 60, "--seed", 1, "--out", "out", cwd=folder)
    case = min((folder / "out" / "findings").glob("*-HASH-1-*.json"))  # one fault may come down to several cases
    done = pagefault("test", "-t", "tiny_target.py:Tiny", "--case", case, cwd=folder, PYTHONPATH=f".:{ROOT}")

    assert done.code == 1, done.err
    assert "HASH-1: a hit block holds exactly" in done.out
    assert "the file of the user was imported" not in done.out + done.err


def test_a_test_file_beside_a_properties_py_says_what_to_do(tmp_path: Path) -> None:
    pagefault("run", "-t", f"{BAD}:Boasts", "--cases", 60, "--seed", 1, "--out", "out", cwd=tmp_path)
    case = min((tmp_path / "out" / "findings").glob("*-ALLOC-4P-*.json"))
    (tmp_path / "properties.py").write_text("'a module of the user'")
    (tmp_path / "test_it.py").write_text(pagefault("show", case, "--as-test", cwd=tmp_path).out)

    def run(*options: str) -> str:
        command = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, "test_it.py"]
        return subprocess.run(
            command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=60, check=False
        ).stdout

    assert "instead of a properties.py or folder of that name beside this file" in run()
    assert "properties.contract.ALLOC_4P: append" in run("--import-mode=importlib")


@pytest.mark.parametrize("line", ["from properties import mine", "import properties.mine"])
@pytest.mark.parametrize("target", ["target.py:Target", "target:Target"])
def test_a_target_that_means_its_own_properties_is_told_of_the_name(line: str, target: str, tmp_path: Path) -> None:
    (tmp_path / "target.py").write_text(line)
    (tmp_path / "properties").mkdir()
    (tmp_path / "properties" / "mine.py").touch()
    done = pagefault("check-target", target, cwd=tmp_path)

    assert done.code == 2
    words = f"'properties' is a package of pagefault: give {tmp_path / 'properties'} another name"
    assert words in done.err + done.out
