"""The tokens of a case: queries, keys and values of every row, made so that a wrong slot cannot go unnoticed.

Values encode (row, position, head) in their first four dimensions. Keys peak: for each query of the row's
first and last tokens, some key is made to hold half of the weight or more, at places where implementations
err: the last token, the first and last token of a block, the edge of the window, and - invisible to that
query - the token after it and the one just before its window. A row's content depends on its key and the
seed alone, not on the batch.

Letters: T query tokens, N context tokens, H query heads, G KV heads, D head size.
"""

import math
import random
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from paged_ref.parity import Expected, expect
from properties.attention.cases import ReadCase, Row

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
# In "steep" rows scores differ by some 64 from block to block, over so many blocks, the highest being 96: e**96 is no
# float32, so that an exponential without the running maximum, or with that of the first block, is infinite. Around zero,
# since scores that are kept in the dtype are rounded by more the larger they are.
STEEP, MOST_STEPS = 64.0, 4
# How far a peak stands above log(context length): 1 gives it about 70% of the weight among ordinary scores.
PEAK_HEIGHTS = (1.0, 2.0, 6.0)


@dataclass(frozen=True)
class Content:
    """One row's own tokens, densely: q [T, H, D], k and v [N, G, D], rounded to the dtype of the case."""

    q: Tensor
    k: Tensor
    v: Tensor

    def equals(self, other: "Content") -> bool:
        """Whether it is the same row, bit for bit."""
        return all(map(torch.equal, (self.q, self.k, self.v), (other.q, other.k, other.v)))

    def scaled_query(self, factor: float) -> "Content":
        """The same row with its queries multiplied (exactly, for a power of two)."""
        return replace(self, q=self.q * factor)


def make_contents(case: ReadCase) -> dict[int, Content]:
    """The content of each row, by its key. A row that shares blocks has its parent's tokens in them."""
    contents: dict[int, Content] = {}
    for row in case.rows:
        content = _make_content(case, row)
        shared = min(row.shared_blocks * case.block_size, row.context_len)
        if shared and row.parent is not None:
            content.k[:shared] = contents[row.parent].k[:shared]
            content.v[:shared] = contents[row.parent].v[:shared]
        contents[row.key] = content
    return contents


def expect_row(case: ReadCase, content: Content, *, tf32: bool) -> Expected:
    """What a correct kernel may return for this row: dense attention over its own tokens."""
    return expect(content.q, content.k, content.v, scale=case.effective_scale, window=case.window, tf32=tf32)


def _make_content(case: ReadCase, row: Row) -> Content:
    generator = torch.Generator().manual_seed(case.seed * 1009 + row.key)
    rng = random.Random(case.seed * 1009 + row.key)
    num_heads, dtype = case.num_kv_heads * case.ratio, DTYPES[case.dtype]
    q = torch.randn(row.query_len, num_heads, case.head_size, generator=generator)
    k = torch.randn(row.context_len, case.num_kv_heads, case.head_size, generator=generator)
    v = torch.randn(row.context_len, case.num_kv_heads, case.head_size, generator=generator)
    _encode_indices(v, row.key)
    # Scores of ordinary keys have a spread of about 1, whatever the scale is.
    q *= 1 / (case.effective_scale * case.head_size**0.5)
    if case.values == "large":
        q *= 6
    elif case.values == "equal" and row.context_len:
        k[:] = k[0]
    elif case.values == "peaked":
        _add_peaks(case, q, k, rng)
    elif case.values == "steep":
        _add_steps(case, q, k, rng)
    return Content(q.to(dtype), k.to(dtype), v.to(dtype))


def _encode_indices(v_NGD: Tensor, key: int) -> None:
    """Row, position and head in the first dimensions, exact in every dtype: multiples of 1/64 below 1."""
    positions = torch.arange(v_NGD.shape[0])[:, None]
    v_NGD[:, :, 0] = (key % 64) / 64
    v_NGD[:, :, 1] = (positions % 64) / 64
    v_NGD[:, :, 2] = (positions // 64 % 64) / 64
    v_NGD[:, :, 3] = torch.arange(v_NGD.shape[1])[None, :] / 64


def _add_steps(case: ReadCase, q: Tensor, k: Tensor, rng: random.Random) -> None:
    """Scores that rise or fall by STEEP from block to block, by one dimension, in powers of two: exact in every dtype."""
    in_query = 2.0 ** round(math.log2(1 / (case.effective_scale * case.head_size**0.5)))
    in_key = 2.0 ** round(math.log2(STEEP / (case.effective_scale * in_query)))
    steps = (torch.arange(k.shape[0]) // case.block_size).clamp(max=MOST_STEPS - 1)
    if rng.random() < 0.5:
        steps = MOST_STEPS - 1 - steps
    q[:, :, -1] = in_query
    k[:, :, -1] = (in_key * (steps - (MOST_STEPS - 1) / 2))[:, None]


def _add_peaks(case: ReadCase, q: Tensor, k: Tensor, rng: random.Random) -> None:
    num_queries, context_len = q.shape[0], k.shape[0]
    if context_len == 0 or num_queries == 0:
        return
    for token in dict.fromkeys([num_queries - 1, 0, rng.randrange(num_queries)]):
        own = context_len - num_queries + token  # the query's own position
        first = 0 if case.window is None else max(0, own - case.window + 1)
        for kv_head in range(case.num_kv_heads):
            heads = list(range(kv_head * case.ratio, (kv_head + 1) * case.ratio))
            rng.shuffle(heads)
            for head, position in zip(heads, _telling_positions(case.block_size, first, own, rng), strict=False):
                if position < context_len:
                    _peak(
                        case,
                        q[token, head],
                        k[position, kv_head],
                        math.log(own + 1) + rng.choice(PEAK_HEIGHTS),
                    )


def _telling_positions(block_size: int, first: int, own: int, rng: random.Random) -> list[int]:
    """Positions at which errors show, the most telling first; two lie just outside what the query may see."""
    block_starts = [p for p in range(first, own + 1) if p % block_size == 0]
    block_ends = [p - 1 for p in block_starts if p > first]
    visible = [own, first, *rng.sample(block_starts, min(2, len(block_starts)))]
    visible += rng.sample(block_ends, min(2, len(block_ends)))
    outside = [p for p in (own + 1, first - 1) if p >= 0]
    rng.shuffle(visible)
    return list(dict.fromkeys([visible[0], *outside, *visible[1:], rng.randint(first, own)]))


def _peak(case: ReadCase, query: Tensor, key: Tensor, height: float) -> None:
    """Overwrites a key so that its score for this query is `height`."""
    norm = float((query.double() ** 2).sum())  # not a product by BLAS, whose last bits depend on the machine
    key[:] = query * (height / (case.effective_scale * norm))
