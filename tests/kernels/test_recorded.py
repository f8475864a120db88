"""Compiled and interpreted kernels agree: what runs here is compared with what the interpreter once gave.

On a CPU this holds that the recording is the present kernels'; on a GPU it compares three ways, the reference being the
centre of the limits.
"""

from dataclasses import replace

import pytest
import torch

from paged_ref.dense import AttentionResult
from paged_ref.parity import compare, compare_lse
from properties.attention.cases import rows_of
from properties.attention.contents import expect_row, make_contents
from tests.kernels.recorded import NUM_GENERATED, Recorded, answer, read_recording, recorded_cases

CASES = recorded_cases()


@pytest.fixture(scope="module")
def recording() -> dict[str, Recorded]:
    return read_recording()


def test_the_recording_is_complete(recording: dict[str, Recorded]) -> None:
    assert list(recording) == list(CASES)
    generated = [CASES[f"generated-{seed}"] for seed in range(NUM_GENERATED)]
    assert len({(case.operation, case.dtype, case.block_size, case.window) for case in generated}) >= 8


@pytest.mark.parametrize("name", CASES)
def test_agrees_with_the_interpreter(name: str, device: str, recording: dict[str, Recorded]) -> None:
    """Within the limits of READ-1 around the recorded output, and around the reference itself."""
    case, recorded = CASES[name], recording[name]
    judge, output, digest = answer(case, device)

    assert digest == recorded.digest, (
        "other inputs than when it was recorded: torch's random numbers changed; record anew"
    )
    assert output.lse is not None
    for row, rows in rows_of(case):
        reference = judge.expected[row.key]
        centre = AttentionResult(recorded.out_THD[rows].double(), recorded.lse_TH[rows].double())
        for expected in (reference, replace(reference, oracle=centre)):
            assert compare(output.out[rows], expected).passed
            assert compare_lse(output.lse[rows], expected).passed


def test_another_answer_is_noticed(recording: dict[str, Recorded]) -> None:
    """The limits reject zeros and a neighbour's head in every row that has more than one token."""
    for name, recorded in recording.items():
        case = CASES[name]
        contents = make_contents(case)
        for row, rows in rows_of(case):
            if row.context_len < 2 or not row.query_len:
                continue
            expected, out = expect_row(case, contents[row.key], tf32=False), recorded.out_THD[rows]
            assert not compare(torch.zeros_like(out), expected).passed, name
            # Else the heads of a group see one weighted mean, or one token alone.
            if case.values not in ("equal", "steep") and case.window != 1:
                assert not compare(out.roll(1, 1), expected).passed, name
