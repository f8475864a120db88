"""The README quotes code and output; this holds the quotes to what they quote."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

from tests.fuzz.helpers import environment

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def section(name: str) -> str:
    """The quoted block between `<!-- name -->` and `<!-- /name -->`, without its fence."""
    found = re.search(rf"<!-- {name} -->\n```\w*\n(.*?)\n```\n<!-- /{name} -->", README, re.DOTALL)
    assert found, f"README.md has no section {name}"
    return found[1]


def test_the_adapter_is_the_file() -> None:
    assert section("adapter").strip() == (ROOT / "tests/targets/tiny_target.py").read_text().strip()


def test_the_printed_finding_is_what_is_printed() -> None:
    from tests.targets.test_tiny_target import PRINTED

    assert section("printed").split() == PRINTED.split()


def test_the_command_prints_it(tmp_path: Path) -> None:
    """The very line, as a reader runs it in a checkout; what follows from the seed is printed, so it is held to the letter."""
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    program, *arguments = shlex.split(section("command"))
    line = [sys.executable, "-m", "fuzz", *arguments]
    done = subprocess.run(line, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False)

    assert program == "pagefault"
    assert done.returncode == 1, done.stderr
    assert " ".join(section("printed").split()) in " ".join(done.stdout.split())
    assert "FOUND tests/targets/tiny_target.py:Tiny HASH-1 in 2 steps" in done.stderr


def test_every_command_is_in_the_table() -> None:
    from fuzz.cli import COMMANDS

    for name in COMMANDS:
        assert f"`{name}`" in README or f"pagefault {name}" in README or f"/ `{name}`" in README, name


def test_the_targets_that_it_names_are_those_that_new_target_writes() -> None:
    from fuzz.commands.new_target import TEMPLATES

    named = re.findall(r"my_\w+\.py:(\w+)", README + "".join(page.read_text() for page in (ROOT / "docs").glob("*.md")))

    assert set(named) == {"Target"}
    for path in TEMPLATES.glob("[a-z]*.py"):
        assert "\nclass Target:" in path.read_text()
        assert f"new-target {path.stem} " in README
