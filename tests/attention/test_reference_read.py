"""Dense attention agrees with SDPA; paged, folded and partitioned attention agree with dense; edges are as
declared.
"""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from paged_ref.dense import dense_attention, visible
from paged_ref.online import empty_state, finish, fold, online_decode
from paged_ref.paged import gather, paged_decode, paged_prefill
from paged_ref.partition import merge, partition_ranges, partitioned_attention

WINDOWS = st.none() | st.integers(1, 9)


def _heads(ratio: int, num_kv_heads: int, num_queries: int, context_len: int, head_size: int) -> list[Tensor]:
    shape = (num_kv_heads, head_size)
    return [
        torch.randn(num_queries, ratio * num_kv_heads, head_size, dtype=torch.float64),
        torch.randn(context_len, *shape, dtype=torch.float64),
        torch.randn(context_len, *shape, dtype=torch.float64),
    ]


@settings(deadline=None)
@given(
    st.tuples(st.integers(1, 7), st.integers(1, 3)),
    st.integers(1, 12),
    st.integers(0, 30),
    WINDOWS,
    st.booleans(),
)
def test_dense_agrees_with_sdpa(
    heads: tuple[int, int], num_queries: int, extra: int, window: int | None, causal: bool
) -> None:
    context_len = num_queries + extra
    q, k, v = _heads(*heads, num_queries, context_len, 5)

    ours = dense_attention(q, k, v, scale=0.3, causal=causal, window=window)

    mask = visible(num_queries, context_len, causal=causal, window=window)
    theirs = torch.nn.functional.scaled_dot_product_attention(
        *(t.transpose(0, 1)[None] for t in (q, k, v)), attn_mask=mask, scale=0.3, enable_gqa=True
    )
    torch.testing.assert_close(ours.out_THD, theirs[0].transpose(0, 1), rtol=0, atol=1e-12)


def test_lse_is_the_log_of_the_sum_of_exponentials() -> None:
    q, k, v = _heads(2, 2, 1, 6, 4)

    lse = dense_attention(q, k, v, scale=0.5, causal=False).lse_TH

    for head in range(4):
        total = sum(math.exp(0.5 * float(q[0, head] @ k[n, head // 2])) for n in range(6))
        assert math.log(total) == pytest.approx(float(lse[0, head]), abs=1e-12)


def test_visible_is_causal_at_the_bottom_right_with_a_window() -> None:
    expected = [[0, 1, 1, 0, 0], [0, 0, 1, 1, 0], [0, 0, 0, 1, 1]]

    assert expected == visible(3, 5, window=2).int().tolist()


def test_a_query_that_sees_nothing_gives_zero_and_minus_infinity() -> None:
    q, k, v = _heads(2, 3, 1, 0, 4)

    result = dense_attention(q, k, v, scale=1.0)

    assert torch.equal(torch.zeros_like(result.out_THD), result.out_THD)
    assert torch.equal(torch.full_like(result.lse_TH, -torch.inf), result.lse_TH)


@st.composite
def _paged_batches(draw: st.DrawFn) -> tuple[int, list[int], list[int], int | None]:
    """(block size, context lengths, query lengths, window): lengths near block edges, empty rows among
    them.
    """
    block_size = draw(st.sampled_from([1, 2, 3, 4, 7, 16]))
    edges = st.builds(lambda k, d: max(0, k * block_size + d), st.integers(0, 4), st.sampled_from([-1, 0, 1]))
    context_lens = draw(st.lists(edges, min_size=1, max_size=4))
    query_lens = [draw(st.integers(0 if length == 0 else 1, min(length, 6))) for length in context_lens]
    return block_size, context_lens, query_lens, draw(WINDOWS)


def _scatter(
    block_size: int, context_lens: list[int], ks: list[Tensor], vs: list[Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """A pool of NaN that holds the sequences in permuted blocks, and a table whose padding is invalid."""
    counts = [-(-length // block_size) for length in context_lens]
    order = torch.randperm(sum(counts) + 2).tolist()
    key_cache = torch.full((len(order), block_size, *ks[0].shape[1:]), torch.nan, dtype=torch.float64)
    value_cache = key_cache.clone()
    tables = torch.full((len(counts), max(counts) + 2), 10**9)
    for s, length in enumerate(context_lens):
        tables[s, : counts[s]] = torch.tensor([order.pop() for _ in range(counts[s])], dtype=torch.long)
        for position in range(length):
            block = tables[s, position // block_size]
            key_cache[block, position % block_size] = ks[s][position]
            value_cache[block, position % block_size] = vs[s][position]
    return key_cache, value_cache, tables


@settings(deadline=None)
@given(_paged_batches())
def test_paged_prefill_and_decode_agree_with_dense_over_a_poisoned_pool(
    batch: tuple[int, list[int], list[int], int | None],
) -> None:
    block_size, context_lens, query_lens, window = batch
    sequences = [_heads(3, 2, n, length, 4) for n, length in zip(query_lens, context_lens, strict=True)]
    key_cache, value_cache, tables = _scatter(
        block_size, context_lens, [s[1] for s in sequences], [s[2] for s in sequences]
    )
    dense = [dense_attention(*s, scale=0.4, window=window) for s in sequences]
    cu_seqlens = torch.tensor([0, *query_lens]).cumsum(0)

    paged = paged_prefill(
        torch.cat([s[0] for s in sequences]),
        key_cache,
        value_cache,
        tables,
        cu_seqlens_q=cu_seqlens,
        context_lens_S=torch.tensor(context_lens),
        scale=0.4,
        window=window,
    )
    torch.testing.assert_close(paged.out_THD, torch.cat([d.out_THD for d in dense]), rtol=0, atol=1e-12)
    torch.testing.assert_close(paged.lse_TH, torch.cat([d.lse_TH for d in dense]), rtol=0, atol=1e-12)

    last = [s[0][-1:] if s[0].numel() else torch.randn(1, 6, 4, dtype=torch.float64) for s in sequences]
    dense_last = [
        dense_attention(q, s[1], s[2], scale=0.4, window=window) for q, s in zip(last, sequences, strict=True)
    ]
    for decode in (paged_decode, online_decode):
        result = decode(
            torch.cat(last),
            key_cache,
            value_cache,
            tables,
            torch.tensor(context_lens),
            scale=0.4,
            window=window,
        )
        expected_out, expected_lse = (torch.cat(list(parts)) for parts in zip(*dense_last, strict=True))
        torch.testing.assert_close(result.out_THD, expected_out, rtol=0, atol=1e-12)
        torch.testing.assert_close(result.lse_TH, expected_lse, rtol=0, atol=1e-12)


def test_gather_refuses_a_narrow_table_and_a_foreign_block() -> None:
    cache = torch.zeros(4, 2, 1, 1)
    with pytest.raises(ValueError, match="5 tokens needs 3 blocks of 2, but the block table has 2"):
        gather(cache, torch.tensor([0, 1]), 0, 5)
    with pytest.raises(ValueError, match="outside the pool of 4"):
        gather(cache, torch.tensor([0, 4]), 0, 3)


@settings(deadline=None)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=5), st.integers(1, 4), st.sampled_from([1.0, 80.0]))
def test_the_fold_does_not_depend_on_how_the_context_is_cut(cuts: list[int], ratio: int, spread: float) -> None:
    q, k, v = _heads(ratio, 2, 1, sum(cuts), 3)
    state = empty_state(2 * ratio, 3)
    begin = 0
    for size in cuts:
        state = fold(state, q[0], k[begin : begin + size], v[begin : begin + size], scale=spread)
        begin += size

    out, lse = finish(state)

    dense = dense_attention(q, k, v, scale=spread)
    torch.testing.assert_close(out, dense.out_THD[0], rtol=0, atol=1e-12)
    torch.testing.assert_close(lse, dense.lse_TH[0], rtol=1e-14, atol=1e-12)


@settings(deadline=None)
@given(st.integers(0, 40), st.integers(1, 50))
def test_partitions_agree_with_dense(context_len: int, partition_size: int) -> None:
    q, k, v = _heads(3, 2, 1, context_len, 4)

    ours = partitioned_attention(q, k, v, scale=0.5, partition_size=partition_size)

    dense = dense_attention(q, k, v, scale=0.5, causal=False)
    torch.testing.assert_close(ours.out_THD, dense.out_THD, rtol=0, atol=1e-12)
    torch.testing.assert_close(ours.lse_TH, dense.lse_TH, rtol=0, atol=1e-12)
    assert [n for a, b in partition_ranges(context_len, partition_size) for n in range(a, b)] == list(
        range(context_len)
    )


LSES = st.sampled_from([-torch.inf, -1e4, -700.0, -1.0, 0.0, 1.0, 700.0, 1e4])


@settings(deadline=None)
@given(st.lists(LSES, min_size=3, max_size=3), st.permutations([0, 1, 2]))
def test_merge_is_commutative_associative_and_has_an_empty_element(lses: list[float], order: list[int]) -> None:
    weights = torch.tensor(lses, dtype=torch.float64)
    outs = torch.where(weights[:, None] == -torch.inf, 0.0, torch.randn(3, 4, dtype=torch.float64))
    out, lse = merge(outs, weights)

    permuted = merge(outs[order], weights[order])
    first = merge(outs[:2], weights[:2])
    nested = merge(torch.stack([first[0], outs[2]]), torch.stack([first[1], weights[2]]))
    with_empty = merge(
        torch.cat([outs, torch.zeros(1, 4, dtype=torch.float64)]),
        torch.cat([weights, torch.tensor([-torch.inf])]),
    )

    assert not out.isnan().any()
    assert not lse.isnan().any()
    for other in (permuted, nested, with_empty):
        torch.testing.assert_close(out, other[0], rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(lse, other[1], rtol=1e-12, atol=1e-12)
