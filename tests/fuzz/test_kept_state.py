"""Kernels that keep something from call to call: a finding whose trace holds both calls, and words that say so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from fuzz import child, jobs, messages
from fuzz.shrinking import KEPT
from properties.attention.cases import AttentionSetting, ReadCase
from properties.attention.spec import SPEC
from properties.attention.targets.plain import PlainTorch
from properties.blocks.opening import NOT_THE_ADAPTER
from properties.case import Case, decode, encode
from properties.drive import drive
from properties.targets import Target
from properties.wording import UNREPEATED
from tests.attention.test_findings import BATCH
from tests.fuzz.helpers import pagefault
from tests.fuzz.kept_targets import WrongBehindAPrefill

LIMIT_S = 20.0


def _case(operation: ReadCase, property_id: str, message: str = "") -> Case:
    setting = AttentionSetting(device="cpu")
    return Case(
        level="attention", target="mine", property=property_id, message=message, geometry=setting, operations=(operation,)
    )  # fmt: skip


def perform(name: str, command: messages.Command) -> messages.Message:
    """A job in a process that has the target."""
    worker = child.start(f"{Path(__file__).with_name('kept_targets.py')}:{name}", "cpu")
    try:
        return child.ask(worker, command, 120.0)
    finally:
        worker.stop()


def _seed_with_a_prefill() -> int:
    """Of a trace with a prefill of several rows, drawn for the right target so that nothing is kept in this process."""
    for seed in range(100):
        _, verdict = drive(SPEC, PlainTorch, seed)
        for operation in verdict.applied:
            if isinstance(operation, ReadCase) and operation.operation == "prefill" and len(operation.rows) > 1:
                return seed
    raise AssertionError("none of 100 traces")


def test_what_fails_behind_an_earlier_case_becomes_a_trace_with_both() -> None:
    target = "WrongBehindAPrefill"
    preceding = ((_seed_with_a_prefill(), 6),)
    case = _case(BATCH, "READ-1")

    alone = perform(target, messages.Confirm(case=encode(case).decode(), limit_s=LIMIT_S))
    behind = perform(target, messages.Confirm(case=encode(case).decode(), limit_s=LIMIT_S, preceding=preceding))

    assert isinstance(alone, messages.Confirmed)
    assert isinstance(behind, messages.Confirmed)
    assert (alone.how, behind.how) == ("gone", "failed")
    assert len(decode(behind.case.encode()).operations) > 1

    command = messages.Minimise(case=behind.case, limit_s=LIMIT_S, seconds=40.0, isolated=True)
    smaller = perform(target, command)

    assert isinstance(smaller, messages.Smaller)
    found = decode(smaller.case.encode())
    assert [operation.operation for operation in found.operations] == ["prefill", "decode"]
    assert KEPT.format("last") in found.message


def test_earlier_cases_are_not_tried_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with a kernel that is slow and loses a race in one call of three: minutes for each clause that it broke."""
    case, preceding = _case(BATCH, "READ-1"), ((_seed_with_a_prefill(), 6),)
    target = Target("mine", "attention", WrongBehindAPrefill)
    monkeypatch.setattr(jobs, "LEAK_SECONDS", 0.0)

    confirmed = jobs.confirm(
        target, case, messages.Confirm(case=encode(case).decode(), limit_s=LIMIT_S, preceding=preceding)
    )

    assert (confirmed.how, confirmed.case) == ("gone", "")


@pytest.mark.parametrize(
    ("target", "variation", "property_id", "kept"),
    [
        ("KeepsTables", "move", "READ-3", True),
        ("Int32Offsets", "high_stride", "READ-3", False),
        ("WrongWithoutLse", "without_lse", "READ-4", False),
        ("WrongOnce", "move", "READ-1", False),
    ],
)
def test_whether_the_second_call_is_wrong_by_itself_is_said(
    target: str, variation: Any, property_id: str, kept: bool
) -> None:
    case = _case(replace(BATCH, variation=variation), property_id)
    command = messages.Minimise(case=encode(case).decode(), limit_s=LIMIT_S, seconds=4.0)
    smaller = perform(target, command)

    assert isinstance(smaller, messages.Smaller)
    found = decode(smaller.case.encode())
    assert found.operations[0].variation == variation
    assert (KEPT.format("second") in found.message) == kept
    assert (UNREPEATED in found.message) == (target == "WrongOnce")


def test_what_leaks_from_case_to_case_is_told_with_both_made_as_short_as_they_go(tmp_path: Path) -> None:
    name = f"{Path(__file__).with_name('bad_targets.py')}:SharesWidth"
    done = pagefault("run", "-t", name, "--time", "8s", "--seed", 3, "--out", "o", "--json", cwd=tmp_path)
    reason = done.json["targets"][name]["reason"]

    assert (done.code, done.json["targets"][name]["state"]) == (2, "adapter")
    assert "alone it passes, behind 1 earlier case it fails: sequence " in reason
    assert NOT_THE_ADAPTER in reason
    told = reason.partition("\n\n")[2].splitlines()
    assert [line.partition(" (")[0].strip() for line in told if not line.startswith("  ")] == [
        "an earlier system",
        "then a new one",
    ]
    assert len(told) <= 6
    assert "<- breaks " in told[-1]
