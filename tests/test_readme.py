"""The README quotes code and output; this holds the quotes to what they quote."""

import re
from pathlib import Path

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


def test_every_command_is_in_the_table() -> None:
    from fuzz.cli import COMMANDS

    for name in COMMANDS:
        assert f"`{name}`" in README or f"pagefault {name}" in README or f"/ `{name}`" in README, name
