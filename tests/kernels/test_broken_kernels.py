"""Negative controls: kernels with one line changed into a fault known from the field; the tests' check must reject each."""

import importlib.util
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
import triton

from paged_impl import kernels
from properties.attention.guarding import guard
from tests.kernels import plain

FOLDER = Path(kernels.__file__).parent
PAGES = "paged_impl.kernels.pages"
# fault -> (module, right line, broken line). Sources: FA#1745, vllm#47305 (values not masked); pegainfer#21 (empty part);
# sglang#21775's splits, one dropped; a base-2 LSE handed on.
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
    "prefill sees the future beside a window": ("prefill", ".to(tl.uint32, bitcast=True) < WINDOW", " < WINDOW"),
    "prefill values not masked": ("prefill", "load_tile(v_ptr, v_offsets, owned,", "load_tile(v_ptr, v_offsets, owned | True,"),
}  # fmt: skip
# The same for the lookup of pages, which decode and prefill share: vLLM's unmasked table load; vllm#47671 (32-bit offsets).
LOOKUP_FAULTS = {
    "table not masked": ("tl.load(pointers, mask=owned, other=0)", "tl.load(pointers)"),
    "32-bit offsets, a page for each token": ("return pages.to(tl.int64)", "return pages"),
    "32-bit offsets, one page a tile": ("start // BLOCK_SIZE).to(tl.int64)", "start // BLOCK_SIZE)"),
}


def load_broken(tmp_path: Path, fault: str) -> ModuleType:
    module, right, broken = FAULTS[fault]
    return load_changed(tmp_path, module, right, broken)


def load_changed(tmp_path: Path, module: str, right: str, broken: str) -> ModuleType:
    text = (FOLDER / f"{module}.py").read_text()
    assert text.count(right) == 1, f"{module}.py has {text.count(right)} times: {right}"
    path = tmp_path / f"broken_{module}.py"
    path.write_text(text.replace(right, broken))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def rejects(run: Callable[[], None]) -> bool:
    """By a wrong answer, or by the guard on what a kernel loads."""
    try:
        run()
    except AssertionError:
        return True
    except Exception as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, guard.KernelFault):
            cause = cause.__cause__
        if cause is None:
            raise
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
    for window in (None, 9):
        out = prefill(*batch.prefill_args(), scale=batch.scale, max_query_len=40, window=window)
        plain.assert_close(out, plain.answer(batch, window)[0])


def check_lookup(module: ModuleType, fault: str, device: str) -> None:
    """The checks of test_reads.py and test_far_apart.py: a table whose memory ends with it; blocks far apart."""
    block_size = 256 if fault.endswith("one page a tile") else 24
    batch = plain.make_batch([48], "4/2/32", block_size, torch.float16, device=device)
    if fault == "table not masked":
        batch = replace(batch, table=batch.table[:, :2].clone())
        with np.errstate(all="ignore"), guard.guarded():
            out = read_by(module, batch)
    else:
        batch = last_blocks_used(batch)
        far = replace(batch, k_cache=plain.far_apart(batch.k_cache, 0), v_cache=plain.far_apart(batch.v_cache, 0))
        out = read_by(module, far)
    plain.assert_close(out, plain.answer(batch)[0])


def last_blocks_used(batch: plain.Batch) -> plain.Batch:
    """The sequence's blocks exchanged with the pool's last ones."""
    count = -(-int(batch.lens[0]) // batch.k_cache.shape[1])
    order = torch.arange(len(batch.k_cache), device=batch.q.device)
    mine = batch.table[0, :count].long()
    others = order[~torch.isin(order, mine)]
    place = torch.cat([others, mine])
    table = batch.table.clone()
    table[0, :count] = order[-count:].int()
    return replace(batch, k_cache=batch.k_cache[place], v_cache=batch.v_cache[place], table=table)


def read_by(module: ModuleType, batch: plain.Batch) -> torch.Tensor:
    if hasattr(module, "prefill"):
        return module.prefill(*batch.prefill_args(), scale=batch.scale, max_query_len=1)  # type: ignore[no-any-return]
    return module.decode(*batch.decode_args(), scale=batch.scale)  # type: ignore[no-any-return]


def test_the_right_kernels_pass(device: str) -> None:
    check_decode(kernels.decode, device)  # type: ignore[arg-type]
    check_prefill(kernels.prefill, device)  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, of NaN and of 32-bit offsets
@pytest.mark.parametrize("fault", [None, *LOOKUP_FAULTS])
@pytest.mark.parametrize("reader", ["decode", "prefill"])
def test_a_broken_lookup_is_rejected(
    fault: str | None, reader: str, tmp_path: Path, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None: the right one passes all checks."""
    guarded = triton.knobs.runtime.interpret
    checks = [name for name in LOOKUP_FAULTS if guarded or name != "table not masked"]
    if fault is not None and fault not in checks:
        pytest.skip("only the interpreter's guard sees a load that is not used")
    right, broken = ("", "") if fault is None else LOOKUP_FAULTS[fault]
    pages = load_changed(tmp_path, "pages", right, broken) if fault else importlib.import_module(PAGES)
    monkeypatch.setitem(sys.modules, "pages_here", pages)
    module = load_changed(tmp_path, reader, f"from {PAGES} import", "from pages_here import")

    if fault is None:
        for name in checks:
            check_lookup(module, name, device)
    else:
        assert rejects(lambda: check_lookup(module, fault, device))


@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
@pytest.mark.parametrize("fault", FAULTS)
def test_a_broken_kernel_is_rejected(fault: str, tmp_path: Path, device: str) -> None:
    broken = load_broken(tmp_path, fault)

    if FAULTS[fault][0] == "decode":
        assert rejects(lambda: check_decode(broken.decode, device))
    else:
        assert rejects(lambda: check_prefill(broken.prefill, device))
