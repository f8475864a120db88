"""The memory arithmetic, with the figures of two public models."""

import doctest

import pytest

from paged_ref import memory
from paged_ref.memory import (
    GIB,
    KIB,
    MIB,
    kv_bytes_per_block,
    kv_bytes_per_token,
    num_blocks_for,
    wasted_paged,
    wasted_reserved,
)

LLAMA_2_7B = {"num_layers": 32, "num_kv_heads": 32, "head_dim": 128, "itemsize": 2}
QWEN3_0_6B = {"num_layers": 28, "num_kv_heads": 8, "head_dim": 128, "itemsize": 2}


def test_the_examples_hold():
    outcome = doctest.testmod(memory)

    assert outcome.attempted >= 7
    assert outcome.failed == 0


def test_bytes_per_token_and_block():
    assert kv_bytes_per_token(**LLAMA_2_7B) == 524_288 == 512 * KIB
    assert kv_bytes_per_token(**QWEN3_0_6B) == 114_688 == 112 * KIB
    assert kv_bytes_per_block(256, **QWEN3_0_6B) == 28 * MIB
    assert 4096 * kv_bytes_per_token(**LLAMA_2_7B) == 2 * GIB


@pytest.mark.parametrize("part", ["num_layers", "num_kv_heads", "head_dim", "itemsize"])
def test_every_dimension_counts_in_proportion(part):
    assert kv_bytes_per_token(**{**QWEN3_0_6B, part: 3 * QWEN3_0_6B[part]}) == 3 * 114_688


def test_waste_of_reservation_and_of_paging():
    per_token = kv_bytes_per_token(**LLAMA_2_7B)

    assert wasted_reserved(600, 4096) == pytest.approx(0.8535, abs=5e-5)
    assert wasted_reserved(4096, 4096) == 0
    assert wasted_paged(600, 16) == 8
    assert max(wasted_paged(n, 16) for n in range(1, 4097)) * per_token == 7.5 * MIB


@pytest.mark.parametrize("block_size", [1, 2, 5, 16])
def test_blocks_hold_the_sequence_and_one_less_would_not(block_size):
    assert num_blocks_for(0, block_size) == 0
    for num_tokens in range(1, 60):
        num_blocks = num_blocks_for(num_tokens, block_size)

        assert (num_blocks - 1) * block_size < num_tokens <= num_blocks * block_size
        assert num_blocks * block_size - num_tokens == wasted_paged(num_tokens, block_size)
