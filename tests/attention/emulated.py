"""Correct attention kernels of many styles, emulated in float32: what the tolerance must accept.

A style says where the scale goes, whether scores are kept in the dtype, how the exponential is computed, what the sum of
the weights is taken of, how many splits there are and in which precision their partial results are kept and merged, and
the tile size. Each is that of a public engine; the comments name one.

Letters: T query tokens, N context tokens, H query heads, G KV heads, D head size.
"""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from paged_ref.dense import expand_heads, visible
from paged_ref.partition import merge

LOG2_E = math.log2(math.e)


@dataclass(frozen=True)
class Style:
    """How a kernel computes. `scale_in`: "query" or "both" (query and keys, as torch's plain path does; rounded to
    the dtype), "float32 query" or "scores". What is rough is so for float16 and bfloat16 alone.
    """

    scale_in: str = "scores"
    base_2: bool = False
    scores_in_dtype: bool = False  # HF eager, lightllm
    rough_exp: bool = False  # a polynomial of degree 3, as FlashAttention-4 has
    lazy: bool = False  # the maximum is followed when it has grown by 8 in base 2: FlashAttention-4
    cast_weights: bool = True
    sum_of_cast: bool = False  # the sum of the weights is that of the rounded ones: FlashInfer's prefill
    num_splits: int = 1
    partials_in_dtype: bool = False  # vLLM's paged attention v2
    chained: bool = False  # partial results are merged one after the other: vLLM's chunked context
    tile: int = 64


def random_style(rng: random.Random) -> Style:
    """One of the styles that public kernels have."""
    return Style(
        scale_in=rng.choice(["query", "both", "float32 query", "scores"]),
        base_2=rng.random() < 0.5,
        scores_in_dtype=rng.random() < 0.2,
        rough_exp=rng.random() < 0.2,
        lazy=rng.random() < 0.2,
        cast_weights=rng.random() < 0.7,
        sum_of_cast=rng.random() < 0.2,
        num_splits=rng.choice([1, 1, 2, 3, 7]),
        partials_in_dtype=rng.random() < 0.3,
        chained=rng.random() < 0.3,
        tile=rng.choice([1, 4, 16, 32, 64]),
    )


def run(style: Style, q: Tensor, k: Tensor, v: Tensor, *, scale: float, window: int | None) -> tuple[Tensor, Tensor]:
    """(out [T, H, D] in the inputs' dtype, lse [T, H] in float32) of a correct kernel of this style."""
    dtype, (num_queries, num_heads, _), context_len = q.dtype, q.shape, k.shape[0]
    factor = scale * (LOG2_E if style.base_2 else 1.0)
    queries, keys = q.float(), k.float()
    if style.scale_in == "both":
        queries, keys = queries * factor**0.5, (keys * factor**0.5).to(dtype).float()
    elif style.scale_in != "scores":
        queries = queries * factor
    if style.scale_in in ("query", "both"):
        queries = queries.to(dtype).float()
    scores = torch.einsum("thd,nhd->htn", queries, expand_heads(keys, num_heads))
    if style.scale_in == "scores":
        scores *= factor
    if style.scores_in_dtype:
        scores = scores.to(dtype).float()
    seen = visible(num_queries, context_len, window=window)
    scores.masked_fill_(~seen, -torch.inf)
    edges = [round(i * context_len / style.num_splits) for i in range(style.num_splits + 1)]
    partials = [
        _fold(style, scores[:, :, a:b], expand_heads(v.float(), num_heads)[a:b], dtype) for a, b in pairwise(edges)
    ]
    out, lse = _chained(partials, dtype) if style.chained else _merged(partials)
    return out.to(dtype).transpose(0, 1), lse.transpose(0, 1)


def _merged(partials: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    return merge(torch.stack([out for out, _ in partials]), torch.stack([lse for _, lse in partials]))


def _chained(partials: list[tuple[Tensor, Tensor]], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Each partial result merged into those before it, whose output is kept in the dtype."""
    so_far = partials[0]
    for partial in partials[1:]:
        out, lse = _merged([so_far, partial])
        so_far = out.to(dtype).float(), lse
    return so_far


def _rough_exp2(exponent: Tensor) -> Tensor:
    """2**exponent to 1e-4: the whole part by the exponent's bits, the rest by a polynomial of degree 3."""
    exponent = exponent.clamp_min(-127.0)
    rest = exponent - exponent.floor()
    mantissa = 1.0 + rest * (0.695146143 + rest * (0.227564394 + rest * 0.0771190897))
    return torch.ldexp(mantissa, exponent.floor()).masked_fill(exponent <= -127.0, 0.0)


def _rough_exp(exponent: Tensor) -> Tensor:
    return _rough_exp2(exponent * LOG2_E)


def _fold(style: Style, scores: Tensor, values: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Online softmax over tiles of one split: (out [H, T, D], natural lse [H, T])."""
    log, unit = (torch.log2, math.log(2)) if style.base_2 else (torch.log, 1.0)
    exp: Callable[[Tensor], Tensor] = torch.exp2 if style.base_2 else torch.exp
    if style.rough_exp and dtype != torch.float32:
        exp = _rough_exp2 if style.base_2 else _rough_exp
    slack = (8.0 if style.base_2 else 8.0 * math.log(2)) if style.lazy else 0.0
    maximum = torch.full(scores.shape[:2], -torch.inf)
    total = torch.zeros(scores.shape[:2])
    weighted = torch.zeros(*scores.shape[:2], values.shape[2])
    for begin in range(0, scores.shape[2], style.tile):
        tile = scores[:, :, begin : begin + style.tile]
        highest = tile.amax(2)
        new_maximum = torch.where(highest > maximum + slack, highest, maximum)
        reference = new_maximum.masked_fill(new_maximum == -torch.inf, 0.0)
        kept, weights = exp(maximum - reference), exp(tile - reference[:, :, None])
        cast = weights.to(dtype).float() if style.cast_weights else weights
        total = total * kept + (cast if style.sum_of_cast else weights).sum(2)
        weighted = weighted * kept[:, :, None]
        weighted += torch.einsum("htn,nhd->htd", cast, values[begin : begin + style.tile])
        maximum = new_maximum
    out = weighted / total.clamp_min(torch.finfo(torch.float32).tiny)[:, :, None]
    out = out.to(dtype).float() if style.partials_in_dtype else out
    return out, (maximum + log(total)) * unit


INPUT_KINDS = (
    *("normal", "peaked", "large scores", "small values", "tiny values"),
    *("shifted", "equal keys", "near equal", "zero queries", "steep"),
)


def random_inputs(rng: random.Random, dtype: torch.dtype, kind: str) -> tuple[Tensor, Tensor, Tensor, float]:
    """(q, k, v, scale) of a random shape: head counts, head sizes and ratios beside the powers of two."""
    generator = torch.Generator().manual_seed(rng.randrange(2**31))
    num_kv_heads, head_size = rng.choice([1, 2, 3]), rng.choice([8, 16, 24, 64, 80, 128])
    ratio, context_len = rng.choice([1, 2, 3, 5]), rng.choice([1, 2, 3, 5, 8, 16, 17, 40, 100, 300])
    context_len = 2000 if rng.random() < 0.005 else context_len
    num_queries = min(context_len, rng.choice([1, 1, 1, 2, 5]))
    q = torch.randn(num_queries, num_kv_heads * ratio, head_size, generator=generator)
    k = torch.randn(context_len, num_kv_heads, head_size, generator=generator)
    v = torch.randn(context_len, num_kv_heads, head_size, generator=generator)
    scale = head_size**-0.5
    if kind == "peaked":
        for head in range(q.shape[1]):
            peak, query = rng.choice([0, context_len - 1, rng.randrange(context_len)]), q[-1, head]
            height = rng.choice([2.0, math.log(context_len) + 2, 10.0, 30.0])
            k[peak, head // ratio] = query * height / (scale * float(query @ query))
    elif kind == "equal keys":  # weights that all round the same way
        k[:] = k[0]
        k[rng.randrange(context_len)] += 1
    elif kind == "near equal":  # weights a little below 1, which are all rounded the same way
        q *= rng.choice([0.3, 0.03, 0.003])
    elif kind == "steep":  # scores from -96 to 96, 64 apart
        q[:, :, -1], k[:, :, -1] = 1.0, 64 / scale * ((torch.arange(context_len) // 16).clamp(max=3) - 1.5)[:, None]
    elif kind == "zero queries":
        q *= 0
    elif kind == "large scores":
        q *= 8
    elif kind == "small values":
        v *= 1e-3
    elif kind == "tiny values":  # where float16 has no normal numbers
        v *= 1e-6
    elif kind == "shifted":
        k, v = k + 3, v + 10
    return q.to(dtype), k.to(dtype), v.to(dtype), scale
