"""Backends: the same answers where they run, a clear refusal where they do not."""

import os
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from paged_impl.backends import NAMES, Backend, PoolShape, make_backend
from paged_impl.backends.flash_attn_backend import check_shape, window_of
from paged_impl.backends.torch_varlen import TorchVarlen
from paged_ref.parity import compare, expect

CPU = torch.device("cpu")
FLASH = PoolShape(2, 8, 256, 2, 64, torch.float16, torch.device("cuda"))
HERE = ["torch-gather", "triton"]


def backend(name: str) -> Backend:
    """A backend that runs on this machine, or a skip that says what is missing."""
    if name == "triton":
        pytest.importorskip("triton", reason="needs Triton: pip install 'pagefault[torch]'")
        if os.environ.get("TRITON_INTERPRET") != "1":
            pytest.skip("needs TRITON_INTERPRET=1 before Triton is imported")
    return make_backend(name, CPU)


def pools(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Keys and values of six blocks of three tokens, two heads of 16, all NaN."""
    return tuple(torch.full((6, 3, 2, 16), torch.nan, dtype=dtype) for _ in range(2))  # type: ignore[return-value]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", HERE)
def test_ragged_prefill_and_decode_on_poisoned_pools(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    made, (k_cache, v_cache) = backend(name), pools(dtype)
    tables, lengths = [[4, 1, 5], [0, 3, 2]], [7, 4]
    k, v = ([torch.randn(n, 2, 16).to(dtype) for n in lengths] for _ in range(2))
    slots = torch.tensor([tables[s][p // 3] * 3 + p % 3 for s in range(2) for p in range(lengths[s])] + [-1])
    nothing = torch.zeros(1, 2, 16, dtype=dtype)
    made.store(torch.cat([*k, nothing]), torch.cat([*v, nothing]), k_cache, v_cache, slots)
    q = torch.randn(7, 4, 16).to(dtype)
    block_table, context_lens = torch.tensor(tables, dtype=torch.int32), torch.tensor(lengths, dtype=torch.int32)
    sizes = {"scale": 0.25, "max_context_len": 7}

    bounds = torch.tensor([0, 5, 7], dtype=torch.int32)
    out = made.prefill(q, k_cache, v_cache, block_table, bounds, context_lens, max_query_len=5, **sizes)
    single = made.decode(q[[4, 6]], k_cache, v_cache, block_table, context_lens, **sizes)

    for s, rows in enumerate((slice(0, 5), slice(5, 7))):
        assert compare(out[rows], expect(q[rows], k[s], v[s], scale=0.25)).passed
        last = slice(rows.stop - 1, rows.stop)
        assert compare(single[s : s + 1], expect(q[last], k[s], v[s], scale=0.25)).passed


@pytest.mark.parametrize("name", HERE)
def test_an_empty_row_gives_zeros(name: str) -> None:
    made, (k_cache, v_cache) = backend(name), pools()
    k, v = torch.randn(2, 2, 16), torch.randn(2, 2, 16)
    made.store(k, v, k_cache, v_cache, torch.tensor([0, 1]))
    q = torch.randn(2, 2, 16)

    out = made.decode(
        q, k_cache, v_cache, torch.tensor([[5], [0]], dtype=torch.int32), torch.tensor([0, 2], dtype=torch.int32),
        scale=0.25, max_context_len=2,
    )  # fmt: skip

    assert bool((out[0] == 0).all())
    assert compare(out[1:], expect(q[1:], k, v, scale=0.25)).passed


@pytest.mark.parametrize("name", HERE)
def test_copies_read_before_they_write(name: str) -> None:
    made = backend(name)
    pool = torch.arange(6.0)[None, None, :, None, None, None].expand(2, 3, 6, 2, 1, 16).clone()

    made.copy_blocks(pool, pool, torch.tensor([0, 1]), torch.tensor([1, 2]))

    assert pool[1, 2, :, 0, 0, 0].tolist() == [0.0, 0.0, 1.0, 3.0, 4.0, 5.0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"block_size": 16},
            r"block_size=16: backend='flash-attn' reads pages of 256 tokens only\. Set block_size=256",
        ),
        ({"device": CPU}, "device=cpu: backend='flash-attn' runs on CUDA only"),
        ({"dtype": torch.float32}, r"dtype=torch\.float32: backend='flash-attn' takes float16 and bfloat16"),
        ({"head_dim": 20}, "head_dim=20: backend='flash-attn' takes multiples of 8 up to 256"),
    ],
)
def test_flash_attn_says_what_it_takes(change: dict[str, object], message: str) -> None:
    check_shape(FLASH)
    with pytest.raises(ValueError, match=message):
        check_shape(replace(FLASH, **change))  # type: ignore[arg-type]


def test_a_missing_library_is_named_with_the_command_that_brings_it() -> None:
    try:
        import flash_attn  # noqa: F401
    except ImportError:
        with pytest.raises(ValueError, match="pip install flash-attn"):
            make_backend("flash-attn", CPU)
    else:
        assert make_backend("flash-attn", CPU).name == "flash-attn"


def test_a_window_counts_the_query_itself() -> None:
    assert (window_of(None), window_of(1), window_of(4)) == ((-1, -1), (0, 0), (3, 0))


def test_torch_varlen_refuses_a_cpu_with_the_reason() -> None:
    with pytest.raises(ValueError, match=r"device=cpu: .* a CPU build has none\. Use 'torch-gather'"):
        TorchVarlen().check(replace(FLASH, device=CPU))


def test_auto_needs_nothing_on_a_cpu() -> None:
    assert make_backend("auto", CPU).name == "torch-gather"
    assert set(NAMES) == {"triton", "torch-gather", "flash-attn", "torch-varlen"}
