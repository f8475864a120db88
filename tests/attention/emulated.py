"""Correct attention kernels of many styles, emulated in float32: what the tolerance must accept.

A style says where the scale goes, whether the softmax is in base 2, whether the weights are cast to the
dtype of the values, how many splits there are and in which precision their partial results are kept, and
the tile size.

Letters: T query tokens, N context tokens, H query heads, G KV heads, D head size.
"""

import math
import random
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
    the dtype), "float32 query" or "scores".
    """

    scale_in: str
    base_2: bool
    cast_weights: bool
    num_splits: int
    partials_in_dtype: bool
    tile: int


def random_style(rng: random.Random) -> Style:
    """One of the styles that public kernels have."""
    return Style(
        scale_in=rng.choice(["query", "both", "float32 query", "scores"]),
        base_2=rng.random() < 0.5,
        cast_weights=rng.random() < 0.7,
        num_splits=rng.choice([1, 1, 2, 3, 7]),
        partials_in_dtype=rng.random() < 0.3,
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
    seen = visible(num_queries, context_len, window=window)
    scores.masked_fill_(~seen, -torch.inf)
    edges = [round(i * context_len / style.num_splits) for i in range(style.num_splits + 1)]
    partials = [
        _fold(style, scores[:, :, a:b], expand_heads(v.float(), num_heads)[a:b], dtype) for a, b in pairwise(edges)
    ]
    out, lse = merge(torch.stack([p[0] for p in partials]), torch.stack([p[1] for p in partials]))
    return out.to(dtype).transpose(0, 1), lse.transpose(0, 1)


def _fold(style: Style, scores: Tensor, values: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Online softmax over tiles of one split: (out [H, T, D], natural lse [H, T])."""
    exp, log, unit = (torch.exp2, torch.log2, math.log(2)) if style.base_2 else (torch.exp, torch.log, 1.0)
    maximum = torch.full(scores.shape[:2], -torch.inf)
    total = torch.zeros(scores.shape[:2])
    weighted = torch.zeros(*scores.shape[:2], values.shape[2])
    for begin in range(0, scores.shape[2], style.tile):
        tile = scores[:, :, begin : begin + style.tile]
        new_maximum = torch.maximum(maximum, tile.amax(2))
        reference = new_maximum.masked_fill(new_maximum == -torch.inf, 0.0)
        kept, weights = exp(maximum - reference), exp(tile - reference[:, :, None])
        total = total * kept + weights.sum(2)
        weights = weights.to(dtype).float() if style.cast_weights else weights
        weighted = weighted * kept[:, :, None]
        weighted += torch.einsum("htn,nhd->htd", weights, values[begin : begin + style.tile])
        maximum = new_maximum
    out = weighted / total.clamp_min(torch.finfo(torch.float32).tiny)[:, :, None]
    out = out.to(dtype).float() if style.partials_in_dtype else out
    return out, (maximum + log(total)) * unit


INPUT_KINDS = ("normal", "peaked", "large scores", "small values", "shifted", "equal keys", "zero queries")


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
    elif kind == "zero queries":
        q *= 0
    elif kind == "large scores":
        q *= 8
    elif kind == "small values":
        v *= 1e-3
    elif kind == "shifted":
        k, v = k + 3, v + 10
    return q.to(dtype), k.to(dtype), v.to(dtype), scale
