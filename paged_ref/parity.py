"""When is a low-precision result right? The tolerance of this project, and why it is not a constant.

A result is compared with float64 attention on the stored (rounded) inputs. How far a correct kernel may be
away depends on the data, so it is measured: the same case is computed twice by plain low-precision code,
once with the scale folded into the query and once with the scale applied to the scores. Real kernels do
either, and at large scores they differ. Of these two runs the worse one is the *baseline*. For each query
token and head:

    max error  <= 2   * baseline max error  + (4 * eps + noise) * spread + eps / 2 * score spread
    mean error <= 1.5 * baseline mean error + (1 * eps + noise) * spread + eps / 2 * score spread

eps is the dtype's. `spread` is max over the dimensions of sqrt(sum p_i^2 v_i^2) + |sum p_i v_i|, with p the
exact weights: what independent and what common relative errors of the weights do to the output. It covers
baselines that are exact by luck; without a floor short cases raise false alarms. max |V| in its place would
be blind: it does not shrink with the context, the effect of one wrong token does (nor does any fixed
tolerance). `noise` is what float32 sums leave in every kernel, whatever its dtype: float32 eps times (the
largest sum of |scale * q_i * k_i| + sqrt(N)). Sums that run token by token over weights that are nearly
equal all round the same way: N / 4 float32 eps of |sum p_i v_i|, and of the LSE, are allowed for that, and 2e-6 of it
for what vLLM adds to the sum of the weights before it divides. `score spread` is
sqrt(sum p_i^2 s_i^2 (v_i - out)^2), with s_i the exact scores: what scores that are kept in the dtype do to the output,
each rounded by itself. Where few tokens at scores of 100 decide, one baseline is too small by luck. The factor 2 is
flash-attn's (tests/test_flash_attn.py), the mean bound FlashAttention-3's (hopper/test_flash_attn.py).

Letters: T query tokens, N context tokens, H query heads, G KV heads, D head size.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from .dense import AttentionResult, Exact, exact_attention, score_sums, softmax, visible, weighted_values

MAX_FACTOR = 2.0
MEAN_FACTOR = 1.5
# In 24,000 correct runs of every style and dtype at most 0.95 and 0.34 were needed: four and three times
# less.
MAX_FLOOR_EPS = 4.0
MEAN_FLOOR_EPS = 1.0
# Scores in the dtype needed 0.4 beyond the other limits in 16,000 correct runs at scores of 10 to 256, with q and k rounded
# as well. It is bounded, or zeros would pass where bfloat16 scores of 100 decide between a few tokens.
SCORE_FLOOR_EPS = 0.5
MOST_OF_OUTPUT = 0.25
LSE_FACTOR = 2.0
# Rounding the scaled query to the dtype moves a score by at most eps / 2 of the sum of its |products|;
# rounding the scaled keys as well, which torch's plain path does, by as much again.
LSE_FLOOR_EPS = 1.0
# Weights that are rounded to the dtype before they are summed, as FlashInfer's prefill does by a product with ones, may
# all be rounded the same way; approximations of exp for low precision (torch on a CPU, FA4) err by less than that.
LSE_WEIGHT_EPS = 0.5
# Float32 sums of a few hundred terms in any order: 2.2 eps was the most in 4,000 correct runs (nothing else
# in them).
LSE_FLOOR_EPS32 = 4.0
# Of a running float32 sum, for each term: 0.13 eps was the most in 600 correct runs over 300 to 8192 equal
# keys but one.
BIAS_EPS32 = 0.25
# vLLM's paged_attention_v1 and v2 add 1e-6 to the sum of the weights, at least 1, before they divide by it, v2 in each
# partition and once more where it merges them (csrc/attention/attention_kernels.cuh).
SUM_EPSILON = 2e-6
EPS32 = torch.finfo(torch.float32).eps
EPS_TF32 = 2.0**-10


def low_precision_attention(
    q_THD: Tensor,
    k_NGD: Tensor,
    v_NGD: Tensor,
    *,
    scale: float,
    scale_in_query: bool,
    seen_TN: Tensor,
    tf32: bool = False,
) -> AttentionResult:
    """Attention as plain code in the inputs' dtype computes it: every intermediate tensor is rounded to it.

    Products accumulate in float32 whatever the dtype, as tensor cores do, so that the result does not
    depend on the matrix library of the machine. With `tf32` (float32 inputs only) the factors of each
    product are rounded to TF32, as a GPU may do. Returns float32 out and lse, on the CPU.
    """
    dtype = q_THD.dtype
    q, k, v = (tensor.detach().to("cpu", torch.float32) for tensor in (q_THD, k_NGD, v_NGD))
    if scale_in_query:
        q = _rounded(q * scale, dtype)
    scores_HTN = _rounded(score_sums(*(_rounded_to_tf32(t) if tf32 else t for t in (q, k))), dtype)
    if not scale_in_query:
        scores_HTN = _rounded(scores_HTN * scale, dtype)
    weights_HTN, lse_HT = softmax(scores_HTN.masked_fill_(~seen_TN, -torch.inf))
    factors = (_rounded_to_tf32(t) if tf32 else t for t in (_rounded(weights_HTN, dtype), v))
    return AttentionResult(_rounded(weighted_values(*factors), dtype).transpose(0, 1), lse_HT.T)


def _rounded(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Rounded to `dtype` and back to float32."""
    return tensor.to(dtype).float()


def _rounded_to_tf32(tensor: Tensor) -> Tensor:
    """Rounded to 10 bits of mantissa, half away from zero, as NVIDIA's cvt.rna.tf32 does."""
    bits = tensor.contiguous().view(torch.int32)
    return ((bits + 0x1000) & ~0x1FFF).view(torch.float32)


@dataclass(frozen=True)
class Expected:
    """What a correct kernel may return for one sequence: the oracle and how far each (token, head) may be
    away.

    All tensors are float64 on the CPU: `oracle` as `dense_attention` returns it, the rest [T, H].
    """

    oracle: AttentionResult
    baseline_max_TH: Tensor
    baseline_mean_TH: Tensor
    baseline_lse_TH: Tensor
    max_limit_TH: Tensor
    mean_limit_TH: Tensor
    lse_limit_TH: Tensor


class Comparison(NamedTuple):
    """One result judged. `worst` is (token, head, dimension) of the error that exceeds its limit the most.

    The four numbers belong to the row (token, head) of `worst`; `num_bad_rows` counts rows over a limit.
    For an LSE the mean fields equal the max fields and the dimension is 0.
    """

    passed: bool
    worst: tuple[int, int, int]
    actual: float
    oracle: float
    max_error: float
    max_limit: float
    mean_error: float
    mean_limit: float
    baseline_max_error: float
    num_bad_rows: int
    num_rows: int


def expect(
    q_THD: Tensor,
    k_NGD: Tensor,
    v_NGD: Tensor,
    *,
    scale: float,
    causal: bool = True,
    window: int | None = None,
    tf32: bool = False,
) -> Expected:
    """The oracle and the limits for one sequence, from its own tokens, never through a block table.

    The inputs must be finite and of one dtype. Raises ValueError if both low-precision runs overflow: such
    a case has no baseline, and a limit made from it would accept everything.
    """
    seen_TN = visible(q_THD.shape[0], k_NGD.shape[0], causal=causal, window=window)
    exact = exact_attention(q_THD, k_NGD, v_NGD, scale=scale, seen_TN=seen_TN)
    oracle = exact.result
    runs = [
        low_precision_attention(q_THD, k_NGD, v_NGD, scale=scale, scale_in_query=folded, seen_TN=seen_TN, tf32=tf32)
        for folded in (True, False)
    ]
    runs = [run for run in runs if bool(run.out_THD.isfinite().all()) and not bool(run.lse_TH.isposinf().any())]
    if not runs:
        raise ValueError(f"both low-precision runs overflow {q_THD.dtype}: scale the inputs down")
    errors = torch.stack([(run.out_THD.double() - oracle.out_THD).abs() for run in runs])
    baseline_max_TH, baseline_mean_TH = errors.amax(3).amax(0), errors.mean(3).amax(0)
    products_TH = _largest_score_sum(exact, scale, seen_TN)
    squares_NGD = exact.v**2
    # Below the dtype's smallest normal number rounding is no longer relative.
    spread_TH = _spread(exact, squares_NGD).clamp_min(torch.finfo(v_NGD.dtype).tiny)
    spread_TH.masked_fill_(oracle.lse_TH == -torch.inf, 0.0)
    bias_T1 = BIAS_EPS32 * EPS32 * seen_TN.sum(1, keepdim=True)
    eps = EPS_TF32 if tf32 else torch.finfo(q_THD.dtype).eps
    scores_THD = SCORE_FLOOR_EPS * eps * _score_spread(exact, squares_NGD)
    size_THD = oracle.out_THD.abs()
    noise_TH = EPS32 * (products_TH + k_NGD.shape[0] ** 0.5)
    baseline_lse_TH = torch.stack([_distance(run.lse_TH.double(), oracle.lse_TH) for run in runs]).amax(0)
    return Expected(
        oracle,
        baseline_max_TH,
        baseline_mean_TH,
        baseline_lse_TH,
        MAX_FACTOR * baseline_max_TH
        + (MAX_FLOOR_EPS * eps + noise_TH) * spread_TH
        + torch.minimum(scores_THD.amax(2), MOST_OF_OUTPUT * size_THD.amax(2))
        + (bias_T1 + SUM_EPSILON) * size_THD.amax(2),
        MEAN_FACTOR * baseline_mean_TH
        + (MEAN_FLOOR_EPS * eps + noise_TH) * spread_TH
        + torch.minimum(scores_THD.mean(2), MOST_OF_OUTPUT * size_THD.mean(2))
        + bias_T1 * size_THD.amax(2)
        + SUM_EPSILON * size_THD.mean(2),
        LSE_FACTOR * baseline_lse_TH
        + eps * (LSE_FLOOR_EPS * products_TH + LSE_WEIGHT_EPS)
        + LSE_FLOOR_EPS32 * EPS32 * (1 + products_TH)
        + bias_T1,
    )


def _largest_score_sum(exact: Exact, scale: float, seen_TN: Tensor) -> Tensor:
    """Per (token, head) the largest sum of |scale * q_i * k_i| over the visible keys: what float32 rounds."""
    if exact.k.shape[0] == 0:
        return torch.zeros(exact.q.shape[:2], dtype=torch.float64)
    return abs(scale) * score_sums(exact.q.abs(), exact.k.abs()).masked_fill_(~seen_TN, 0.0).amax(2).T


def _spread(exact: Exact, squares_NGD: Tensor) -> Tensor:
    """Per (token, head) max over d of sqrt(sum_n p_n^2 v_nd^2) + |sum_n p_n v_nd|. `squares_NGD`: v^2."""
    independent_HTD = weighted_values(exact.weights_HTN**2, squares_NGD).sqrt()
    return (independent_HTD.transpose(0, 1) + exact.result.out_THD.abs()).amax(2)


def _score_spread(exact: Exact, squares_NGD: Tensor) -> Tensor:
    """[T, H, D]: sqrt(sum_n p_n^2 s_n^2 (v_nd - out_d)^2), s the scores. `squares_NGD`: v^2."""
    squares_HTN = (exact.weights_HTN * exact.scores_HTN) ** 2
    out_HTD = exact.result.out_THD.transpose(0, 1)
    of_values = weighted_values(squares_HTN, exact.v)
    square_HTD = weighted_values(squares_HTN, squares_NGD) - 2 * out_HTD * of_values
    square_HTD += squares_HTN.sum(2, keepdim=True) * out_HTD**2
    return square_HTD.clamp_min(0.0).sqrt().transpose(0, 1)


def compare(actual_THD: Tensor, expected: Expected) -> Comparison:
    """Judges an output [T, H, D]. A NaN or infinity fails, whatever the limits are."""
    return _verdict(
        actual_THD,
        expected.oracle.out_THD,
        max_limit_TH=expected.max_limit_TH,
        mean_limit_TH=expected.mean_limit_TH,
        baseline_TH=expected.baseline_max_TH,
    )


def compare_lse(actual_TH: Tensor, expected: Expected) -> Comparison:
    """Judges a log-sum-exp [T, H] (natural logarithm); where the oracle says -inf it must be -inf."""
    return _verdict(
        actual_TH[..., None],
        expected.oracle.lse_TH[..., None],
        max_limit_TH=expected.lse_limit_TH,
        mean_limit_TH=expected.lse_limit_TH,
        baseline_TH=expected.baseline_lse_TH,
    )


def _verdict(
    actual_THD: Tensor,
    oracle_THD: Tensor,
    *,
    max_limit_TH: Tensor,
    mean_limit_TH: Tensor,
    baseline_TH: Tensor,
) -> Comparison:
    if actual_THD.shape != oracle_THD.shape:
        raise ValueError(f"the result has shape {tuple(actual_THD.shape)}, expected {tuple(oracle_THD.shape)}")
    if oracle_THD.numel() == 0:
        return Comparison(True, (0, 0, 0), 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0, 0)
    actual = actual_THD.detach().to("cpu", torch.float64)
    errors_THD = _distance(actual, oracle_THD).nan_to_num(nan=torch.inf, posinf=torch.inf)
    max_TH, mean_TH = errors_THD.amax(2), errors_THD.mean(2)
    bad_TH = (max_TH > max_limit_TH) | (mean_TH > mean_limit_TH)
    tiny = torch.finfo(torch.float64).tiny  # limits of empty rows are 0
    excess_TH = torch.maximum(max_TH / max_limit_TH.clamp_min(tiny), mean_TH / mean_limit_TH.clamp_min(tiny))
    token, head = divmod(int(excess_TH.argmax()), excess_TH.shape[1])
    dimension = int(errors_THD[token, head].argmax())
    return Comparison(
        passed=not bool(bad_TH.any()),
        worst=(token, head, dimension),
        actual=float(actual[token, head, dimension]),
        oracle=float(oracle_THD[token, head, dimension]),
        max_error=float(max_TH[token, head]),
        max_limit=float(max_limit_TH[token, head]),
        mean_error=float(mean_TH[token, head]),
        mean_limit=float(mean_limit_TH[token, head]),
        baseline_max_error=float(baseline_TH[token, head]),
        num_bad_rows=int(bad_TH.sum()),
        num_rows=bad_TH.numel(),
    )


def _distance(actual: Tensor, oracle: Tensor) -> Tensor:
    """|actual - oracle|, and 0 where both are the same infinity."""
    return torch.where(actual == oracle, 0.0, (actual - oracle).abs())
