"""Where the elements of a cache lie, by arithmetic, against a list of every element's address."""

import itertools
import mmap
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

from paged_ref.layouts import Layout
from properties.attention.buffers import _NORESERVE, Geometry, PoolMemory, allocate
from properties.attention.guarding.ownership import owner_of
from properties.attention.guarding.places import NOWHERE, places_of
from properties.attention.guarding.protection import TOKEN_AXIS, reading, writing
from properties.attention.high_ids import HIGH_STRIDE
from properties.attention.target import Pool

FORMS = ("separate", "interleaved", "layered", "uneven", "high_stride")
GEOMETRIES = [
    Geometry(3, 4, 2, 8, torch.float32, Layout.FLASH),
    Geometry(2, 1, 1, 16, torch.float16, Layout.HND),
    Geometry(3, 2, 3, 8, torch.float32, Layout.HND),
    Geometry(2, 3, 2, 16, torch.float16, Layout.VLLM),
    Geometry(1, 5, 1, 8, torch.float32, Layout.VLLM),
]


def _elements(tensor: Tensor) -> Iterator[tuple[tuple[int, ...], int]]:
    """Each index with its byte address."""
    for index in itertools.product(*map(range, tensor.shape)):
        offset = sum(i * stride for i, stride in zip(index, tensor.stride(), strict=True))
        yield index, tensor.data_ptr() + offset * tensor.element_size()


def _expected(cache: Tensor, layout: Layout) -> dict[int, tuple[int, int]]:
    """(block, offset in it) of each byte of a cache."""
    axis, size = TOKEN_AXIS[layout], cache.element_size()
    return {a + byte: (index[0], index[axis]) for index, a in _elements(cache) for byte in range(size)}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "geometry", GEOMETRIES, ids=lambda g: f"{g.layout} {g.block_size} x {g.num_kv_heads} x {g.head_size}"
)
def test_every_byte_around_a_pool_is_told_its_slot(geometry: Geometry, form: str) -> None:
    pool = allocate(geometry, form, "cpu", 0).pool
    caches = (pool.key_cache, pool.value_cache)
    slots = [_expected(cache, geometry.layout) for cache in caches]
    parts = reading(PoolMemory(pool, ()), [], geometry.block_size, strict=True)
    near = np.array(sorted({byte + n for of in slots for byte in of for n in (-9, -1, 0, 1, 9)}))

    blocks, tokens = (np.full(near.shape, NOWHERE) for _ in range(2))
    for part in parts:
        inside = (near >= part.start) & (near < part.end)
        blocks[inside], tokens[inside] = part.locate(near[inside])

    known = slots[0] | slots[1]
    between = geometry.num_blocks > 1 and form in ("interleaved", "layered", "high_stride")
    assert len(parts) == (1 if between else 2)
    assert [(b, t) for b, t in zip(blocks, tokens, strict=True)] == [
        known.get(a, (NOWHERE, NOWHERE)) for a in near.tolist()
    ]


def test_ids_whose_offset_passes_32_bits_are_told() -> None:
    geometry = Geometry(20, 2, 1, 8, torch.float32, Layout.FLASH)
    pool = allocate(geometry, "high_stride", "cpu", 0).pool
    (part,) = reading(PoolMemory(pool, ()), [], 2, strict=True)
    second = pool.value_cache.data_ptr() + 4 * (19 * HIGH_STRIDE + 8)

    blocks, tokens = part.locate(np.array([second, second - 4 * HIGH_STRIDE, second + 4 * 8]))

    assert (blocks.tolist(), tokens.tolist()) == ([19, 18, NOWHERE], [1, 1, NOWHERE])
    assert part.cache_at(second) == "the value cache"
    assert part.cache_at(second - 4 * 16) == "the key cache"


@pytest.mark.parametrize(
    "tensor",
    [
        torch.zeros(4, 6, dtype=torch.float16)[:, ::2],
        torch.zeros(5, 3).t(),
        torch.zeros(2, 3, 4).permute(2, 0, 1),
        torch.zeros(1, 1),
        torch.zeros(3, 4, 5)[1:, :, 2:3],
    ],
    ids=["every other", "transposed", "permuted", "single", "slice"],
)
def test_places_follow_the_strides(tensor: Tensor) -> None:
    places = places_of(tensor, (0, 1))
    assert places is not None
    indices, addresses = zip(*_elements(tensor), strict=True)

    for byte in (0, tensor.element_size() - 1):
        first, second = places.locate(np.array(addresses) + byte)
        assert list(zip(first.tolist(), second.tolist(), strict=True)) == [index[:2] for index in indices]
    assert places.locate(np.array([places.start - 1, places.end]))[0].tolist() == [NOWHERE] * 2
    assert (places.start, places.end) == (min(addresses), max(addresses) + tensor.element_size())


@pytest.mark.parametrize(
    "tensor", [torch.zeros(3).expand(2, 3), torch.zeros(9).as_strided((3, 4), (2, 1)), torch.zeros(0, 2)]
)
def test_of_elements_that_share_memory_no_place_is_told(tensor: Tensor) -> None:
    assert places_of(tensor, (0, 1)) is None


def test_what_may_be_touched_costs_what_is_owned_and_not_the_pool() -> None:
    """A pool of 8 G elements, reserved and never used."""
    num_blocks = 2**20
    memory = mmap.mmap(-1, num_blocks * 2**14, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE)
    cache = torch.frombuffer(memory, dtype=torch.float16).view(num_blocks, 16, 8, 64)
    pool = PoolMemory(Pool(cache, cache, Layout.FLASH), ())

    (part,) = reading(pool, [owner_of("row 0", [2**24 - 1, 5])], 16, strict=True)

    assert part.readable is not None
    address = part.start + np.array([2**24 - 1, 5, 4]) * 1024
    assert part.readable.allowed(*part.locate(address)).tolist() == [True, True, False]
    assert sum(array.nbytes for array in vars(part.readable).values() if isinstance(array, np.ndarray)) < 2**23


def test_an_access_that_is_no_element_is_seen_from_both_its_ends() -> None:
    places = places_of(torch.zeros(4, 2), (0, 1))
    assert places is not None
    start = places.start

    assert places.offsets_of(np.array([start, start + 8]), 4) == [0]
    assert places.offsets_of(np.array([start, start + 6]), 4) == [0, 3]
    assert places.offsets_of(np.array([start]), 1) == [0]
    assert places.offsets_of(np.array([start]), 16) == [0, 4, 8, 12, 15]


def test_a_store_may_touch_what_is_listed() -> None:
    geometry = Geometry(4, 2, 1, 8, torch.float32, Layout.FLASH)
    pool = allocate(geometry, "interleaved", "cpu", 0).pool
    (part,) = writing(PoolMemory(pool, ()), [5, -1, 0], 2)
    slots = np.arange(8)

    assert part.readable is None
    assert np.flatnonzero(part.writable.allowed(slots // 2, slots % 2)).tolist() == [0, 5]
    assert not part.writable.allowed(np.array([NOWHERE]), np.array([NOWHERE])).any()
