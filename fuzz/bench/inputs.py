"""Inputs of a case: permuted blocks, sets enough to rotate over, keys that make a wrong slot show.

Letters: S sequences, T query tokens, B blocks, P tokens in a block, H query heads, G KV heads, D head size, W table width.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from fuzz.bench.cases import AnyCase, Case, StoreCase

MIN_ROTATED_BYTES = 400 << 20
"""Several times the L2 cache of an H200 (50 to 60 MB)."""
MAX_SETS = 64
"""The shortest contexts stay partly in the L2 cache, for every kernel alike."""
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class Inputs:
    """One set of a read: q [T, H, D], caches [B, P, G, D], table int32 [S, W], lens int32 [S], cu_q int32 [S + 1].

    Entries of the table behind the last block hold a valid id (0), because not every peer leaves them unread.
    """

    q: torch.Tensor
    k_cache: torch.Tensor
    v_cache: torch.Tensor
    table: torch.Tensor
    lens: torch.Tensor
    cu_q: torch.Tensor
    scale: float


@dataclass(frozen=True)
class StoreInputs:
    """One set of a store: keys and values [T, G, D], slices of one projection; caches [B, P, G, D]; slots int64 [T]."""

    keys: torch.Tensor
    values: torch.Tensor
    k_cache: torch.Tensor
    v_cache: torch.Tensor
    slots: torch.Tensor


def make_inputs(case: Case, seed: int, device: str = "cuda") -> Inputs:
    """A set of random numbers; equal for equal arguments on one device."""
    generator, dtype = torch.Generator(device=device).manual_seed(seed), DTYPES[case.dtype]
    lens = torch.tensor(case.lengths(), dtype=torch.int32, device=device)
    num_blocks = (lens + case.page - 1) // case.page
    total = int(num_blocks.sum())
    width = -(-int(num_blocks.max()) // 16) * 16
    table = torch.zeros(case.batch, width, dtype=torch.int32, device=device)
    used = torch.arange(width, device=device)[None, :] < num_blocks[:, None]
    table[used] = torch.randperm(total, generator=generator, device=device, dtype=torch.int32)
    shape = (total, case.page, case.num_kv_heads, case.head_dim)
    k_cache = torch.randn(shape, generator=generator, device=device, dtype=dtype)
    v_cache = torch.randn(shape, generator=generator, device=device, dtype=dtype)
    q_shape = (case.batch * case.query, case.num_heads, case.head_dim)
    q = torch.randn(q_shape, generator=generator, device=device, dtype=dtype)
    cu_q = torch.arange(case.batch + 1, dtype=torch.int32, device=device) * case.query
    return Inputs(q, k_cache, v_cache, table, lens, cu_q, case.head_dim**-0.5)


def make_store_inputs(case: StoreCase, seed: int, device: str = "cuda") -> StoreInputs:
    """Random tokens for a random half of the slots of a pool of zeros."""
    generator, dtype = torch.Generator(device=device).manual_seed(seed), DTYPES[case.dtype]
    shape = (case.num_tokens, 2, case.num_kv_heads, case.head_dim)
    projection = torch.randn(shape, generator=generator, device=device, dtype=dtype)
    pool = torch.zeros(2, case.num_blocks, case.page, case.num_kv_heads, case.head_dim, device=device, dtype=dtype)
    slots = torch.randperm(case.num_blocks * case.page, generator=generator, device=device)[: case.num_tokens]
    return StoreInputs(projection[:, 0], projection[:, 1], pool[0], pool[1], slots)


def num_sets(case: AnyCase) -> int:
    """At least two, and enough that all of them together hold MIN_ROTATED_BYTES of keys and values, but no more than
    MAX_SETS."""
    return min(MAX_SETS, max(2, -(-MIN_ROTATED_BYTES // case.kv_bytes)))


def checksums(inputs: Inputs | StoreInputs) -> dict[str, int]:
    """A number for every tensor that a call must leave as it is, by its name; the pool of a store is none of them."""
    written = ("k_cache", "v_cache") if isinstance(inputs, StoreInputs) else ()
    tensors = {name: value for name, value in vars(inputs).items() if isinstance(value, torch.Tensor)}
    integers = {2: torch.int16, 4: torch.int32, 8: torch.int64}
    return {
        name: int(tensor.view(integers[tensor.element_size()]).sum(dtype=torch.int64))
        for name, tensor in tensors.items()
        if name not in written
    }


def slots_of(inputs: Inputs, page: int, seq: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(block, place in it) of each token of a sequence."""
    position = torch.arange(int(inputs.lens[seq]), device=inputs.table.device)
    return inputs.table[seq, position // page].long(), position % page


def plant_peaks(case: Case, inputs: Inputs) -> None:
    """Overwrites two keys of every sequence and KV head, so that the last query of two of its heads sees mostly them.

    Among random keys a token has 1 / N of the weight, and a wrong one does not show. The last token is made to hold most of
    the weight for the first query head of each KV head, the first token of some other block for the last one.
    """
    ratio = case.num_heads // case.num_kv_heads
    last = inputs.cu_q[1:].long() - 1
    lens = inputs.lens.long()
    blocks = (lens + case.page - 1) // case.page
    other = torch.arange(case.batch, device=lens.device) % blocks * case.page
    for head, position in ((ratio - 1, other), (0, lens - 1)):  # where both are one token, the last one counts
        query = inputs.q[last][:, head::ratio].float()  # [S, G, D]
        height = torch.log(lens.float()) + 1
        peak = query * (height[:, None, None] / (inputs.scale * query.square().sum(-1, keepdim=True)))
        block = inputs.table.gather(1, (position // case.page)[:, None])[:, 0].long()
        inputs.k_cache[block, position % case.page] = peak.to(inputs.k_cache.dtype)


def sampled_rows(case: Case, most: int = 64) -> list[int]:
    """Query rows of a sequence that are checked: the first, the last, and a spread between."""
    step = (case.query - 1) / max(1, min(case.query, most) - 1)
    return sorted({math.floor(index * step) for index in range(min(case.query, most))} | {case.query - 1})
