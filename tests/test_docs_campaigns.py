"""`docs/campaigns.md` is held to what it describes."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import msgspec

from fuzz.cli import COMMANDS
from properties.ledger import Entry, read_ledger
from properties.machine import PROFILES
from properties.targets import GROUP
from tests.fuzz.helpers import ROOT, bad, pagefault

PAGE = (ROOT / "docs" / "campaigns.md").read_text()


def section(name: str) -> str:
    """The quoted block between `<!-- name -->` and `<!-- /name -->`, without its fence."""
    found = re.search(rf"<!-- {name} -->\n```\w*\n(.*?)\n```\n<!-- /{name} -->", PAGE, re.DOTALL)
    assert found, f"docs/campaigns.md has no section {name}"
    return found[1]


def rows(heading: str) -> list[list[str]]:
    """The cells of the table below a heading."""
    text = PAGE[PAGE.index(f"## {heading}") :]
    lines = [line for line in text.split("\n## ")[0].splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_the_ledger_is_one_and_show_prints_its_entries(tmp_path: Path) -> None:
    """A finding, its entry as `show` prints it, completed, and the same campaign is green."""
    (tmp_path / "l.json").write_text(section("ledger"))
    assert read_ledger(tmp_path / "l.json").entries[0].property == "REF-1"

    first = pagefault("run", "-t", bad("Boasts"), "--cases", 30, "--seed", 1, "--json", cwd=tmp_path)
    (target,) = first.json["targets"].values()
    entries = [
        pagefault("show", row["path"], "--json", cwd=tmp_path).json["ledger_entry"] for row in target["findings"]
    ]
    assert first.code == 1
    assert {field for entry in entries for field in entry} == set(Entry.__struct_fields__)
    done = [{**entry, "tracker": "issue 1"} for entry in entries]
    (tmp_path / "mine.json").write_bytes(msgspec.json.encode(done))
    again = ["run", "-t", bad("Boasts"), "--cases", 30, "--seed", 1, "--out", "b"]
    known = pagefault(*again, "--known-failures", "mine.json", cwd=tmp_path)
    assert "known" in known.err
    assert "FOUND" not in known.err


def test_an_entry_without_fingerprints_keeps_a_nightly_job_green_whatever_the_seed(tmp_path: Path) -> None:
    entry = msgspec.json.decode(section("ledger"))[0] | {"target": bad("Boasts"), "property": "ALLOC-4P"}
    (tmp_path / "any.json").write_bytes(msgspec.json.encode([entry | {"fingerprints": []}]))
    (tmp_path / "one.json").write_bytes(msgspec.json.encode([entry | {"fingerprints": ["0" * 16]}]))
    run = ["run", "-t", bad("Boasts"), "--cases", 60, "--seed", 2, "--json", "--known-failures"]
    covered, missed = (
        pagefault(*run, name, cwd=tmp_path).json["targets"][bad("Boasts")] for name in ("any.json", "one.json")
    )

    assert [row["known"] for row in covered["findings"]] == [entry["tracker"]]
    assert [row["known"] for row in missed["findings"]] == [None]


def test_the_entry_point_makes_a_target(tmp_path: Path) -> None:
    """A distribution as an installer leaves it: its metadata beside its package."""
    ((group, entries),) = tomllib.loads(section("entry-point"))["project"]["entry-points"].items()
    ((name, where),) = entries.items()
    module, attribute = where.split(":")
    package = tmp_path / "site" / module.split(".")[0]
    info = tmp_path / "site" / "my_package-1.2.dist-info"
    for folder in (package, info):
        folder.mkdir(parents=True)
    (package / "__init__.py").touch()
    code = f"from properties.targets.ours import OurBlocks\nclass {attribute}(OurBlocks):\n    distribution = 'my-package'\n"
    (package / f"{module.split('.')[1]}.py").write_text(code)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{name} = {where}\n")
    path = f"{tmp_path / 'site'}:{ROOT}"
    done = pagefault("run", "-t", name, "--cases", 70, "--seed", 1, "--json", cwd=tmp_path, PYTHONPATH=path)
    listed = pagefault("targets", "--json", cwd=tmp_path, PYTHONPATH=path).json

    assert group == GROUP
    assert done.code == 0, done.err
    assert done.json["targets"][name]["versions"]["my-package"] == "1.2"
    (row,) = [row for row in listed if row["name"] == name]
    assert (row["available"], row["version"]) == (True, "1.2")


def test_what_a_campaign_leaves_is_in_the_table(tmp_path: Path) -> None:
    pagefault("run", "-t", bad("Boasts"), "--cases", 20, "--seed", 1, cwd=tmp_path)
    (folder,) = [path for path in (tmp_path / "pagefault-out").iterdir() if path.name not in ("corpus", "latest")]
    left = {path.name for path in (*folder.iterdir(), tmp_path / "pagefault-out" / "corpus")} - {"lock"}
    told = {name.strip("`").split("/")[0] for row in rows("What a campaign leaves") for name in row[0].split(", ")}

    assert told == left
    assert (tmp_path / "pagefault-out" / "latest").resolve() == folder
    assert msgspec.json.decode((folder / "status.json").read_bytes())["finished"]


def test_every_option_of_the_plugin_and_every_profile_is_told() -> None:
    source = (ROOT / "properties" / "plugin.py").read_text()
    options = set(re.findall(r'addoption\("(--[a-z-]+)"', source)) | {"--hypothesis-profile"}
    table = rows("Options under pytest")

    assert {re.findall(r"--[a-z-]+", row[0])[0] for row in table} == options
    assert all(f"`{profile}`" in table[-1][1] for profile in PROFILES)


def test_every_command_of_the_table_of_exit_statuses_exists() -> None:
    names = {name.strip("`") for row in rows("Exit statuses") for name in row[0].split(", ")}

    assert names <= COMMANDS.keys()
