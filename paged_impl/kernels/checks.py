"""Argument checks of the kernels: a refusal is a ValueError naming the argument, its value and the limit, before any launch.

Two ranks. Shapes, dtypes, devices and strides are always checked: they cost nothing. Values that live in tensors
(lengths, block ids, slots) are checked by reading them, which on a GPU waits for the device; `check_values=False`
leaves that to a caller who knows them.

"""

import torch

from paged_impl.arguments import MOST, is_below, require_integer

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
MIN_HEAD_DIM, MAX_HEAD_DIM = 16, 256
MAX_SPLITS = 65536
MIN_SCALE, MAX_SCALE = 1e-30, 1e30  # a float32 below the first is none; times -inf that is a NaN
# Programs in the second and third direction of a launch (CUDA programming guide, compute capabilities).
MAX_GRID = 65535


def require(condition: bool, message: str) -> None:
    """Raise ValueError(message) unless the condition holds."""
    if not condition:
        raise ValueError(message)


def require_tensor(name: str, tensor: object) -> None:
    """Raise ValueError unless it is a dense tensor."""
    if not isinstance(tensor, torch.Tensor):
        raise ValueError(f"{name}={tensor!r}; expected a tensor")
    if tensor.layout is not torch.strided:
        raise ValueError(f"{name}.layout={tensor.layout}; expected a dense tensor (torch.strided)")


def require_apart(name: str, tensor: torch.Tensor) -> None:
    """Raise ValueError for a tensor to be written of which several elements are one (an expanded one)."""
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    require(
        all(size == 1 or stride for size, stride in sizes) or not tensor.numel(),
        f"{name}.stride()={tensor.stride()}; several elements share one place, so that it cannot be written",
    )


def check_floating(name: str, tensor: torch.Tensor, like: torch.Tensor, num_dims: int) -> None:
    """`tensor` has num_dims dimensions, a supported dtype, the device and dtype of `like`, and a dense last dimension."""
    require_tensor(name, tensor)
    require(
        tensor.dim() == num_dims,
        f"{name} has {tensor.dim()} dimensions {tuple(tensor.shape)}; expected {num_dims}",
    )
    require(tensor.dtype in DTYPES, f"{name}.dtype={tensor.dtype}; supported: float32, float16, bfloat16")
    require(tensor.dtype == like.dtype, f"{name}.dtype={tensor.dtype} differs from {like.dtype}; convert it first")
    require(
        tensor.device == like.device,
        f"{name}.device={tensor.device} differs from {like.device}; move it first",
    )
    require(
        tensor.numel() == 0 or tensor.shape[-1] == 1 or tensor.stride(-1) == 1,
        f"{name}.stride(-1)={tensor.stride(-1) if tensor.numel() else 1}; the last dimension must be contiguous (stride 1)",
    )


def check_integers(
    name: str, tensor: torch.Tensor, device: torch.device, num_dims: int, dtypes: tuple[torch.dtype, ...]
) -> None:
    """`tensor` has num_dims dimensions, one of the dtypes, the device, and a dense last dimension."""
    require_tensor(name, tensor)
    require(
        tensor.dim() == num_dims,
        f"{name} has {tensor.dim()} dimensions {tuple(tensor.shape)}; expected {num_dims}",
    )
    names = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
    require(tensor.dtype in dtypes, f"{name}.dtype={tensor.dtype}; expected {names}")
    require(tensor.device == device, f"{name}.device={tensor.device} differs from {device}; move it first")
    require(
        tensor.numel() <= 1 or tensor.shape[-1] == 1 or tensor.stride(-1) == 1,
        f"{name}.stride(-1)={tensor.stride(-1)}; the last dimension must be contiguous (stride 1)",
    )


def check_caches(k_cache: torch.Tensor, v_cache: torch.Tensor, q: torch.Tensor) -> None:
    """Flash-layout caches `[blocks, block size, Hkv, d]` that fit the queries `[.., Hq, d]`."""
    check_floating("k_cache", k_cache, q, 4)
    check_floating("v_cache", v_cache, q, 4)
    require(
        k_cache.shape == v_cache.shape,
        f"v_cache.shape={tuple(v_cache.shape)} differs from k_cache.shape={tuple(k_cache.shape)}",
    )
    num_blocks, block_size, num_kv_heads, head_dim = k_cache.shape
    require(
        min(num_blocks, block_size, num_kv_heads) > 0,
        f"k_cache.shape={tuple(k_cache.shape)}: blocks, block size and KV heads must be at least 1",
    )
    require(head_dim == q.shape[-1], f"k_cache head dim {head_dim} differs from q head dim {q.shape[-1]}")
    require(
        MIN_HEAD_DIM <= head_dim <= MAX_HEAD_DIM,
        f"head dim {head_dim}; supported: {MIN_HEAD_DIM} to {MAX_HEAD_DIM}",
    )
    num_heads = q.shape[-2]
    require(num_heads > 0, "q has 0 query heads; at least 1 is needed")
    require(
        num_heads % num_kv_heads == 0,
        f"q has {num_heads} query heads, not a multiple of the {num_kv_heads} KV heads of k_cache",
    )


def check_batch(block_table: torch.Tensor, context_lens: torch.Tensor, num_seqs: int, device: torch.device) -> None:
    """int32 block table `[S, width]` and int32 lengths `[S]` of num_seqs sequences."""
    check_integers("block_table", block_table, device, 2, (torch.int32,))
    check_integers("context_lens", context_lens, device, 1, (torch.int32,))
    require(
        block_table.shape[0] == num_seqs,
        f"block_table has {block_table.shape[0]} rows for {num_seqs} sequences",
    )
    require(
        context_lens.shape[0] == num_seqs,
        f"context_lens has {context_lens.shape[0]} entries for {num_seqs} sequences",
    )


def check_window(window: int | None) -> None:
    """A sliding window counts visible tokens, the current one included."""
    if window is None:
        return
    require_integer("window", window)
    require(window >= 1, f"window={window}; expected None or at least 1 token")
    require(window <= MOST, f"window={window}; expected at most {MOST} tokens, or None for all")


def check_scale(scale: float) -> None:
    """A finite number."""
    require(is_below(scale, MAX_SCALE), f"scale={scale!r}; expected a number below {MAX_SCALE:g}")


def check_splits(num_splits: int | None) -> None:
    """A fixed number of pieces; every one is a program, whether it has tokens or not."""
    if num_splits is None:
        return
    require_integer("num_splits", num_splits)
    require(
        1 <= num_splits <= MAX_SPLITS, f"num_splits={num_splits}; expected None or at least 1, at most {MAX_SPLITS}"
    )


def check_out(out: torch.Tensor | None, q: torch.Tensor) -> None:
    """A given output has the shape, dtype and device of the queries."""
    if out is None:
        return
    check_floating("out", out, q, 3)
    require(out.shape == q.shape, f"out.shape={tuple(out.shape)} differs from q.shape={tuple(q.shape)}")
    require_apart("out", out)


def should_check_values(check_values: bool | None, device: torch.device) -> bool:
    """None means: yes, except while a CUDA graph is captured (reading a value would break the capture)."""
    if check_values is not None:
        return check_values
    return device.type != "cuda" or not torch.cuda.is_current_stream_capturing()


def check_grid(num_tiles: int, num_seqs: int) -> None:
    """A launch with a program for each tile of queries of each sequence can be made."""
    require(num_seqs <= MAX_GRID, f"{num_seqs} sequences; at most {MAX_GRID} in one call: cut the batch in two")
    require(
        num_tiles <= MAX_GRID,
        f"q and max_query_len allow {num_tiles} tiles of queries, more than {MAX_GRID}: give a smaller max_query_len, or "
        "compute the prompt in chunks",
    )


def capacity_of(block_table: torch.Tensor, k_cache: torch.Tensor) -> int:
    """Tokens that a row of the table can hold; no more than a length can say, which keeps positions at 32 bits."""
    return min(block_table.shape[1] * k_cache.shape[1], MOST)


def bound_of_contexts(max_context_len: int | None, block_table: torch.Tensor, k_cache: torch.Tensor) -> int:
    """Tokens that a context may have, as far as the host knows: what the table can hold, or the smaller bound given."""
    capacity = capacity_of(block_table, k_cache)
    if max_context_len is None:
        return capacity
    require_integer("max_context_len", max_context_len)
    require(max_context_len >= 0, f"max_context_len={max_context_len}; expected at least 0, or None")
    return min(capacity, max_context_len)


def check_context_values(
    block_table: torch.Tensor, context_lens: torch.Tensor, num_blocks: int, block_size: int
) -> None:
    """Every length fits its table row, and every block that holds a token is a block of the pool."""
    if context_lens.numel() == 0:
        return
    width = block_table.shape[1]
    shortest, longest = int(context_lens.min()), int(context_lens.max())
    require(shortest >= 0, f"context_lens[{int(context_lens.argmin())}]={shortest}; a length is at least 0")
    require(
        longest <= width * block_size,
        f"context_lens[{int(context_lens.argmax())}]={longest} exceeds block_table: {width} blocks of {block_size} tokens hold "
        f"{width * block_size}; widen the table",
    )
    used = torch.arange(width, device=block_table.device)[None, :] * block_size < context_lens[:, None]
    bad = used & ((block_table < 0) | (block_table >= num_blocks))
    if bool(bad.any()):
        row, column = (int(index) for index in bad.nonzero()[0])
        raise ValueError(
            f"block_table[{row}, {column}]={int(block_table[row, column])} is needed by context_lens[{row}]="
            f"{int(context_lens[row])} but the pool has blocks 0 to {num_blocks - 1}"
        )


def check_query_values(
    cu_seqlens_q: torch.Tensor, context_lens: torch.Tensor, num_tokens: int, max_query_len: int
) -> None:
    """cu_seqlens_q starts at 0, does not fall, stays within q; each sequence's queries fit its context and max_query_len."""
    require(int(cu_seqlens_q[0]) == 0, f"cu_seqlens_q[0]={int(cu_seqlens_q[0])}; expected 0")
    query_lens = cu_seqlens_q[1:] - cu_seqlens_q[:-1]
    if query_lens.numel() == 0:
        return
    index = int(query_lens.argmin())
    require(
        int(query_lens[index]) >= 0,
        f"cu_seqlens_q falls by {-int(query_lens[index])} at sequence {index}; it must not",
    )
    require(
        int(cu_seqlens_q[-1]) <= num_tokens,
        f"cu_seqlens_q[-1]={int(cu_seqlens_q[-1])} exceeds the {num_tokens} rows of q",
    )
    longest = int(query_lens.argmax())
    require(
        int(query_lens[longest]) <= max_query_len,
        f"sequence {longest} has {int(query_lens[longest])} queries, more than max_query_len={max_query_len}",
    )
    excess = query_lens - context_lens
    worst = int(excess.argmax())
    require(
        int(excess[worst]) <= 0,
        f"sequence {worst} has {int(query_lens[worst])} queries but context_lens[{worst}]={int(context_lens[worst])}; "
        "the context counts the queries too",
    )


def check_slot_values(slot_mapping: torch.Tensor, num_slots: int) -> None:
    """Every slot is -1 (skipped) or a slot of the pool."""
    bad = (slot_mapping < -1) | (slot_mapping >= num_slots)
    if bool(bad.any()):
        index = int(bad.nonzero()[0])
        raise ValueError(
            f"slot_mapping[{index}]={int(slot_mapping[index])}; expected -1 (skip) or a slot from 0 to {num_slots - 1}"
        )
