"""The layouts round-trip, and each puts a token where its definition says."""

import pytest
import torch

from paged_ref.layouts import (
    Layout,
    key_shape,
    pack_keys,
    pack_values,
    unpack_keys,
    unpack_values,
    value_shape,
)

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
GEOMETRY = {"num_blocks": 3, "block_size": 5, "num_kv_heads": 3, "head_size": 24}


def _numbered(dtype: torch.dtype) -> torch.Tensor:
    return (torch.randperm(3 * 5 * 3 * 24) % 251).reshape(3, 5, 3, 24).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", list(Layout))
def test_layouts_round_trip(layout: Layout, dtype: torch.dtype) -> None:
    keys, values = _numbered(dtype), _numbered(dtype)

    key_cache, value_cache = pack_keys(keys, layout), pack_values(values, layout)

    assert key_cache.shape == key_shape(layout, dtype=dtype, **GEOMETRY)
    assert value_cache.shape == value_shape(layout, **GEOMETRY)
    assert torch.equal(keys, unpack_keys(key_cache, layout))
    assert torch.equal(values, unpack_values(value_cache, layout))


@pytest.mark.parametrize(("dtype", "x"), [(torch.float32, 4), (torch.float16, 8), (torch.bfloat16, 8)])
def test_vllm_keys_pack_16_bytes_of_one_token(dtype: torch.dtype, x: int) -> None:
    keys = _numbered(dtype)

    packed = pack_keys(keys, Layout.VLLM)

    block, position, head, dimension = 2, 4, 1, 13
    assert keys[block, position, head, dimension] == packed[block, head, dimension // x, position, dimension % x]


def test_vllm_layout_refuses_a_head_size_that_does_not_pack() -> None:
    with pytest.raises(ValueError, match=r"head_size=20 .* multiple of 8"):
        pack_keys(torch.zeros(1, 1, 1, 20, dtype=torch.float16), Layout.VLLM)
