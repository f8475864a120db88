"""No product of an index and a stride is 32 bits wide: each axis of each tensor spread over more than 2**31 elements."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from paged_impl.kernels import decode, prefill, store
from tests.kernels import plain

# NumPy's of NaN, in the interpreter: a kernel that reads the poison is to be told by its answer.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

# What is spread, and the block size: of the tile's lookups one page a tile, whole pages in a tile, neither.
READS = [
    *(("cache", axis, block_size) for axis in (0, 1) for block_size in (256, 16, 24)),
    *(("cache", 2, 16), ("table", 0, 16), ("q", 0, 16), ("q", 1, 16), ("out", 0, 16), ("out", 1, 16)),
]


def far_reads(
    what: str, axis: int, block_size: int, query_len: int, device: str
) -> tuple[plain.Batch, plain.Batch, torch.Tensor]:
    """(a batch, the same with one tensor far apart, an output); the last index of the axis is in use."""
    lens = [block_size, 3, 2 * block_size]
    batch = plain.make_batch(
        lens, "8/4/16", block_size, torch.float16, [min(length, query_len) for length in lens], seed=3, device=device
    )
    owned = batch.table[[0, 2, 2], [0, 0, 1]].tolist()
    assert len(batch.k_cache) - 1 in owned, "the last block is of no sequence"
    out = torch.empty_like(batch.q)
    if what == "cache":
        far = {name: plain.far_apart(getattr(batch, name), axis) for name in ("k_cache", "v_cache")}
    else:
        far = {} if what == "out" else {what: plain.far_apart(getattr(batch, what), axis)}
    return batch, replace(batch, **far), plain.far_apart(out, axis) if what == "out" else out


@pytest.mark.parametrize(("what", "axis", "block_size"), READS)
def test_decode(what: str, axis: int, block_size: int, device: str) -> None:
    batch, far, out = far_reads(what, axis, block_size, 1, device)

    decode(*far.decode_args(), scale=batch.scale, out=out)

    plain.assert_close(out, plain.answer(batch)[0])


@pytest.mark.parametrize(("what", "axis", "block_size"), READS)
def test_prefill(what: str, axis: int, block_size: int, device: str) -> None:
    batch, far, out = far_reads(what, axis, block_size, 5, device)

    prefill(*far.prefill_args(), scale=batch.scale, max_query_len=5, out=out)

    plain.assert_close(out, plain.answer(batch)[0])


def packed(cache: torch.Tensor, name: str) -> torch.Tensor:
    """Of [blocks, block size, Hkv, d], in vLLM's layout for 16-bit elements."""
    if name == "v_cache":
        return cache.permute(0, 2, 3, 1).contiguous()
    return cache.unflatten(3, (-1, 8)).permute(0, 2, 3, 1, 4).contiguous()


# Of the packed layouts without the parts of a head, axis 2, which lie in one block, and what has to be dense.
STORES = [
    *(("flash", name, axis) for name in ("k_cache", "v_cache") for axis in (0, 1, 2)),
    *(("flash", name, axis) for name in ("key", "value") for axis in (0, 1)),
    *(("packed", "k_cache", axis) for axis in (0, 1, 3)),
    *(("packed", "v_cache", axis) for axis in (0, 1)),
]  # fmt: skip


@pytest.mark.parametrize("slot_dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize(("layout", "name", "axis"), STORES)
def test_store(layout: str, name: str, axis: int, slot_dtype: torch.dtype, device: str) -> None:
    """Four blocks of five tokens, three heads of 24; the last token, its last head and the last slot are among those stored."""
    placed: Callable[[torch.Tensor, str], torch.Tensor] = packed if layout == "packed" else lambda cache, name: cache
    new = {key: torch.randn(4, 3, 24, device=device).half() for key in ("key", "value")}
    pools = {key: placed(torch.zeros(4, 5, 3, 24, device=device).half(), key) for key in ("k_cache", "v_cache")}
    expected = {key: torch.zeros(20, 3, 24, device=device).half() for key in pools}
    slots = torch.tensor([7, -1, 0, 19], device=device)
    for key, tokens in zip(pools, new.values(), strict=True):
        expected[key][slots[slots >= 0]] = tokens[slots >= 0]
    tensors = new | pools
    tensors[name] = plain.far_apart(tensors[name], axis)

    store(**tensors, slot_mapping=slots.to(slot_dtype))

    for key in pools:
        assert torch.equal(tensors[key], placed(expected[key].view(4, 5, 3, 24), key)), key
