"""A workload on targets that answer wrongly, hang or die: a fault, an adapter's error, an empty run; never a clean verdict."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fuzz import workload_isolated
from fuzz.cli import app

TARGETS = Path(__file__).with_name("bad_workload_targets.py")


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """30 requests; every third goes on from the one before."""
    lines = []
    for number in range(30):
        ids = [number // 3 * 3] + ([1000 + number] if number % 3 else [])
        lines.append({"input_length": 512 * len(ids) - 100, "output_length": 40, "hash_ids": ids})
    path = tmp_path_factory.mktemp("workload") / "trace.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)) + "\n")
    return path


def invoke(trace: Path, target: str, *arguments: str) -> tuple[int, str, str]:
    names = [part for name in target.split() for part in ("-t", f"{TARGETS}:{name}")]
    options = [str(trace), *names, "--block-size", "64", "--live", "4", "--call-limit", "1s", *arguments]
    result = CliRunner().invoke(app, ["workload", *options], standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return result.return_value, result.stdout, " ".join(result.stderr.split())


@pytest.mark.parametrize(
    ("target", "clause", "says"),
    [
        ("NegativeBlocks", "ALLOC-1", "block 0 of its table is -7, outside the pool"),
        ("HoleInTheTable", "ALLOC-2", "block 0 of its table is -1: its tokens have no place"),
        ("BlocksOutside", "ALLOC-1", "outside the pool"),
        ("ShortTable", "ALLOC-2", "but only 1 block of 64"),
        ("TooFewSlots", "ALLOC-2", "but only 1 block of 64"),
        ("FreeListOutside", "ALLOC-1", "block -3 is free or cached, and outside the pool"),
        ("AlwaysRefuses", "ALLOC-6", "though no other request is live"),
        ("MovesBlocks", "CONTENT-1", "without a copy"),
        ("Hangs", "CRASH-2", "admit of r5: it did not return within 1 s"),
        ("Dies", "CRASH-2", "free of r5: the process was killed by SIGSEGV"),
        ("Exits", "CRASH-2", "free of r5: the process ended itself with exit status 0"),
        ("EngineTwice", "BATCH-2", "has two rows in one step"),
        ("EngineBeyond", "BATCH-2", "the step computes positions"),
        ("EngineIdle", "LIVE-1", "steps in a row were empty"),
        ("EngineRefusesFinish", "CRASH-1", "refused with"),
        ("EngineHangs", "CRASH-2", "step of 4 requests: it did not return within 1 s"),
    ],
)
def test_a_fault_ends_the_run_with_status_1(trace: Path, target: str, clause: str, says: str) -> None:
    code, text, _ = invoke(trace, target)

    assert code == 1
    assert f"FAULT  {clause}" in text
    assert says in text


def test_a_token_sampled_too_early_is_a_fault(tmp_path: Path) -> None:
    path = tmp_path / "long.jsonl"  # longer than the budget of a step: its first chunk must not sample
    path.write_text(json.dumps({"input_length": 9216, "output_length": 2, "hash_ids": list(range(18))}) + "\n")
    code, text, _ = invoke(path, "EngineSamplesEarly")

    assert code == 1
    assert "FAULT  BATCH-4" in text


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("NoNumber", "admit returned None"),
        ("TextNumber", "admit returned '0' (str)"),
        ("Truth", "a truth value"),
        ("HitsBeyondThePrompt", "cached tokens of 412"),
        ("NegativeHits", "returned -16 cached tokens of 412"),
        ("NoTable", "table returned None (NoneType)"),
        ("TextTable", "table returned"),
        ("NegativeSlots", "are not whole blocks of 64"),
        ("ScatteredSlots", "are not whole blocks of 64"),
        ("TextFreeList", "free_blocks returned 'none'"),
        ("RaisesSystemExit", "raised SystemExit"),
        ("HangsWhenMade", "open of"),
        ("EngineStrangers", "a row of 'nobody', which is not live"),
        ("EngineNoStep", "step returned None"),
        ("Killed", "--requests"),
    ],
)
def test_a_wrong_adapter_ends_the_run_with_status_2(trace: Path, target: str, says: str) -> None:
    code, text, errors = invoke(trace, target)

    assert code == 2
    assert says in errors
    assert "no fault" not in text
    assert "Traceback" not in errors


def test_a_call_that_keeps_the_interpreter_locked_is_ended(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workload_isolated, "GRACE_S", 0.5)
    code, text, _ = invoke(trace, "HangsInC")

    assert code == 1
    assert "admit of r5: it did not return within 1 s" in text


@pytest.mark.parametrize("target", ["Sound", "SlotsOnly"])
def test_a_sound_target_is_clean(trace: Path, target: str) -> None:
    code, text, _ = invoke(trace, target)

    assert code == 0
    assert "no fault" in text
    assert "equal to" in text


def test_what_other_targets_gave_is_told_beside_one_that_fails(trace: Path) -> None:
    code, text, errors = invoke(trace, "Sound NoNumber Prints")

    assert code == 2
    assert text.count("30 requests, block size 64") == 2
    assert "freed" not in text
    assert "NoNumber: verdict ADAPTER" in errors


def test_a_fault_decides_the_status_whatever_else_fails(trace: Path, tmp_path: Path) -> None:
    code, text, errors = invoke(trace, "Hangs NoNumber", "--plot", str(tmp_path / "no" / "such" / "folder.png"))

    assert code == 1
    assert "FAULT  CRASH-2" in text
    assert "--plot" in errors
    assert "NoNumber" in errors


def test_a_plot_that_fails_costs_no_figure(trace: Path, tmp_path: Path) -> None:
    code, text, errors = invoke(trace, "Sound", "--plot", str(tmp_path / "blocks.nonsense"))

    assert code == 2
    assert "hit" in text
    assert "blocks.nonsense" in errors


def test_a_pool_that_nothing_fits_into_proves_nothing(trace: Path) -> None:
    code, text, errors = invoke(trace, "Sound", "--blocks", "2")

    assert code == 2
    assert "nothing ran" in text
    assert "give --blocks at least" in errors


def test_an_engine_into_whose_pool_nothing_fits_proves_nothing(trace: Path) -> None:
    result = CliRunner().invoke(
        app, ["workload", str(trace), "-t", "ours-engine", "--block-size", "64", "--blocks", "2"], standalone_mode=False
    )

    assert result.return_value == 2
    assert "give --blocks at least" in " ".join(result.stderr.split())


def test_figures_as_json_say_why_a_target_gave_none(trace: Path) -> None:
    code, text, _ = invoke(trace, "Sound NoNumber", "--json")
    sound, failed = json.loads(text)

    assert code == 2
    assert sound["num_requests"] == 30
    assert "ADAPTER" in failed["error"]
