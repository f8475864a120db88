"""`docs/kernels.md` and `docs/caches.md` are held to what they describe."""

import importlib
import re
import shlex
from pathlib import Path

import msgspec
import pytest

from properties.attention import budget, variations
from properties.attention.capabilities import AttentionCapabilities
from properties.attention.generate import CASES_PER_TRACE
from properties.attention.target import Batch
from properties.cache.generate import MOST_ROWS
from properties.cache.operations import CacheGeometry
from properties.cache.protocol import OPTIONAL, REQUIRED, CacheCapabilities
from properties.cache.spec import STEPS_PER_TRACE
from properties.contract import CLAUSES
from tests.fuzz.helpers import ROOT, pagefault

PAGES = {name: (ROOT / "docs" / f"{name}.md").read_text() for name in ("kernels", "caches")}
TEMPLATES = {"kernels": ROOT / "fuzz/templates/attention.py", "caches": ROOT / "fuzz/templates/cache.py"}


def section(page: str, name: str) -> str:
    """The quoted block between `<!-- name -->` and `<!-- /name -->`, without its fence."""
    found = re.search(rf"<!-- {name} -->\n```\w*\n(.*?)\n```\n<!-- /{name} -->", PAGES[page], re.DOTALL)
    assert found, f"docs/{page}.md has no section {name}"
    return found[1]


def rows(page: str, heading: str) -> list[list[str]]:
    """The cells of the table below a heading."""
    text = PAGES[page][PAGES[page].index(f"## {heading}") :]
    lines = [line for line in text.split("\n## ")[0].splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def words(cell: str) -> set[str]:
    """The names that a cell quotes, without values and signatures."""
    return {re.match(r"(?:batch\.)?(\w+)", quoted)[1] for quoted in re.findall(r"`([^`]+)`", cell)}  # type: ignore[index]


def _unmeasured(text: str) -> str:
    """Without line breaks and limits: these are held to what they must be where they are made (`tests/attention`)."""
    return re.sub(r"limit \d\.\d\de-\d\d", "limit ...", " ".join(text.split()))


@pytest.fixture(name="checkout")
def _checkout(tmp_path: Path) -> Path:
    """A folder in which the quoted paths exist, and nothing is left from an earlier run."""
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    return tmp_path


@pytest.mark.parametrize(("page", "clause"), [("kernels", "READ-2"), ("caches", "COW-2")])
def test_the_command_prints_what_is_printed_and_the_case_fails_again(page: str, clause: str, checkout: Path) -> None:
    program, *arguments = shlex.split(section(page, "command"))
    done = pagefault(*arguments, cwd=checkout)

    assert program == "pagefault"
    assert done.code == 1, done.err
    assert _unmeasured(section(page, "printed")) in _unmeasured(done.out)
    (case,) = (checkout / "pagefault-out" / "latest" / "findings").glob(f"*-{clause}-*.json")
    assert pagefault("repro", case, cwd=checkout).code == 1


@pytest.mark.parametrize(
    "target", ["tests/attention/tiny_attention.py:Mended", "tests/cache/sharing_cache.py:SharingCache"]
)
def test_without_the_bug_nothing_is_found(target: str, checkout: Path) -> None:
    done = pagefault("run", "-t", target, "--cases", 100, "--seed", 1, "--json", cwd=checkout)

    assert done.json["targets"][target]["findings"] == []
    assert done.code == 0, done.err


def test_the_adapter_of_another_layout_is_in_the_example() -> None:
    assert section("kernels", "layout") in (ROOT / "tests/attention/tiny_attention.py").read_text()


@pytest.mark.parametrize(("page", "kind"), [("kernels", AttentionCapabilities), ("caches", CacheCapabilities)])
def test_what_is_declared_exists_and_what_exists_is_told(page: str, kind: type[msgspec.Struct]) -> None:
    fields = {field.name for field in msgspec.structs.fields(kind)}
    told = set().union(
        *(words(row[0]) for row in rows(page, "What is declared" if page == "kernels" else "What to declare"))
    )

    assert told <= fields
    own = set(kind.__annotations__)
    text = PAGES[page] + TEMPLATES[page].read_text()
    assert {name for name in own if not re.search(rf"\b{name}\b", text)} == set()


def test_what_a_cache_offers_exists_with_the_clauses_that_it_adds() -> None:
    table = rows("caches", "What to offer")
    methods = set().union(*(words(row[0]) for row in table))

    assert methods <= OPTIONAL.keys()
    assert set(OPTIONAL) - methods <= {"lookup", "read_slots", "close"}  # those of a blocks target
    assert {id for row in table for id in re.findall(r"\b[A-Z]+-\d+P?\b", row[1])} <= CLAUSES.keys()
    life = PAGES["caches"].split("## The life of a step")[1].split("\n## ")[0]
    assert all(f"`{name}" in life for name in set(REQUIRED) - {"open", "free", "slots"})


def test_what_a_call_gets_exists() -> None:
    (config, *_), batch = rows("caches", "What a call gets"), rows("kernels", "What a call gets")
    told = set().union(*(words(row[0]) for row in batch if row[0].startswith("`batch.")))

    assert words(config[1]) | words(config[2]) <= {field.name for field in msgspec.structs.fields(CacheGeometry)}
    assert told <= {*Batch.__annotations__}
    assert {*Batch.__annotations__} - told <= {"q", "block_size", "num_kv_heads", "padding"}


def test_the_clauses_of_the_second_call_are_those_of_the_variations() -> None:
    (paragraph,) = [text for text in PAGES["kernels"].split("\n\n") if text.startswith("**Once more.**")]

    assert set(re.findall(r"[A-Z]+-\d", paragraph)) == set(variations.PROPERTY_OF.values())


def test_the_numbers_are_those_of_the_code() -> None:
    traces = budget._NUM_SEEDS["cpu"]["pagefault-dev"] + budget._EXAMPLES["pagefault-dev"]

    assert f"`pagefault test` makes {traces} traces of {CASES_PER_TRACE} calls" in PAGES["kernels"]
    assert f"A trace has {STEPS_PER_TRACE} operations" in PAGES["caches"]
    assert (MOST_ROWS, "ragged batches of up to four sequences" in PAGES["caches"]) == (4, True)


@pytest.mark.parametrize("page", TEMPLATES)
def test_what_a_template_names_to_import_exists(page: str) -> None:
    named = re.findall(r"`from ([\w.]+) import (\w+)`", TEMPLATES[page].read_text())

    assert len(named) == {"kernels": 0, "caches": 3}[page]
    assert all(hasattr(importlib.import_module(module), name) for module, name in named)


def test_the_readme_links_both() -> None:
    readme = (ROOT / "README.md").read_text()

    assert all(f"(docs/{page}.md)" in readme for page in PAGES)
