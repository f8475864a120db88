"""A target that cannot be had: the name that was perhaps meant, or the line of the file that is wrong."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from properties.contract import UsageError
from properties.targets import load

ADAPTER = """
from properties.targets.ours import OurBlocks
class Config: pass
class Derived(OurBlocks): pass
class Mine:
    capabilities = None
    def open(self, config): ...
def make(): return Mine()
def helper(tokens): ...
def _hidden(): ...
NUMBER = 3
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "mine_naming.py").write_text(ADAPTER)
    return tmp_path


def refused(name: str) -> str:
    with pytest.raises(UsageError) as caught:
        load(name)
    return str(caught.value)


@pytest.mark.parametrize("name", ["mine_naming.py", "mine_naming", "mine_naming.py:", "mine_naming:"])
def test_a_file_without_an_object_names_those_it_has(name: str, here: Path) -> None:
    said = refused(name)

    assert "names a file and no object in it: one of mine_naming.py:Mine, mine_naming.py:Config" in said
    assert "mine_naming.py:make" in said
    assert "helper" not in said
    assert "hidden" not in said


def test_an_object_that_is_not_there_names_those_near_it(here: Path) -> None:
    assert "has no 'Mime'; near it: Mine" in refused("mine_naming.py:Mime")
    assert "is int, not a class or function" in refused("mine_naming.py:NUMBER")


def test_a_file_that_is_not_there(here: Path) -> None:
    assert f"no such file (looked for {here}/other.py)" in refused("other.py")
    assert f"no such file (looked for {here}/other.py)" in refused("other.py:Mine")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("x = 1\ndef f(:\n", "broken.py:2: SyntaxError: invalid syntax. Mend it first"),
        ("x = '\\xff\n", "broken.py:1: SyntaxError"),
        ("import nosuchmodule_", "ModuleNotFoundError: No module named 'nosuchmodule_' (broken.py:1 in <module>)"),
        ("from properties import nothing", "ImportError: cannot import name 'nothing'"),
        (
            "def boom():\n    raise RuntimeError('no\\nGPU \\ud800')\nboom()",
            r"RuntimeError: no GPU \ud800 (broken.py:3",
        ),
        ("import sys\nsys.exit(3)", "SystemExit: 3 (broken.py:2 in <module>)"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt (broken.py:1 in <module>)"),
    ],
)
@pytest.mark.parametrize("name", ["broken.py:Mine", "broken:Mine"])
def test_a_module_that_cannot_be_imported_says_where(name: str, text: str, says: str, here: Path) -> None:
    (here / "broken.py").write_text(text)
    said = refused(name)

    assert f"target {name!r} cannot be imported: " in said
    assert says in said
    assert len(said.splitlines()) == 1


def test_a_file_that_cannot_be_read_is_not_asked_for_its_objects(here: Path) -> None:
    (here / "broken.py").write_text("def f(:\n")

    assert "names a file that cannot be read: broken.py:1: SyntaxError" in refused("broken.py")


def test_a_module_that_is_not_there_and_one_that_imports_such_are_two_things(here: Path) -> None:
    assert "cannot import 'nosuch'. Start in the folder that holds it" in refused("nosuch.mine:Mine")
