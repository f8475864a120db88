"""Is a wrong result merely imprecise? Then what must change is a declaration, or the type of one intermediate.

Each explanation is computed from the same tokens: the limits of a coarser type, or attention whose sums are kept in one.

Letters: T query tokens, N context tokens, H query heads, D head size.
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from paged_ref.dense import expand_heads, score_sums, softmax, visible, weighted_values
from paged_ref.parity import Expected, compare, compare_lse, expect
from properties.attention.cases import ReadCase
from properties.attention.contents import DTYPES, Content, expect_row

TIMES = 2.0
"""An error of so many times that of an emulation is as large as that."""
CLOSER = 0.5
"""A result that is nearer to an emulation than so many times its error is explained by it."""
MUCH_CLOSER = 0.2
"""With two tokens any change of a weight moves the output along one line: half of it fits by chance."""
MOST_OF_OUTPUT = 0.25
"""An explanation that allows for more of the output would fit anything."""
LEFT_BY_FACTOR = 0.25
"""What a factor leaves of the error is more where the error is not that of a factor."""
LEAST_OF_COARSER = 0.25
"""A result with a smaller part of the error of a coarser type has no cause there."""
MOST_TOKENS = 2048
"""Sums over more tokens are not emulated, one token after the other: it would take seconds."""

COARSER: dict[str, tuple[str, ...]] = {"float32": ("float16", "bfloat16"), "float16": ("bfloat16",), "bfloat16": ()}
NONE_KNOWN = "no known mistake gives this output"
TF32 = "it is right to the precision of TF32 products: "
IEEE = "ask for float32 products (Triton: input_precision='ieee')"


def hint(case: ReadCase, content: Content, actual: Tensor, expected: Expected, *, tf32: bool) -> str:
    """What precision an output [T, H, D] or an LSE [T, H] has, and what to do about it; "" if it is just wrong."""
    if not content.k.shape[0]:
        return ""
    judge, limit_TH = (compare, expected.max_limit_TH) if actual.dim() == 3 else (compare_lse, expected.lse_limit_TH)
    errors = (actual.double() - _right(expected, actual)).abs()
    if not bool(errors.nan_to_num(nan=torch.inf).isfinite().all()):
        return ""
    if actual.dim() == 2 and (kept := _rounded_to(actual, errors, limit_TH)):
        return f"it is right to the precision of {kept}: keep the LSE in float32"
    if actual.dim() == 3 and (told := _of_wrong_sums(actual, expected.oracle.out_THD, limit_TH)):
        return told
    rounded = _all_rounded(case, actual, expected) if actual.dim() == 3 else None
    unknown = f"{NONE_KNOWN}; " if actual.dim() == 3 else ""
    if case.dtype == "float32" and not tf32 and judge(actual, expect_row(case, content, tf32=True)).passed:
        if actual.dim() == 2 or _nearer(actual, errors, _in_tf32(case, content)):
            # With 10 bits of mantissa a float16 number is one of TF32.
            return f"{TF32}declare tf32=True if they are meant (bf16x3 too), else {IEEE}{f'; or {rounded}' if rounded else ''}"
        return rounded or f"{unknown}{TF32}{IEEE} if there are any; or is some intermediate result float16 or bfloat16?"
    return rounded or _as_far_off(case, content, actual, expected, unknown)


def _as_far_off(case: ReadCase, content: Content, actual: Tensor, expected: Expected, unknown: str) -> str:
    """Which sums, or which coarser type, would be as far off; "" if none."""
    judge, limit_TH = (compare, expected.max_limit_TH) if actual.dim() == 3 else (compare_lse, expected.lse_limit_TH)
    right = _right(expected, actual)
    most = float((actual.double() - right).abs().max())
    for of, emulated in _emulated(case, content, actual.dim()):
        away = (emulated - right).abs()
        small = float(away.max()) < MOST_OF_OUTPUT * float(right.abs().max())
        as_large = small and most <= TIMES * float(away.max())
        explained = float((actual.double() - emulated).abs().max()) <= CLOSER * most
        if (as_large or explained) and float((away.reshape(*limit_TH.shape, -1).amax(2) / limit_TH).max()) > 0.5:
            return f"{unknown}it is as far off as sums of {of} in {case.dtype} are: keep them in float32"
    for dtype in COARSER[case.dtype]:
        coarse = _coarser(case, content, expected, dtype)
        if judge(actual, coarse).passed and most >= LEAST_OF_COARSER * _usual_error(coarse, actual.dim()):
            return f"{unknown}it is right to the precision of {dtype}: is some intermediate result of that type?"
    return ""


def _right(expected: Expected, actual: Tensor) -> Tensor:
    return expected.oracle.out_THD if actual.dim() == 3 else expected.oracle.lse_TH


def _of_wrong_sums(actual_THD: Tensor, oracle_THD: Tensor, limit_TH: Tensor) -> str | None:
    """Said of an output that is the right one but for a factor of each (token, head)."""
    actual, square_TH = actual_THD.double(), (oracle_THD**2).sum(2)
    factor_TH = (actual * oracle_THD).sum(2) / square_TH.clamp_min(torch.finfo(torch.float64).tiny)
    wrong_TH = (actual - oracle_THD).abs().amax(2)
    left_TH = (actual - factor_TH[..., None] * oracle_THD).abs().amax(2)
    if bool((left_TH > limit_TH).any()) or float(left_TH.max()) > LEFT_BY_FACTOR * float(wrong_TH.max()):
        return None
    factors = factor_TH[wrong_TH > limit_TH / 2]
    if bool((factors.abs() < LEFT_BY_FACTOR).all()):
        return "it is zero: was it written?"
    least, most = (f"{float(factor):.7g}" for factor in (factors.min(), factors.max()))
    times = least if least == most else f"{least} to {most}"
    return f"it is {times} times the right output: what a (token, head) is divided by is not the sum of its weights"


def _all_rounded(case: ReadCase, actual_THD: Tensor, expected: Expected) -> str | None:
    """Said of an output whose every value is one of a coarser type."""
    for dtype in COARSER[case.dtype]:
        eps, right_THD = torch.finfo(DTYPES[dtype]).eps, expected.oracle.out_THD
        near_TH = eps * right_THD.abs().amax(2) + expected.max_limit_TH
        wrong_TH = (actual_THD.double() - right_THD).abs().amax(2)
        if torch.equal(actual_THD.to(DTYPES[dtype]).to(actual_THD.dtype), actual_THD) and bool(
            (wrong_TH <= near_TH).all()
        ):
            return f"every value is rounded to {dtype}: keep sums and their quotient in float32 and the output in {case.dtype}"
    return None


def _nearer(actual: Tensor, errors: Tensor, emulations: Iterator[Tensor]) -> bool:
    """Whether the output is much nearer to one of them than to what is right."""
    most = MUCH_CLOSER * float(errors.max())
    return any(float((actual.double() - emulated).abs().max()) <= most for emulated in emulations)


def _in_tf32(case: ReadCase, content: Content) -> Iterator[Tensor]:
    """Outputs [T, H, D] of products whose factors are rounded to TF32, to nearest or towards zero, or are three products
    in bfloat16; the weights too or not."""
    seen_TN = visible(content.q.shape[0], content.k.shape[0], window=case.window)
    for half in (0x1000, 0):
        for of_weights in (half, None):
            q, k, v = (_cut_to_tf32(tensor, half) for tensor in (content.q, content.k, content.v))
            scores_HTN = (case.effective_scale * score_sums(q, k)).masked_fill(~seen_TN, -torch.inf)
            weights_HTN = torch.exp(scores_HTN - scores_HTN.amax(2, keepdim=True))
            cut_HTN = weights_HTN if of_weights is None else _cut_to_tf32(weights_HTN.float(), of_weights)
            yield (weighted_values(cut_HTN, v) / weights_HTN.sum(2, keepdim=True)).transpose(0, 1)
    (q, q_low), (k, k_low), (v, v_low) = (_in_two(tensor) for tensor in (content.q, content.k, content.v))
    sums_HTN = score_sums(q + q_low, k + k_low) - score_sums(q_low, k_low)
    weights, low = _in_two(softmax((case.effective_scale * sums_HTN).masked_fill(~seen_TN, -torch.inf))[0].float())
    yield (weighted_values(weights + low, v + v_low) - weighted_values(low, v_low)).transpose(0, 1)


def _cut_to_tf32(tensor: Tensor, half: int) -> Tensor:
    """float64 of float32 numbers, of whose mantissa 10 bits are left. `half` is added before the rest is cut off."""
    return ((tensor.contiguous().view(torch.int32) + half) & ~0x1FFF).view(torch.float32).double()


def _in_two(tensor: Tensor) -> tuple[Tensor, Tensor]:
    """The bfloat16 number that is nearest, and that which is nearest to the rest, in float64."""
    high = tensor.bfloat16()
    return high.double(), (tensor - high.float()).bfloat16().double()


def _usual_error(coarse: Expected, dim: int) -> float:
    """The largest error of plain code in the coarser type."""
    return float((coarse.baseline_max_TH if dim == 3 else coarse.baseline_lse_TH).max())


def _rounded_to(lse_TH: Tensor, errors_TH: Tensor, limit_TH: Tensor) -> str | None:
    """The dtype that an LSE was rounded to, if that is all that is wrong with it."""
    for dtype in ("float16", "bfloat16"):
        rounded = lse_TH.to(DTYPES[dtype]).to(lse_TH.dtype)
        allowed = limit_TH + torch.finfo(DTYPES[dtype]).eps * lse_TH.double().abs()
        if torch.equal(rounded, lse_TH) and bool((errors_TH <= allowed).all()):
            return dtype
    return None


def _coarser(case: ReadCase, content: Content, expected: Expected, dtype: str) -> Expected:
    """The limits of the same case in a coarser type, which rounds the inputs too."""
    inputs = [tensor.to(DTYPES[dtype]) for tensor in (content.q, content.k, content.v)]
    if not all(bool(tensor.isfinite().all()) for tensor in inputs):
        return expected
    try:
        coarse = expect(*inputs, scale=case.effective_scale, window=case.window)
    except ValueError:  # it overflows
        return expected
    moved_THD = (coarse.oracle.out_THD - expected.oracle.out_THD).abs()
    moved_TH = (coarse.oracle.lse_TH - expected.oracle.lse_TH).nan_to_num(nan=0.0).abs()
    most_TH = MOST_OF_OUTPUT * expected.oracle.out_THD.abs().amax(2)
    return replace(
        coarse,
        oracle=expected.oracle,
        max_limit_TH=torch.minimum(coarse.max_limit_TH + moved_THD.amax(2), most_TH),
        mean_limit_TH=torch.minimum(coarse.mean_limit_TH + moved_THD.mean(2), most_TH),
        lse_limit_TH=coarse.lse_limit_TH + moved_TH,
    )


def _emulated(case: ReadCase, content: Content, dim: int) -> Iterator[tuple[str, Tensor]]:
    """Attention whose sums are kept in the dtype, term by term: (sums of what, out [T, H, D] or LSE [T, H])."""
    if content.k.shape[0] > MOST_TOKENS or case.dtype == "float32" or not content.q.numel():
        return
    dtype, (T, H, D) = DTYPES[case.dtype], content.q.shape
    q = content.q.float().permute(1, 0, 2)
    k, v = (expand_heads(tensor.float(), H).permute(1, 0, 2) for tensor in (content.k, content.v))
    hidden_TN = ~visible(T, k.shape[1], window=case.window)
    products = (q[:, :, d, None] * k[:, None, :, d] for d in range(D))
    for of, sums in (("the products of queries and keys", _summed(products, dtype)), ("weighted values", q @ k.mT)):
        scores_HTN = (case.effective_scale * sums).masked_fill(hidden_TN, -torch.inf)
        weights_HTN = torch.exp(scores_HTN - scores_HTN.amax(2, keepdim=True))
        if dim == 2:
            yield of, torch.logsumexp(scores_HTN, 2).T.double()
            return
        terms = (weights_HTN[:, :, n, None] * v[:, n, None] for n in range(k.shape[1]))
        out = _summed(terms, dtype) if of == "weighted values" else weights_HTN @ v
        yield of, (out / weights_HTN.sum(2, keepdim=True)).permute(1, 0, 2).double()


def _summed(terms: Iterator[Tensor], dtype: torch.dtype) -> Tensor:
    """Their sum, rounded to `dtype` after each term."""
    total = next(terms).to(dtype).float()
    for term in terms:
        total = (total + term).to(dtype).float()
    return total
