"""prefill() against float64: whole prompts, chunks behind a cached prefix, windows; everything not owned is poisoned."""

import pytest
import torch

from paged_impl import checks
from paged_impl.kernels import decode, prefill, rules
from tests.kernels import plain

SHAPES = [
    # lengths, queries, heads, block size, window
    ([1, 70, 0, 33], [1, 40, 0, 5], "4/2/64", 16, None),
    ([17, 64, 65], [2, 64, 1], "6/2/24", 5, None),
    ([3, 100], [3, 10], "5/1/32", 1, None),
    ([200, 140], [9, 12], "2/2/16", 256, None),
    ([60, 34, 7], [30, 34, 1], "4/2/96", 16, 20),
    ([140], [130], "2/1/16", 16, None),  # beyond the packing of heads
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("lens", "query_lens", "heads", "block_size", "window"), SHAPES)
def test_agrees_with_float64(
    lens: list[int],
    query_lens: list[int],
    heads: str,
    block_size: int,
    window: int | None,
    dtype: torch.dtype,
    device: str,
) -> None:
    batch = plain.make_batch(lens, heads, block_size, dtype, query_lens, device=device)
    expected, expected_lse = plain.answer(batch, window)

    out, lse = prefill(
        *batch.prefill_args(), scale=batch.scale, max_query_len=max(query_lens), window=window, return_lse=True
    )

    plain.assert_close(out, expected)
    plain.assert_close(lse, expected_lse, plain.LARGEST_LSE_ERROR)


@pytest.mark.parametrize(
    ("rule", "block_size"),
    [(rules.PrefillRule(32, 16, 4, 2, pack=2), 8), (rules.PrefillRule(16, 32, 4, 2, pack=1), 4),
     (rules.PrefillRule(64, 16, 4, 2, pack=1, tma=True), 16), (rules.PrefillRule(32, 16, 4, 2, pack=2, tma=True), 32)],
    ids=["packed", "token rows", "copy engine", "copy engine, packed"],
)  # fmt: skip
def test_every_kind_of_rule(rule: rules.PrefillRule, block_size: int, device: str) -> None:
    batch = plain.make_batch([70, 37, 5], "4/2/32", block_size, torch.float16, [50, 37, 2], device=device)

    out = prefill(*batch.prefill_args(), scale=batch.scale, max_query_len=50, rule=rule)

    plain.assert_close(out, plain.answer(batch)[0])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("max_context", [200, 5000])
@pytest.mark.parametrize(
    ("block_size", "head_dim"), [(16, 64), (24, 16), (64, 48), (128, 80), (128, 72), (24, 80), (16, 72)]
)
def test_what_the_rules_choose_for_an_h200(
    block_size: int, head_dim: int, max_context: int, dtype: torch.dtype, device: str
) -> None:
    """Tiles, heads and copy engine as there, also where they are interpreted; registers and stages have no meaning then."""
    batch = plain.make_batch([200, 150, 3], f"8/2/{head_dim}", block_size, dtype, [200, 130, 3], device=device)
    rule = rules.prefill_rule(4, head_dim, block_size, 200, max_context, dtype, 90)

    out = prefill(*batch.prefill_args(), scale=batch.scale, max_query_len=200, rule=rule)

    plain.assert_close(out, plain.answer(batch)[0])


@pytest.mark.parametrize("bound", [0, 7, 50, 10**6])
def test_the_bound_of_contexts_changes_no_answer(bound: int, device: str) -> None:
    """Not even one that is too small."""
    batch = plain.make_batch([70, 37, 5], "4/2/32", 8, torch.float32, [50, 37, 2], device=device)

    out = prefill(*batch.prefill_args(), scale=batch.scale, max_query_len=50, max_context_len=bound)

    plain.assert_close(out, plain.answer(batch)[0])


@pytest.mark.parametrize("max_query_len", [10**6, 2**31, 10**12])
def test_a_generous_bound_of_queries_costs_no_launch(max_query_len: int, device: str) -> None:
    """No sequence has more queries than q has rows, so that the bound of a model or none at all will do."""
    batch = plain.make_batch([9, 30], query_lens=[9, 3], device=device)

    out = prefill(*batch.prefill_args(), scale=batch.scale, max_query_len=max_query_len)

    plain.assert_close(out, plain.answer(batch)[0])


@pytest.mark.parametrize(
    ("query_lens", "rows", "message"),
    [([0] * 65_536, 1, "65536 sequences; at most 65535 in one call"),
     ([0], 65_536 * 32, "allow 65536 tiles of queries, more than 65535")],
)  # fmt: skip
def test_what_no_launch_can_hold_is_refused(query_lens: list[int], rows: int, message: str, device: str) -> None:
    batch = plain.make_batch([1], "1/1/16", query_lens=[0], device=device)
    zeros = torch.zeros(len(query_lens) + 1, dtype=torch.int32, device=device)
    q = torch.zeros(1, 1, 16, device=device).expand(rows, 1, 16)
    table = batch.table.expand(len(query_lens), -1)

    with pytest.raises(ValueError, match=message):
        prefill(q, batch.k_cache, batch.v_cache, table, zeros, zeros[1:], scale=1.0, max_query_len=rows)


def test_positions_stay_at_32_bits_however_wide_a_table_is() -> None:
    """The copy engine takes no others: a kernel that is told of more does not compile."""
    cache, tables = (
        torch.empty(9, 256, 1, 16, device="meta"),
        [torch.empty(2, width, device="meta") for width in (7, 2**23)],
    )

    assert [checks.capacity_of(table, cache) for table in tables] == [1792, 2**31 - 1]
    assert [checks.bound_of_contexts(None, table, cache) for table in tables] == [1792, 2**31 - 1]


def test_chunks_give_what_one_call_gives(device: str) -> None:
    """The same 40 tokens in one call, and in chunks of 15 with the earlier ones in the cache."""
    batch = plain.make_batch([40], "4/2/32", query_lens=[40], device=device)
    whole = prefill(*batch.prefill_args(), scale=batch.scale, max_query_len=40)
    for start, stop in ((0, 15), (15, 30), (30, 40)):
        bounds = torch.tensor([0, stop - start], dtype=torch.int32, device=device)
        lens = torch.tensor([stop], dtype=torch.int32, device=device)

        chunk = prefill(
            batch.q[start:stop],
            batch.k_cache,
            batch.v_cache,
            batch.table,
            bounds,
            lens,
            scale=batch.scale,
            max_query_len=15,
        )

        plain.assert_close(chunk, whole[start:stop].cpu().double(), 2e-6)


def test_one_query_is_decode(device: str) -> None:
    batch = plain.make_batch([9, 30, 1], query_lens=[1, 1, 1], device=device)

    out = prefill(*batch.prefill_args(), scale=batch.scale, max_query_len=1)

    plain.assert_close(out, decode(*batch.decode_args(), scale=batch.scale).cpu().double(), 2e-6)


def test_rows_of_padding_are_left_alone(device: str) -> None:
    batch = plain.make_batch([6], query_lens=[6], device=device)
    q = torch.cat([batch.q, batch.q])
    out = torch.full_like(q, 5.0)

    prefill(q, *batch.prefill_args()[1:], scale=batch.scale, max_query_len=6, out=out)

    plain.assert_close(out[:6], plain.answer(batch)[0])
    assert torch.equal(out[6:], torch.full_like(out[6:], 5.0))


BAD = {
    "cu_seqlens_q[0]=1": lambda b: {"cu_seqlens_q": b.cu_q + 1},
    "cu_seqlens_q falls by 2 at sequence 1": lambda b: {"cu_seqlens_q": b.cu_q.new_tensor([0, 7, 5])},
    "cu_seqlens_q[-1]=9 exceeds the 8 rows of q": lambda b: {"cu_seqlens_q": b.cu_q.new_tensor([0, 5, 9])},
    "cu_seqlens_q is empty": lambda b: {"cu_seqlens_q": b.cu_q[:0]},
    "sequence 0 has 5 queries, more than max_query_len=4": lambda b: {"max_query_len": 4},
    "sequence 0 has 5 queries but context_lens[0]=4": lambda b: {"context_lens": b.lens.new_tensor([4, 9])},
    "scale=0": lambda b: {"scale": 0.0},
    "scale=1e-46; prefill needs one of at least 1e-30": lambda b: {"scale": 1e-46},
    "scale=inf": lambda b: {"scale": float("inf")},
    "max_query_len=1.5: expected a whole number": lambda b: {"max_query_len": 1.5},
    "cu_seqlens_q=[0]; expected a tensor": lambda b: {"cu_seqlens_q": [0]},
    "max_context_len=-2; expected at least 0": lambda b: {"max_context_len": -2},
    "max_query_len=-1": lambda b: {"max_query_len": -1},
    "context_lens[1]=50 exceeds block_table": lambda b: {"context_lens": b.lens.new_tensor([6, 50])},
}  # fmt: skip


@pytest.mark.parametrize("message", BAD, ids=str)
def test_refuses(message: str, device: str) -> None:
    batch = plain.make_batch([6, 9], query_lens=[5, 3], device=device)
    names = ("q", "k_cache", "v_cache", "block_table", "cu_seqlens_q", "context_lens")
    arguments = (
        dict(zip(names, batch.prefill_args(), strict=True)) | {"scale": 1.0, "max_query_len": 5} | BAD[message](batch)
    )

    with pytest.raises(ValueError) as caught:  # noqa: PT011  (the text is compared below)
        prefill(**arguments)

    assert message in str(caught.value)
