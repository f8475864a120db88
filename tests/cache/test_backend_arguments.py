"""What a backend is given directly, with no cache in front of it: refused by name, value and limit, before it writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from paged_impl.backends import Backend
from paged_impl.backends.flash_attn_backend import FlashAttention
from paged_impl.backends.torch_gather import TorchGather
from paged_impl.backends.torch_varlen import TorchVarlen
from paged_impl.cache import PagedKVCache
from tests.cache.test_backends import backend

Given = dict[str, Any]


def ints(*values: object) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def arguments() -> Given:
    """Two sequences of 5 and 8 tokens in pages of 4 of a pool of 6, 4 query heads on 2 of 32; two new tokens."""
    torch.manual_seed(0)
    return {
        "k_cache": torch.randn(6, 4, 2, 32), "v_cache": torch.randn(6, 4, 2, 32),
        "q": torch.randn(2, 4, 32), "block_table": ints([0, 1], [2, 3]), "context_lens": ints(5, 8),
        "cu_seqlens_q": ints(0, 1, 2), "key": torch.randn(2, 2, 32), "value": torch.randn(2, 2, 32),
        "slot_mapping": torch.tensor([0, 5]),
        "scale": 0.2, "window": None, "max_context_len": 8, "max_query_len": 1,
        "source": torch.randn(2, 1, 6, 4, 2, 32), "destination": torch.randn(2, 1, 5, 4, 2, 32),
        "src_blocks": torch.tensor([5, 1]), "dst_blocks": torch.tensor([0, 4]),
    }  # fmt: skip


TAKES = {
    "store": ("key", "value", "k_cache", "v_cache", "slot_mapping"),
    "decode": ("q", "k_cache", "v_cache", "block_table", "context_lens"),
    "prefill": ("q", "k_cache", "v_cache", "block_table", "cu_seqlens_q", "context_lens"),
    "copy_blocks": ("source", "destination", "src_blocks", "dst_blocks"),
}
NAMED = {
    "store": (),
    "decode": ("scale", "max_context_len", "window"),
    "prefill": ("scale", "max_context_len", "window", "max_query_len"),
    "copy_blocks": (),
}


def call(made: Backend, operation: str, given: Given) -> object:
    named = {name: given[name] for name in NAMED[operation]}
    return getattr(made, operation)(*[given[name] for name in TAKES[operation]], **named)


Change = Callable[[Any], Any]
BAD: list[tuple[str, Change, str]] = [
    ("q", lambda q: q.half(), "dtype=torch.float32 differs from torch.float16"),
    ("q", lambda q: q.int(), "q.dtype=torch.int32"),
    ("q", lambda q: q[0], r"q has 2 dimensions \(4, 32\); expected 3"),
    ("q", lambda q: q[:, :3], "q has 3 query heads, not a multiple of the 2 KV heads"),
    ("q", lambda q: q[..., :16], "k_cache head dim 32 differs from q head dim 16"),
    ("q", lambda q: q.to("meta"), "k_cache.device=cpu differs from meta"),
    ("q", lambda q: torch.stack([q, q], -1)[..., 0], r"q.stride\(-1\)=2; the last dimension must be contiguous"),
    ("k_cache", lambda k: None, "k_cache=None; expected a tensor"),
    ("k_cache", lambda k: k[0], "k_cache has 3 dimensions"),
    ("k_cache", lambda k: k.double(), "k_cache.dtype=torch.float64 differs from torch.float32"),
    ("v_cache", lambda v: v[:5], r"v_cache.shape=\(5, 4, 2, 32\)"),
    ("block_table", lambda t: t[:, :1].contiguous(), r"context_lens\[1\]=8 exceeds block_table: 1 blocks of 4"),
    ("block_table", lambda t: ints([0, 99], [2, 3]), r"block_table\[0, 1\]=99 .*the pool has blocks 0 to 5"),
    ("block_table", lambda t: ints([0, 1], [-1, 3]), r"block_table\[1, 0\]=-1 .*the pool has blocks 0 to 5"),
    ("block_table", lambda t: t.long(), "block_table.dtype=torch.int64; expected int32"),
    ("context_lens", lambda c: ints(5, 9), r"context_lens\[1\]=9 exceeds block_table"),
    ("context_lens", lambda c: ints(-1, 8), r"context_lens\[0\]=-1; a length is at least 0"),
    ("context_lens", lambda c: c[:1], "context_lens has 1 entries for 2 sequences"),
    ("cu_seqlens_q", lambda c: ints(0, 2, 1), "cu_seqlens_q falls by 1 at sequence 1"),
    ("cu_seqlens_q", lambda c: ints(0, 1, 3), r"cu_seqlens_q\[-1\]=3 exceeds the 2 rows of q"),
    ("max_query_len", lambda n: 0, "1 queries, more than max_query_len=0"),
    ("max_context_len", lambda n: 7, "max_context_len=7; context_lens has 8"),
    ("max_context_len", lambda n: None, "max_context_len=None: expected a whole number"),
    ("scale", lambda s: float("nan"), "scale=nan"),
    ("window", lambda w: 0, "window=0; expected None or at least 1"),
    ("key", lambda k: k.half(), "dtype=torch.float32 differs from torch.float16"),
    ("key", lambda k: k[:1], r"value.shape=\(2, 2, 32\) differs from key.shape=\(1, 2, 32\)"),
    ("value", lambda v: v.to("meta"), "value.device=meta differs from cpu"),
    ("slot_mapping", lambda s: torch.tensor([0, 24]), r"slot_mapping\[1\]=24; expected -1 \(skip\) or a slot from 0 to 23"),
    ("slot_mapping", lambda s: torch.tensor([-2, 0]), r"slot_mapping\[0\]=-2; expected -1 \(skip\) or a slot"),
    ("slot_mapping", lambda s: s[:1], "slot_mapping has 1 entries for 2 tokens"),
    ("slot_mapping", lambda s: s.float(), "slot_mapping.dtype=torch.float32; expected int32 or int64"),
    ("src_blocks", lambda b: torch.tensor([6, 1]), r"src_blocks\[0\]=6; the pool has blocks 0 to 5"),
    ("dst_blocks", lambda b: torch.tensor([0, 5]), r"dst_blocks\[1\]=5; the pool has blocks 0 to 4"),
    ("dst_blocks", lambda b: torch.tensor([0, -1]), r"dst_blocks\[1\]=-1; the pool"),
    ("dst_blocks", lambda b: torch.tensor([3, 3]), r"dst_blocks=\[3, 3\]; no block can hold two"),
    ("dst_blocks", lambda b: b[:1], "dst_blocks has 1 entries for 2 of src_blocks"),
    ("destination", lambda d: d[..., :16], r"destination.shape=\(2, 1, 5, 4, 2, 16\) does not fit"),
    ("destination", lambda d: d.double(), "destination.dtype=torch.float64 differs from torch.float32"),
]  # fmt: skip


def of(name: str) -> Backend:
    """A backend; of a library that is not here, all of it that stands in front of the library."""
    classes: dict[str, type[Backend]] = {"flash-attn": FlashAttention, "torch-varlen": TorchVarlen}
    if name not in classes:
        return backend(name)
    made: Backend = classes[name].__new__(classes[name])
    return made


@pytest.mark.parametrize("name", ["torch-gather", "triton", "flash-attn", "torch-varlen"])
@pytest.mark.parametrize("operation", TAKES)
def test_bad_input_is_refused_before_anything_is_written(name: str, operation: str) -> None:
    made, tried = of(name), 0
    for argument, change, message in BAD:
        if argument not in (*TAKES[operation], *NAMED[operation]):
            continue
        given = arguments()
        given[argument] = change(given[argument])
        before = {
            n: t.clone() for n in TAKES[operation] if isinstance(t := given[n], Tensor) and t.device.type == "cpu"
        }
        with pytest.raises(ValueError, match=message):
            call(made, operation, given)
        assert all(torch.equal(given[n], old) for n, old in before.items())
        tried += 1
    assert tried >= 6


@pytest.mark.parametrize("name", ["torch-gather", "triton"])
@pytest.mark.parametrize("operation", TAKES)
def test_the_same_calls_are_carried_out_without_the_mistake(name: str, operation: str) -> None:
    out = call(of(name), operation, arguments())

    assert out is None or (isinstance(out, Tensor) and bool(out.isfinite().all()))


@pytest.mark.parametrize("name", ["torch-gather", "triton"])
def test_blocks_before_the_window_need_not_be_there(name: str) -> None:
    """They were given back. Those that any query of the row still sees are needed."""
    given = arguments() | {"window": 2}
    given["block_table"] = ints([0, 1], [-1, 3])
    right = arguments() | {"window": 2}
    torch.testing.assert_close(call(of(name), "decode", given), call(of(name), "decode", right), rtol=0, atol=0)
    torch.testing.assert_close(call(of(name), "prefill", given), call(of(name), "prefill", right), rtol=0, atol=0)

    given["window"] = 5  # positions 3 to 7
    with pytest.raises(ValueError, match=r"block_table\[1, 0\]=-1 is needed"):
        call(of(name), "decode", given)
    more = given | {"window": 4, "q": torch.randn(3, 4, 32), "cu_seqlens_q": ints(0, 1, 3), "max_query_len": 2}
    with pytest.raises(
        ValueError, match=r"block_table\[1, 0\]=-1 is needed"
    ):  # the first of two queries sees position 3
        call(of(name), "prefill", more)


def test_a_cache_does_not_have_its_own_tables_read_again() -> None:
    made = TorchGather()
    assert made.check_values

    cache = PagedKVCache(num_layers=1, num_kv_heads=2, head_dim=32, num_blocks=6, backend=made)

    assert not cache.backend.check_values


def test_pools_that_cannot_be_had_are_refused_with_their_size() -> None:
    """Before the manager notes anything of two thousand million blocks, which ended the process."""
    with pytest.raises(
        ValueError, match=r"2147483647 blocks of 1048576 tokens take .* GiB on cpu, which cannot be had"
    ):
        PagedKVCache(num_layers=2, num_kv_heads=2, head_dim=16, num_blocks=2**31 - 1, block_size=2**20)
