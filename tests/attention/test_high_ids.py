"""Pools that reach beyond 2**31 elements: address space on a host, memory on a GPU, which may not have as much."""

import os

import pytest
import torch
from msgspec.structs import replace

from paged_ref.layouts import Layout
from properties.attention import buffers
from properties.attention.buffers import Geometry, NoRoom, _high_bytes, allocate
from properties.attention.cases import StoreCase
from properties.attention.generate import high_blocks
from properties.attention.judges import judge
from properties.attention.targets.plain import PlainTorch
from properties.attention.verdict import NOT_HIGH
from tests.attention.test_findings import BATCH

GIB = 2**30
POOL = Geometry(4, 16, 2, 64, torch.float16, Layout.FLASH)
STORE = high_blocks(StoreCase(slots=(5, -1, 0), num_blocks=3, block_size=4, pool_form="high_stride"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
def test_a_process_with_a_high_pool_can_be_forked(dtype: torch.dtype) -> None:
    buffer = _high_bytes(dtype.itemsize, "cpu").view(dtype)
    buffer[-1] = 1

    pid = os.fork()
    if pid == 0:
        os._exit(0 if buffer[-1] == 1 else 1)

    assert os.waitpid(pid, 0)[1] == 0


@pytest.mark.parametrize("free", [9 * GIB, 10 * GIB])
def test_a_gpu_without_room_is_told_before_anything_is_taken(free: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffers, "_HELD", {})
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (free, 16 * GIB))

    with pytest.raises(NoRoom, match=f"10 GiB for high block ids, and {free // GIB}.0 GiB are free"):
        allocate(POOL, "high_stride", "cuda", seed=0)


def test_a_process_that_was_faster_leaves_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object, **kwargs: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(buffers, "_HELD", {})
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (12 * GIB, 16 * GIB))
    monkeypatch.setattr(torch, "zeros", full)

    with pytest.raises(NoRoom, match="out of memory"):
        allocate(POOL, "high_stride", "cuda", seed=0)


def test_a_gpu_holds_one_memory_for_all_types(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one for each type a process took 30 GiB, and three had room where six have it now."""
    taken: list[int] = []

    def allocated(num_bytes: int, device: str) -> torch.Tensor:
        assert not buffers._HELD, "what is too small is given back first"
        taken.append(num_bytes // GIB)
        return torch.empty(num_bytes, dtype=torch.uint8, device="meta")

    monkeypatch.setattr(buffers, "_HELD", {})
    monkeypatch.setattr(buffers, "_allocated", allocated)
    sizes = [_high_bytes(itemsize, "cuda").numel() // GIB for itemsize in (2, 4, 2)]

    assert (taken, sizes) == ([10, 20], [10, 20, 10])


@pytest.mark.parametrize("what", ["read", "store"])
def test_what_there_is_no_room_for_is_left_out_and_counted(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object) -> None:
        raise NoRoom("10 GiB for high block ids, and 0.5 GiB are free")

    case = replace(BATCH, variation="high_stride") if what == "read" else STORE
    assert judge(PlainTorch(), case).counts[NOT_HIGH] == 0
    monkeypatch.setattr(buffers, "_high_bytes", full)
    verdict = judge(PlainTorch(), case)

    assert (verdict.findings, verdict.counts[NOT_HIGH]) == ([], 1)
    assert verdict.judged["READ-3" if what == "read" else "STORE-1"] == 0
