"""The reference store writes exactly the listed slots, in every layout."""

import pytest
import torch

from paged_ref.layouts import Layout, pack_keys, pack_values, unpack_keys, unpack_values
from paged_ref.store import store

BLOCKS, BLOCK_SIZE, HEADS, HEAD_SIZE = 4, 3, 3, 8


def _pool(layout: Layout) -> tuple[torch.Tensor, torch.Tensor]:
    old = torch.randn(BLOCKS, BLOCK_SIZE, HEADS, HEAD_SIZE).half()
    return pack_keys(old, layout), pack_values(-old, layout)


@pytest.mark.parametrize("layout", list(Layout))
def test_listed_slots_hold_the_bits_and_the_others_are_unchanged(layout: Layout) -> None:
    key_cache, value_cache = _pool(layout)
    before = unpack_keys(key_cache, layout).clone(), unpack_values(value_cache, layout).clone()
    keys, values = torch.randn(5, HEADS, HEAD_SIZE).half(), torch.randn(5, HEADS, HEAD_SIZE).half()
    slots = [7, -1, 0, 11, -1]

    store(keys, values, key_cache, value_cache, torch.tensor(slots), layout=layout)

    for cache, old, new in zip(
        (unpack_keys(key_cache, layout), unpack_values(value_cache, layout)),
        before,
        (keys, values),
        strict=True,
    ):
        expected = old.flatten(0, 1).clone()
        for token, slot in enumerate(slots):
            if slot >= 0:
                expected[slot] = new[token]
        assert torch.equal(expected, cache.flatten(0, 1))


def test_rows_beyond_the_slot_mapping_are_padding() -> None:
    key_cache, value_cache = _pool(Layout.FLASH)
    before = key_cache.clone()
    keys = torch.randn(4, HEADS, HEAD_SIZE).half()

    store(keys, keys, key_cache, value_cache, torch.tensor([5]))

    assert (key_cache != before).any(dim=(2, 3)).flatten().nonzero().flatten().tolist() == [5]


@pytest.mark.parametrize(
    ("slots", "message"),
    [
        ([12], "slot 12 lies beyond the pool of 12"),
        ([3, 3], "share a slot"),
        ([0, 1, 2], "3 slots for 2 tokens"),
    ],
)
def test_bad_slots_are_refused_before_anything_is_written(slots: list[int], message: str) -> None:
    key_cache, value_cache = _pool(Layout.FLASH)
    before = key_cache.clone(), value_cache.clone()
    keys = torch.randn(2, HEADS, HEAD_SIZE).half()

    with pytest.raises(ValueError, match=message):
        store(keys, keys, key_cache, value_cache, torch.tensor(slots))

    assert torch.equal(before[0], key_cache)
    assert torch.equal(before[1], value_cache)
