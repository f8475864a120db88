"""Negative controls: kernels with one line changed into a fault known from the field; the tests' check must reject each."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch

from paged_impl import kernels
from tests.kernels import plain

FOLDER = Path(kernels.__file__).parent
# fault -> (module, right line, broken line). Sources: FA#1745, vllm#47305 (values not masked); vLLM's unmasked table load;
# vllm#47671 (32-bit offsets); pegainfer#21 (empty part); sglang#21775's splits, one dropped; a base-2 LSE handed on.
FAULTS = {
    "values not masked": ("decode", "load_tile(v_ptr, v_offsets, visible,", "load_tile(v_ptr, v_offsets, visible | True,"),
    "keys before the window": ("decode", "visible &= position >= length - WINDOW", "visible &= position >= 0"),
    "last token dropped": ("decode", "visible = position < length", "visible = position < length - 1"),
    "empty part is NaN": (
        "decode", 'floor = tl.where(m_new == float("-inf"), 0.0, m_new)  # parts', "floor = m_new  # parts",
    ),
    "one part dropped": ("decode", "& (part < num_splits)[None, :]", "& (part < num_splits - 1)[None, :]"),
    "merged one too early": ("decode", '"acq_rel") == num_splits - 1', '"acq_rel") == num_splits - 2'),
    "counter left as it is": ("decode", "tl.store(counter, 0)", "tl.store(counter, num_splits)"),
    "wrong KV head": ("decode", "kv_head = seq.to(tl.int64), (pair // HEAD_TILES)", "kv_head = seq.to(tl.int64), (pair * 0)"),
    "base-2 LSE": ("decode", "head, lse * 0.6931471805599453", "head, lse * 1.0"),
    "prefill sees the future": ("prefill", "key_position[None, :] <= position", "key_position[None, :] <= 1 + position"),
    "prefill values not masked": ("prefill", "load_tile(v_ptr, v_offsets, owned,", "load_tile(v_ptr, v_offsets, owned | True,"),
}  # fmt: skip


def load_broken(tmp_path: Path, fault: str) -> ModuleType:
    module, right, broken = FAULTS[fault]
    text = (FOLDER / f"{module}.py").read_text()
    assert text.count(right) == 1, f"{module}.py has {text.count(right)} times: {right}"
    path = tmp_path / "broken.py"
    path.write_text(text.replace(right, broken))
    spec = importlib.util.spec_from_file_location("broken", path)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def rejects(run: Callable[[], None]) -> bool:
    try:
        run()
    except AssertionError:
        return True
    return False


def check_decode(decode: Callable[..., tuple[torch.Tensor, torch.Tensor]], device: str) -> None:
    """The check of test_decode.py: ragged lengths with an empty row, cut and whole, with a window and without."""
    batch = plain.make_batch([1, 70, 0, 33], "4/2/32", 16, device=device)
    workspace = decode.__globals__["Workspace"]()  # a broken module has a class of its own
    for num_splits, window in ((3, None), (1, None), (2, 9), (3, None)):
        out, lse = decode(
            *batch.decode_args(),
            scale=batch.scale,
            num_splits=num_splits,
            window=window,
            return_lse=True,
            workspace=workspace,
        )
        expected, expected_lse = plain.answer(batch, window)
        plain.assert_close(out, expected)
        plain.assert_close(lse, expected_lse, plain.LARGEST_LSE_ERROR)


def check_prefill(prefill: Callable[..., torch.Tensor], device: str) -> None:
    batch = plain.make_batch([40, 9], "4/2/32", 16, query_lens=[40, 3], device=device)
    plain.assert_close(prefill(*batch.prefill_args(), scale=batch.scale, max_query_len=40), plain.answer(batch)[0])


def test_the_right_kernels_pass(device: str) -> None:
    check_decode(kernels.decode, device)  # type: ignore[arg-type]
    check_prefill(kernels.prefill, device)  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
@pytest.mark.parametrize("fault", FAULTS)
def test_a_broken_kernel_is_rejected(fault: str, tmp_path: Path, device: str) -> None:
    broken = load_broken(tmp_path, fault)

    if FAULTS[fault][0] == "decode":
        assert rejects(lambda: check_decode(broken.decode, device))
    else:
        assert rejects(lambda: check_prefill(broken.prefill, device))
