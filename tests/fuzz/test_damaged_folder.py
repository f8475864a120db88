"""A campaign's folder after a crash, a bad disk or a careless hand: what can be read is used, the rest is named and kept."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from fuzz.folder import Damaged
from fuzz.resume import read_saved
from fuzz.tally import Tally
from properties.contract import UsageError
from tests.fuzz.helpers import Finished, bad, pagefault

LEAKY = bad("Leaky")


@pytest.fixture
def campaign(leaky: tuple[Path, Finished], tmp_path: Path) -> Path:
    """A copy of the folder of a campaign that found something."""
    return Path(shutil.copytree(leaky[0] / "out", tmp_path / "out"))


def _text(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def _loop(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


WAYS: dict[str, Callable[[Path], object]] = {
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-20]),
    "empty": lambda path: path.write_bytes(b""),
    "binary": lambda path: path.write_bytes(b"\x7fELF\x02\x01\xff\xfe"),
    "nested": lambda path: path.write_bytes(b"[" * 100_000),
    "a list": lambda path: path.write_text("[]"),
    "a folder": _folder,
    "a loop": _loop,
}
VALUES = ["-5", '"5"', "1e99", "NaN", "null", "99999999999999999999999", "[1]"]


@pytest.mark.parametrize("way", WAYS)
def test_counters_that_cannot_be_read_begin_at_zero(way: str, campaign: Path) -> None:
    WAYS[way](campaign / "state.json")
    saved = read_saved(str(campaign))

    assert [error.path.name for error in saved.damaged] == ["state.json"]
    assert saved.tallies == {}
    assert saved.targets == (LEAKY,)
    assert saved.seed == 1


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("field", ["cases", "next_block", "elapsed_s"])
def test_counters_that_cannot_be_true_are_not_believed(field: str, value: str, campaign: Path) -> None:
    state = json.loads((campaign / "state.json").read_text())
    (state if field == "elapsed_s" else state["targets"][LEAKY])[field] = "HERE"
    (campaign / "state.json").write_text(json.dumps(state).replace('"HERE"', value))

    assert read_saved(str(campaign)).damaged


@pytest.mark.parametrize("ranges", [[(5, 5)], [(-1, 3)], [(0, 65)], [(64, 128)], [(0, 10**30)]])
def test_ranges_of_cases_that_were_never_handed_out_are_not_believed(ranges: list[tuple[int, int]]) -> None:
    assert Tally(next_block=1, open=[(3, 64)]).problem(1000) == ""
    assert "never handed out" in Tally(next_block=1, open=ranges).problem(1000)


@pytest.mark.parametrize("way", WAYS)
def test_options_that_cannot_be_read_are_asked_for(way: str, campaign: Path) -> None:
    WAYS[way](campaign / "campaign.json")
    with pytest.raises(UsageError, match="name the targets as well to start afresh from them"):
        read_saved(str(campaign))

    again = read_saved(str(campaign), (LEAKY,))
    assert again.forgot_targets
    assert again.targets == (LEAKY,)
    assert again.tallies[LEAKY].cases > 0, "the counters are still good"


@pytest.mark.parametrize("options", [{"targets": []}, {"seed": -1}, {"seed": 2**64}, {"corpus": ""}, {"chosen": 3}])
def test_options_that_cannot_be_true_are_not_believed(options: dict[str, object], campaign: Path) -> None:
    fields = json.loads((campaign / "campaign.json").read_text())
    (campaign / "campaign.json").write_text(json.dumps({**fields, **options}))

    with pytest.raises(Damaged):
        raise read_saved(str(campaign), (LEAKY,)).damaged[0]


@pytest.mark.parametrize(
    ("text", "words"),
    [("", "--resume is empty"), ("file", "it is a file"), ("loop", "Give the folder"), ("none", "no such folder")],
)
def test_resume_of_what_is_no_folder(text: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")

    with pytest.raises(UsageError, match=words):
        read_saved(text)


def test_a_bad_file_in_every_place_is_named_and_kept_and_the_campaign_goes_on(campaign: Path, tmp_path: Path) -> None:
    """Everything at once: a cut finding, a foreign one, a folder, a loop, a cut pending case, no options, no counters."""
    found = sorted((campaign / "findings").glob("*.json"))
    WAYS["cut"](found[0])
    (campaign / "findings" / "folder.json").mkdir()
    (campaign / "findings" / "loop.json").symlink_to("loop.json")
    _text(found[1], LEAKY, "another")
    (campaign / "pending" / "cut.json").write_text("{")
    (campaign / "campaign.json").write_text("{")
    (campaign / "state.json").write_text("{")
    shutil.rmtree(campaign / "journal")
    (campaign / "status.json").unlink()
    (campaign / "status.json").mkdir()
    before = {path: path.read_bytes() for path in found}
    cut, foreign = before[found[0]], before[found[1]]
    done = pagefault("run", "--resume", campaign, "-t", LEAKY, "--cases", 1, "--json", cwd=tmp_path)
    result = done.json

    assert done.code == 1, done.err
    for name in (found[0].name, found[1].name, "folder.json", "loop.json", "cut.json"):
        (line,) = [line for line in done.err.splitlines() if name in line and "FOUND" not in line]
        assert "It is left out, and stays where it is" in line
    assert (campaign / "campaign.json.damaged").read_text() == (campaign / "state.json.damaged").read_text() == "{"
    assert (campaign / "status.json").is_file()
    kept = {path.read_bytes() for path in (campaign / "findings").iterdir() if path.is_file()}
    assert {cut, foreign, *(before[path] for path in found[2:])} <= kept, "nothing was written over"
    on_file = {finding["path"] for finding in result["targets"][LEAKY]["findings"]}
    assert {str(path) for path in found[2:]} <= on_file, "what was good is part of the outcome"


def test_a_mistyped_target_does_not_take_a_damaged_campaign_away(campaign: Path, tmp_path: Path) -> None:
    (campaign / "campaign.json").write_text("{")
    done = pagefault("run", "--resume", campaign, "-t", "oours", "--cases", 1, cwd=tmp_path)

    assert done.code == 2
    assert "near it: ours" in done.err
    assert list((campaign / "findings").glob("*.json"))
