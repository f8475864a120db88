"""The tolerance rejects every one-slot error at every length, and accepts every correct style of kernel.

The rejected outputs are exact float64 attention over *wrong* tokens, rounded once to the dtype: the most
favourable form of each error. The inputs peak at the slot concerned, as the generated inputs of the
properties do.
"""

import math
import random

import pytest
import torch
from torch import Tensor

from paged_ref.dense import dense_attention
from paged_ref.parity import compare, compare_lse, expect
from tests.attention import emulated

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
BLOCK_SIZE, HEADS, KV_HEADS, HEAD_SIZE = 16, 8, 2, 64
SCALE = HEAD_SIZE**-0.5


def _peaked(context_len: int, peak: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """q, and keys and values of context_len + BLOCK_SIZE tokens (the surplus is stale), peaked at `peak`."""
    generator = torch.Generator().manual_seed(context_len + peak)
    q = torch.randn(1, HEADS, HEAD_SIZE, generator=generator)
    k = torch.randn(context_len + BLOCK_SIZE, KV_HEADS, HEAD_SIZE, generator=generator)
    v = torch.randn(context_len + BLOCK_SIZE, KV_HEADS, HEAD_SIZE, generator=generator)
    for kv_head in range(KV_HEADS):
        query = q[0, kv_head * HEADS // KV_HEADS]  # the peak serves one query head of each group
        k[peak, kv_head] = query * (math.log(context_len) + 1) / (SCALE * float(query @ query))
    return q.to(dtype), k.to(dtype), v.to(dtype)


def _over(q: Tensor, k: Tensor, v: Tensor, tokens: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    out, lse = dense_attention(q, k[tokens], v[tokens], scale=SCALE, causal=False)
    return out.to(dtype), lse.float()


def _wrong_tokens(error: str, context_len: int) -> Tensor:
    """Which tokens a kernel with this error reads; index context_len + i is a slot behind the context."""
    own = torch.arange(context_len)
    if error == "last token dropped":
        return own[:-1]
    if error == "stale token added":
        return torch.arange(context_len + 1)
    if error == "one page swapped":  # its first page comes from somewhere else
        foreign = torch.arange(context_len, context_len + BLOCK_SIZE)
        return torch.cat([foreign, own[BLOCK_SIZE:]]) if context_len > BLOCK_SIZE else foreign[:context_len]
    raise AssertionError(error)


PEAKS = {"last token dropped": -1, "stale token added": 0, "one page swapped": None}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("context_len", [16, 1024, 8192])
@pytest.mark.parametrize("error", list(PEAKS))
def test_one_wrong_slot_is_rejected(error: str, context_len: int, dtype: torch.dtype) -> None:
    offset = PEAKS[error]
    q, k, v = _peaked(context_len, 3 if offset is None else context_len + offset, dtype)
    expected = expect(q, k[:context_len], v[:context_len], scale=SCALE)
    right = _over(q, k, v, torch.arange(context_len), dtype)
    wrong = _over(q, k, v, _wrong_tokens(error, context_len), dtype)

    assert compare(right[0], expected).passed
    assert compare_lse(right[1], expected).passed
    verdict = compare(wrong[0], expected)
    assert not verdict.passed, f"accepted: error {verdict.max_error:.2e}, limit {verdict.max_limit:.2e}"
    assert not compare_lse(wrong[1], expected).passed


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("context_len", [16, 1024, 8192])
def test_zero_output_nan_and_an_identity_table_are_rejected(context_len: int, dtype: torch.dtype) -> None:
    q, k, v = _peaked(context_len, context_len - 1, dtype)
    expected = expect(q, k[:context_len], v[:context_len], scale=SCALE)
    # An identity table reads blocks 0, 1, ...: here those of another sequence.
    other = _peaked(context_len, 0, dtype)
    identity = _over(q, other[1], other[2], torch.arange(context_len), dtype)[0]

    assert not compare(torch.zeros_like(q), expected).passed
    assert not compare(torch.full_like(q, torch.nan), expected).passed
    assert not compare(identity, expected).passed
    one_nan = _over(q, k, v, torch.arange(context_len), dtype)[0]
    one_nan[0, 5, 7] = torch.nan
    verdict = compare(one_nan, expected)
    assert not verdict.passed
    assert verdict.worst == (0, 5, 7)
    assert verdict.num_bad_rows == 1


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("context_len", [16, 1024])
def test_each_half_of_the_tolerance_rejects_what_the_other_lets_pass(context_len: int, dtype: torch.dtype) -> None:
    """One number that is wrong, as behind a lost write, and a head whose numbers are all off by a little, as behind a
    wrong divisor. Neither half sees both.
    """
    q, k, v = _peaked(context_len, 3, dtype)
    expected = expect(q, k[:context_len], v[:context_len], scale=SCALE)
    right = expected.oracle.out_THD
    most, mean = (float(limit[0, 5]) for limit in (expected.max_limit_TH, expected.mean_limit_TH))
    one, all_a_little = right.clone(), right.clone()
    one[0, 5, 7] += 2 * most
    all_a_little[0, 5] += (most + mean) / 2

    of_one, of_all = (compare(wrong.to(dtype), expected) for wrong in (one, all_a_little))

    assert compare(right.to(dtype), expected).passed
    assert of_one.max_error > of_one.max_limit
    assert of_one.mean_error < of_one.mean_limit
    assert of_all.max_error < of_all.max_limit
    assert of_all.mean_error > of_all.mean_limit
    assert [(verdict.passed, verdict.num_bad_rows, verdict.worst[:2]) for verdict in (of_one, of_all)] == [
        (False, 1, (0, 5))
    ] * 2


def test_without_a_peak_a_fixed_tolerance_is_blind_where_this_one_sees() -> None:
    """Why the tolerance is measured: 1e-3 accepts a dropped token at 8192 tokens of ordinary data."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(n, 8, 64, generator=generator).half() for n in (1, 8192, 8192))
    expected = expect(q, k, v, scale=SCALE)
    wrong = dense_attention(q, k[:-1], v[:-1], scale=SCALE).out_THD.half()

    assert torch.allclose(wrong.double(), expected.oracle.out_THD, rtol=1e-3, atol=1e-3)
    assert not compare(wrong, expected).passed


def test_ten_thousand_correct_kernels_are_accepted() -> None:
    rng = random.Random(20)
    rejected = []
    for case in range(10_000):
        dtype, kind = rng.choice(DTYPES), rng.choice(emulated.INPUT_KINDS)
        style = emulated.random_style(rng)
        q, k, v, scale = emulated.random_inputs(rng, dtype, kind)
        window = rng.choice([None, None, 1, 4, 13])
        expected = expect(q, k, v, scale=scale, window=window)
        out, lse = emulated.run(style, q, k, v, scale=scale, window=window)
        if not (compare(out, expected).passed and compare_lse(lse, expected).passed):
            rejected.append((case, dtype, kind, style, compare(out, expected), compare_lse(lse, expected)))

    assert rejected == []


@pytest.mark.parametrize("context_len", [300, 3000, 8192])
def test_running_sums_over_nearly_equal_weights_are_accepted(context_len: int) -> None:
    """Token by token in float32, as plain loops on a CPU do: the terms are all rounded the same way."""
    style = emulated.Style(tile=1)
    generator = torch.Generator().manual_seed(context_len)
    q, k, v = (torch.randn(n, 2, 16, generator=generator) for n in (1, context_len, context_len))
    k[:] = k[0]
    k[7] += 1
    v += 10
    expected = expect(q, k, v, scale=0.25)
    out, lse = emulated.run(style, q, k, v, scale=0.25, window=None)

    assert compare(out, expected).passed
    assert compare_lse(lse, expected).passed
    assert compare_lse(lse, expected).max_error > expected.lse_limit_TH.max() / 20  # there is something to allow


def test_zeros_are_rejected_where_rounded_scores_decide_between_a_few_tokens() -> None:
    """bfloat16 scores of 192 are rounded by up to 0.5: what is allowed for that never reaches the output itself."""
    rng, judged = random.Random(3), 0
    for _ in range(300):
        q, k, v, scale = emulated.random_inputs(rng, torch.bfloat16, "steep")
        expected = expect(2 * q, k, v, scale=scale)
        size_TH = expected.oracle.out_THD.abs().amax(2)
        sound_TH = expected.baseline_max_TH < 0.25 * size_TH  # else plain code is as wrong as zeros
        judged += int(sound_TH.sum())
        assert bool((size_TH > expected.max_limit_TH)[sound_TH].all())
    assert judged > 1000


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_lse_of_torchs_own_kernel_is_accepted(dtype: torch.dtype) -> None:
    """Its exponential is a fast one for these dtypes: exp(0) is a little below 1."""
    q, k, v = torch.zeros(1, 2, 16, dtype=dtype), torch.ones(16, 2, 16, dtype=dtype), torch.ones(16, 2, 16, dtype=dtype)
    mask = torch.zeros(1, 1, 1, 16, dtype=dtype)
    mask[..., :-1] = -torch.inf
    heads_first = (tensor.transpose(0, 1)[None] for tensor in (q, k, v))
    _, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(*heads_first, attn_mask=mask, scale=0.25)

    assert compare_lse(lse.reshape(1, 2), expect(q, k, v, scale=0.25, window=1)).passed


def test_tf32_products_need_the_tf32_limits() -> None:
    generator = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(n, 2, 64, generator=generator) for n in (1, 300, 300))
    truncated = [(t.view(torch.int32) & ~0x1FFF).view(torch.float32) for t in (q, k, v)]  # TF32, rounded down
    out, lse = dense_attention(*truncated, scale=SCALE)

    assert not compare(out, expect(q, k, v, scale=SCALE)).passed
    assert compare(out, expect(q, k, v, scale=SCALE, tf32=True)).passed
    assert compare_lse(lse, expect(q, k, v, scale=SCALE, tf32=True)).passed


def test_an_empty_row_must_be_exactly_zero() -> None:
    q, none = torch.randn(1, 2, 8), torch.empty(0, 2, 8)
    expected = expect(q, none, none, scale=1.0)

    assert compare(torch.zeros(1, 2, 8), expected).passed
    assert compare_lse(torch.full((1, 2), -torch.inf), expected).passed
    assert not compare(torch.full((1, 2, 8), 1e-30), expected).passed
    assert not compare_lse(torch.full((1, 2), -1e30), expected).passed


def test_a_case_without_a_baseline_is_refused() -> None:
    huge = torch.full((1, 1, 64), 200.0).half()
    with pytest.raises(ValueError, match=r"overflow torch\.float16"):
        expect(huge, huge, huge, scale=1.0)
