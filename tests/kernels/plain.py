"""Inputs of the kernel tests, and the answer in float64 by gathering each sequence's own tokens.

Everything a sequence does not own is poison: NaN in the slots, ids of no block in the table padding.
"""

import math
import mmap
from dataclasses import dataclass

import torch

# Largest error of a right answer on unit normal inputs (values up to about 4): rounding of the output and of the
# softmax weights to the dtype; float32 sums over a few hundred tokens.
LARGEST_ERROR = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
LARGEST_LSE_ERROR = 5e-6
NO_BLOCK = (2**30, -1)  # what may stand past the last block of a row
NO_RESERVE: int = getattr(mmap, "MAP_NORESERVE", 0x4000)  # Python names it from 3.13 on


@dataclass(frozen=True)
class Batch:
    q: torch.Tensor
    k_cache: torch.Tensor
    v_cache: torch.Tensor
    table: torch.Tensor
    lens: torch.Tensor
    cu_q: torch.Tensor
    scale: float

    def decode_args(self) -> tuple[torch.Tensor, ...]:
        return self.q, self.k_cache, self.v_cache, self.table, self.lens

    def prefill_args(self) -> tuple[torch.Tensor, ...]:
        return self.q, self.k_cache, self.v_cache, self.table, self.cu_q, self.lens


def make_batch(
    lens: list[int], heads: str = "4/2/32", block_size: int = 4, dtype: torch.dtype = torch.float32,
    query_lens: list[int] | None = None, seed: int = 0, device: str = "cpu",
) -> Batch:  # fmt: skip
    """Sequences of the lengths in permuted blocks. query_lens: for prefill; None is one query per sequence, length 0 or not."""
    num_heads, num_kv_heads, head_dim = (int(part) for part in heads.split("/"))
    generator = torch.Generator().manual_seed(seed)
    counts = [-(-length // block_size) for length in lens]
    width = max([*counts, 1]) + 2
    ids = torch.randperm(sum(counts) + 3, generator=generator).tolist()
    shape = (len(ids), block_size, num_kv_heads, head_dim)
    caches = [torch.randn(shape, generator=generator).to(dtype) for _ in range(2)]
    owned = torch.zeros(shape[:2], dtype=torch.bool)
    table = torch.empty(len(lens), width, dtype=torch.int32)
    for row, (length, count) in enumerate(zip(lens, counts, strict=True)):
        table[row] = NO_BLOCK[row % 2]
        mine = [ids.pop() for _ in range(count)]
        table[row, :count] = torch.tensor(mine, dtype=torch.int32)
        for position in range(length):
            owned[mine[position // block_size], position % block_size] = True
    for cache in caches:
        cache[~owned] = float("nan")
    queries = query_lens if query_lens is not None else [1] * len(lens)
    cu_q = torch.tensor([0, *torch.tensor(queries).cumsum(0).tolist()] if queries else [0], dtype=torch.int32)
    q = torch.randn(sum(queries), num_heads, head_dim, generator=generator).to(dtype)
    tensors = (q, *caches, table, torch.tensor(lens, dtype=torch.int32), cu_q)
    return Batch(*(tensor.to(device) for tensor in tensors), scale=head_dim**-0.5)


def answer(batch: Batch, window: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and LSE in float64; a row that sees nothing is zeros and -inf."""
    out = torch.zeros(batch.q.shape, dtype=torch.float64)
    lse = torch.full(batch.q.shape[:2], float("-inf"), dtype=torch.float64)
    block_size, group = batch.k_cache.shape[1], batch.q.shape[1] // batch.k_cache.shape[2]
    caches = [cache.cpu().double() for cache in (batch.k_cache, batch.v_cache)]
    bounds, table = batch.cu_q.tolist(), batch.table.cpu()
    for seq, length in enumerate(batch.lens.tolist()):
        for row in range(bounds[seq], bounds[seq + 1]):
            end = length - (bounds[seq + 1] - row) + 1
            position = torch.arange(max(0, end - window) if window else 0, max(end, 0))
            if len(position) == 0:
                continue
            block = table[seq, position // block_size].long()
            k, v = (cache[block, position % block_size].repeat_interleave(group, 1) for cache in caches)
            scores = torch.einsum("hd,nhd->hn", batch.q[row].cpu().double(), k) * batch.scale
            lse[row] = torch.logsumexp(scores, -1)
            out[row] = torch.einsum("hn,nhd->hd", torch.softmax(scores, -1), v)
    return out, lse


def largest_error(out: torch.Tensor, expected: torch.Tensor) -> float:
    """Largest absolute difference; infinite where either has a NaN that the other has not, or an infinity of its own."""
    difference = (out.cpu().double() - expected).abs()
    difference[out.cpu().double() == expected] = 0  # equal infinities
    return float(difference.nan_to_num(float("inf")).max()) if difference.numel() else 0.0


def assert_close(out: torch.Tensor, expected: torch.Tensor, limit: float | None = None) -> None:
    error, limit = largest_error(out, expected), LARGEST_ERROR[out.dtype] if limit is None else limit
    assert error <= limit, f"largest error {error:.3g}, at most {limit:.3g} expected"


def far_apart(tensor: torch.Tensor, axis: int) -> torch.Tensor:
    """The same values where the last index of `axis` lies 2**31 elements or more behind the first, at a stride that fits 32
    bits: it is the product that does not.

    Where the product would be in 32 bits lies poison: NaN, or -1. On a CPU only address space is taken, but for the pages
    touched; on a GPU 2**32 elements of memory.
    """
    size = tensor.shape[axis]
    inner = [side for side in range(tensor.dim()) if side != axis]
    shape = [tensor.shape[side] for side in inner]
    stride = -(-(2**31) // ((size - 1) * 16)) * 16
    assert 2**31 > stride >= math.prod(shape), f"{size} indices along axis {axis} of {tuple(tensor.shape)}"
    steps = dict(zip(inner, (math.prod(shape[place + 1 :]) for place in range(len(shape))), strict=True)) | {
        axis: stride
    }
    strides = [steps[side] for side in range(tensor.dim())]
    storage = _room(2**32 + 16 * size + math.prod(shape), tensor)
    view = storage.as_strided(tensor.shape, strides, 2**31)
    last = view.narrow(axis, size - 1, 1)
    wrapped = storage.as_strided(last.shape, strides, last.storage_offset() - 2**32)
    wrapped.fill_(float("nan") if tensor.is_floating_point() else -1)
    return view.copy_(tensor)


def _room(num_elements: int, like: torch.Tensor) -> torch.Tensor:
    if like.is_cuda:
        torch.cuda.empty_cache()  # what an earlier tensor of this size has left
        return torch.empty(num_elements, dtype=like.dtype, device=like.device)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE
    return torch.frombuffer(mmap.mmap(-1, num_elements * like.element_size(), flags=flags), dtype=like.dtype)
