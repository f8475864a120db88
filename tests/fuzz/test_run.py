"""Campaigns, as processes: findings, exit codes, what lies in the folder."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from properties.case import fingerprint, read
from tests.fuzz.helpers import Finished, bad, pagefault


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Finished]:
    """A campaign on our own manager."""
    cwd = tmp_path_factory.mktemp("clean")
    return cwd, pagefault("run", "-t", "ours", "--time", "3s", "--seed", 5, "--json", cwd=cwd)


def test_a_sound_target_is_clean(clean: tuple[Path, Finished]) -> None:
    cwd, done = clean
    result = done.json["targets"]["ours"]

    assert done.code == 0, done.err
    assert result["findings"] == []
    assert result["unreached"] == []
    assert min(result["judged"].values()) > 0
    assert result["succeeded"] >= 0.5
    assert (cwd / "pagefault-out" / "latest" / "campaign.json").exists()


def test_the_folder_tells_the_same_as_the_command(clean: tuple[Path, Finished]) -> None:
    cwd, done = clean
    folder = cwd / done.json["folder"]
    status = json.loads((folder / "status.json").read_bytes())
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]

    assert status["targets"]["ours"]["operations"] == done.json["targets"]["ours"]["operations"]
    assert [events[0]["event"], events[-1]["event"]] == ["started", "finished"]


def test_states_reached_are_saved_and_run_first_next_time(clean: tuple[Path, Finished]) -> None:
    cwd, done = clean
    saved = list((cwd / "pagefault-out" / "corpus" / "ours").glob("*.json"))
    again = pagefault("run", "-t", "ours", "--cases", 1, "--seed", 6, "--json", cwd=cwd)

    assert len(saved) >= len(done.json["targets"]["ours"]["marks"]) / 2
    assert again.json["targets"]["ours"]["saved_traces"] == len(saved)
    assert again.json["targets"]["ours"]["cases"] == 1
    assert all(again.json["targets"]["ours"]["marks"].values()), "one new case and the corpus reach every state"


def test_the_same_seed_runs_the_same_cases(tmp_path: Path) -> None:
    keys = ("cases", "operations", "succeeded", "judged", "marks")
    runs = []
    for name, workers in (("a", 1), ("b", 2)):
        done = pagefault(
            "run",
            "-t",
            "ours",
            "--cases",
            150,
            "--seed",
            9,
            "--workers",
            workers,
            "--out",
            name,
            "--json",
            cwd=tmp_path,
        )
        runs.append({key: done.json["targets"]["ours"][key] for key in keys})

    assert runs[0] == runs[1]
    assert runs[0]["cases"] == 150


def test_a_leak_is_found_minimised_and_filed(leaky: tuple[Path, Finished]) -> None:
    cwd, done = leaky
    findings = done.json["targets"][bad("Leaky")]["findings"]
    refs = [finding for finding in findings if finding["property"] == "REF-1"]

    assert done.code == 1
    assert refs
    assert min(finding["steps"] for finding in refs) <= 4, (
        "admit, free, admit, free; or an admission and the closing step"
    )
    for finding in findings:
        case = read(cwd / finding["path"])
        assert fingerprint(case) == finding["fingerprint"]
        assert not finding["flaky"]
        assert finding["replay"] == f"pagefault repro {finding['path']}"


def test_what_was_found_fails_in_a_fresh_process(leaky: tuple[Path, Finished]) -> None:
    cwd, done = leaky
    paths = [finding["path"] for finding in done.json["targets"][bad("Leaky")]["findings"]]
    repro = pagefault("repro", *paths, "--json", cwd=cwd)

    assert repro.code == 1
    assert {result["status"] for result in repro.json} == {"FAILED"}
    assert len(repro.json) == len(paths) > 0


def test_an_earlier_finding_does_not_end_later_traces(leaky: tuple[Path, Finished]) -> None:
    found = {finding["property"] for finding in leaky[1].json["targets"][bad("Leaky")]["findings"]}

    assert {"REF-1", "ALLOC-5"} <= found


def test_fail_fast_stops_at_the_first_finding(tmp_path: Path) -> None:
    done = pagefault("run", "-t", bad("Leaky"), "--time", "60s", "--fail-fast", "--out", "o", "--json", cwd=tmp_path)

    assert done.code == 1
    assert done.json["stopped"] == "--fail-fast"
    assert done.json["elapsed_s"] < 30


def test_a_verdict_that_reached_nothing_is_none(tmp_path: Path) -> None:
    done = pagefault("run", "-t", "ours", "--cases", 1, "--seed", 1, "--out", "o", "--json", cwd=tmp_path)

    assert done.code == 2
    assert "never reached" in " ".join(done.json["targets"]["ours"]["unreached"])


def test_a_folder_with_a_campaign_is_not_overwritten(leaky: tuple[Path, Finished]) -> None:
    done = pagefault("run", "-t", "ours", "--time", "1s", "--out", "out", cwd=leaky[0])

    assert done.code == 2
    assert "out holds a campaign already: continue it with --resume, or give another --out" in done.err


def test_a_default_target_that_is_not_here_is_skipped_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('no torch on this machine')")
    done = pagefault(
        "run", "--time", "2s", "--seed", 1, "--json", cwd=tmp_path, PYTHONPATH=f"{tmp_path}:{Path(__file__).parents[2]}"
    )

    assert "torch-flex is skipped: no torch on this machine" in done.err
    assert done.json["targets"]["torch-flex"]["state"] == "skipped"
    assert done.json["targets"]["ours"]["cases"] > 0
    others = [row["unreached"] for row in done.json["targets"].values()]
    assert done.code == (2 if any(others) else 0), "a target that is skipped does not decide"


def _ledger(path: Path, entries: list[dict[str, object]]) -> Path:
    path.write_bytes(msgspec.json.encode(entries))
    return path


def test_known_findings_are_counted_and_break_nothing(tmp_path: Path) -> None:
    target = bad("Boasts")
    first = pagefault("run", "-t", target, "--cases", 150, "--seed", 1, "--out", "a", "--json", cwd=tmp_path)
    findings = first.json["targets"][target]["findings"]
    prints = sorted({finding["fingerprint"] for finding in findings})
    entry = {"target": target, "property": "ALLOC-4P", "tracker": "issue 7", "note": "boasts", "versions": ["0.1.0"]}
    unused = {**entry, "property": "HASH-1", "fingerprints": ["0" * 16]}
    ledger = _ledger(tmp_path / "l.json", [{**entry, "fingerprints": prints}, unused])
    second = pagefault(
        "run", "-t", target, "--cases", 150, "--seed", 2, "--out", "b", "--known-failures", ledger, cwd=tmp_path
    )
    other = _ledger(tmp_path / "m.json", [{**entry, "fingerprints": prints, "versions": ["9.9"]}])
    third = pagefault(
        "run", "-t", target, "--cases", 150, "--seed", 2, "--out", "c", "--known-failures", other, cwd=tmp_path
    )

    assert first.code == 1
    assert {finding["property"] for finding in findings} == {"ALLOC-4P"}
    assert second.code == 0, second.out
    assert "tracker: issue 7" in second.out
    assert "known: " in second.out
    assert "(the predicted change of the free count is the actual one), in " in second.out
    assert "\nwhat:    boasts\n" in second.out
    assert "(boasts; tracker: issue 7)" in second.err
    assert f"known failure not met: {target} HASH-1" in second.out
    assert third.code == 1, "in another version it may be another fault"


def test_as_many_cases_are_run_as_were_asked_for_whatever_dies_or_was_saved(tmp_path: Path) -> None:
    """Saved traces count apart; a worker that dies every second case neither swallows one nor runs one twice."""
    first = pagefault("run", "-t", "ours", "--cases", 70, "--seed", 1, "--workers", 2, "--json", cwd=tmp_path)
    again = pagefault("run", "-t", "ours", "--cases", 20, "--seed", 2, "--json", cwd=tmp_path)
    dies = pagefault("run", "-t", bad("Segfaults"), "--cases", 20, "--seed", 1, "--json", cwd=tmp_path)

    assert [done.json["targets"]["ours"]["cases"] for done in (first, again)] == [70, 20]
    assert first.json["targets"]["ours"]["saved_traces"] == 0
    assert again.json["targets"]["ours"]["saved_traces"] > 0
    (target,) = dies.json["targets"].values()
    assert target["cases"] == 20
    assert target["restarts"] > 5
    (crash,) = [row for row in target["findings"] if row["property"] == "CRASH-2"]
    assert crash["first_breach"] == {"property": "CRASH-2", "step": crash["steps"]}
    assert target["state"] == "done", "each death is the target's, and none of them the end of the campaign"


def test_time_that_calls_hang_counts(tmp_path: Path) -> None:
    """Operations a second were millions once: what a hung worker had done counted, and its time did not."""
    done = pagefault("run", "-t", bad("Hangs"), "--time", "1.5s", "--call-limit", "0.2s", "--seed", 1, cwd=tmp_path)
    (row,) = [line.split() for line in done.out.splitlines() if line.startswith("bad_targets-Hangs ")]

    assert 1 < float(row[3].replace(",", "")) < 5000
    assert " 0," not in next(line for line in done.out.splitlines() if " judged: " in line)
    assert "never judged in " in done.out or "judged fewer than" not in done.out
