"""Argument checks of kernels and backends: a ValueError that names the argument, its value and the limit, before any launch.

Two ranks. Shapes, dtypes, devices and strides are always checked: they cost nothing. Values that live in tensors
(lengths, block ids, slots) are checked by reading them, which on a GPU waits for the device; `check_values=False`
leaves that to a caller who knows them.

"""

import torch

from paged_impl.arguments import MOST, is_below, require_integer

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
MIN_HEAD_DIM, MAX_HEAD_DIM = 16, 256
MAX_STORE_HEAD_DIM = 4096  # nothing is multiplied there: a row is copied as it is
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
    """`tensor` has num_dims dimensions, a floating dtype, the device and dtype of `like`, and a dense last dimension."""
    require_tensor(name, tensor)
    require(
        tensor.dim() == num_dims,
        f"{name} has {tensor.dim()} dimensions {tuple(tensor.shape)}; expected {num_dims}",
    )
    require(tensor.dtype.is_floating_point, f"{name}.dtype={tensor.dtype}; expected floating point")
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
    require(head_dim > 0, f"q.shape={tuple(q.shape)}; a head has at least 1 component")
    num_heads = q.shape[-2]
    require(num_heads > 0, "q has 0 query heads; at least 1 is needed")
    require(
        num_heads % num_kv_heads == 0,
        f"q has {num_heads} query heads, not a multiple of the {num_kv_heads} KV heads of k_cache",
    )


def check_kernel_dtype(name: str, tensor: torch.Tensor) -> None:
    """What the Triton kernels copy and multiply."""
    require_tensor(name, tensor)
    require(tensor.dtype in DTYPES, f"{name}.dtype={tensor.dtype}; supported: float32, float16, bfloat16")


def check_head_dim(head_dim: int) -> None:
    """What the products of the Triton kernels take."""
    require(
        MIN_HEAD_DIM <= head_dim <= MAX_HEAD_DIM, f"head dim {head_dim}; supported: {MIN_HEAD_DIM} to {MAX_HEAD_DIM}"
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


def check_decode(
    q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, block_table: torch.Tensor,
    context_lens: torch.Tensor, *, scale: float, window: int | None,
) -> None:  # fmt: skip
    """All arguments of a decode that cost nothing to check."""
    check_floating("q", q, q, 3)
    check_caches(k_cache, v_cache, q)
    check_batch(block_table, context_lens, q.shape[0], q.device)
    check_window(window)
    check_scale(scale)


def check_prefill(
    q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, block_table: torch.Tensor, cu_seqlens_q: torch.Tensor,
    context_lens: torch.Tensor, *, scale: float, window: int | None, max_query_len: int,
) -> None:  # fmt: skip
    """All arguments of a prefill that cost nothing to check."""
    check_floating("q", q, q, 3)
    check_caches(k_cache, v_cache, q)
    check_integers("cu_seqlens_q", cu_seqlens_q, q.device, 1, (torch.int32,))
    require(cu_seqlens_q.shape[0] >= 1, "cu_seqlens_q is empty; it has one entry more than there are sequences")
    check_batch(block_table, context_lens, cu_seqlens_q.shape[0] - 1, q.device)
    check_window(window)
    check_scale(scale)
    require_integer("max_query_len", max_query_len)
    require(max_query_len >= 0, f"max_query_len={max_query_len}; expected at least 0")


def check_context_values(
    block_table: torch.Tensor,
    context_lens: torch.Tensor,
    num_blocks: int,
    block_size: int,
    *,
    window: int | None = None,
    query_lens: torch.Tensor | None = None,
) -> None:
    """Every length fits its table row, and every block that holds a token which a query sees is a block of the pool.

    query_lens: int32 `[S]`, the queries at the end of each context; 1 each if None.
    """
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
    first_token = torch.arange(width, device=block_table.device)[None, :] * block_size
    used = first_token < context_lens[:, None]
    if window is not None:  # a block that lies wholly before every query's window may have been given back
        first_query = context_lens - (1 if query_lens is None else query_lens)
        used &= first_token + block_size > (first_query - window + 1)[:, None]
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


def check_longest(context_lens: torch.Tensor, max_context_len: int) -> None:
    """No context is longer than what was said of all."""
    longest = int(context_lens.max()) if context_lens.numel() else 0
    require(
        longest <= max_context_len, f"max_context_len={max_context_len}; context_lens has {longest}: give at least that"
    )


def check_copy(
    source: torch.Tensor, destination: torch.Tensor, src_blocks: torch.Tensor, dst_blocks: torch.Tensor, *, values: bool
) -> None:
    """Pools `[2, L, B, P, G, D]` that differ in B and device alone; int64 ids, one of each for a copy, no destination twice."""
    for name, pool, ids in (("source", source, "src_blocks"), ("destination", destination, "dst_blocks")):
        require_tensor(name, pool)
        require(
            pool.dim() == 6,
            f"{name}.shape={tuple(pool.shape)}; expected [2, layers, blocks, block size, heads, head dim]",
        )
        chosen = src_blocks if ids == "src_blocks" else dst_blocks
        check_integers(ids, chosen, pool.device, 1, (torch.int64,))
    kept = [tuple(size for axis, size in enumerate(pool.shape) if axis != 2) for pool in (source, destination)]
    require(
        kept[0] == kept[1],
        f"destination.shape={tuple(destination.shape)} does not fit source.shape={tuple(source.shape)}",
    )
    require(destination.dtype == source.dtype, f"destination.dtype={destination.dtype} differs from {source.dtype}")
    require(
        len(src_blocks) == len(dst_blocks),
        f"dst_blocks has {len(dst_blocks)} entries for {len(src_blocks)} of src_blocks",
    )
    if not values:
        return
    for name, chosen, pool in (("src_blocks", src_blocks, source), ("dst_blocks", dst_blocks, destination)):
        bad = (chosen < 0) | (chosen >= pool.shape[2])
        if bool(bad.any()):
            index = int(bad.nonzero()[0])
            raise ValueError(f"{name}[{index}]={int(chosen[index])}; the pool has blocks 0 to {pool.shape[2] - 1}")
    listed = dst_blocks.tolist()
    require(len(set(listed)) == len(listed), f"dst_blocks={listed}; no block can hold two")


def check_prefill_values(
    block_table: torch.Tensor, context_lens: torch.Tensor, cu_seqlens_q: torch.Tensor, k_cache: torch.Tensor, *,
    window: int | None, max_query_len: int, num_tokens: int,
) -> None:  # fmt: skip
    """Lengths, block ids and bounds of queries of a prefill, which are read for it."""
    check_context_values(
        block_table, context_lens, *k_cache.shape[:2], window=window, query_lens=cu_seqlens_q[1:] - cu_seqlens_q[:-1]
    )
    check_query_values(cu_seqlens_q, context_lens, num_tokens, max_query_len)


def check_slot_values(slot_mapping: torch.Tensor, num_slots: int) -> None:
    """Every slot is -1 (skipped) or a slot of the pool."""
    bad = (slot_mapping < -1) | (slot_mapping >= num_slots)
    if bool(bad.any()):
        index = int(bad.nonzero()[0])
        raise ValueError(
            f"slot_mapping[{index}]={int(slot_mapping[index])}; expected -1 (skip) or a slot from 0 to {num_slots - 1}"
        )


def check_store(
    key: torch.Tensor,
    value: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> int:
    """All arguments of a store that cost nothing to check, either layout; returns the block size."""
    check_floating("key", key, key, 3)
    check_floating("value", value, key, 3)
    require(
        value.shape == key.shape,
        f"value.shape={tuple(value.shape)} differs from key.shape={tuple(key.shape)}",
    )
    num_tokens, num_heads, head_dim = key.shape
    require(0 < head_dim <= MAX_STORE_HEAD_DIM, f"key head dim {head_dim}; supported: 1 to {MAX_STORE_HEAD_DIM}")
    require_tensor("k_cache", k_cache)
    packed = k_cache.dim() == 5
    check_floating("k_cache", k_cache, key, 5 if packed else 4)
    num_blocks, block_size = k_cache.shape[0], k_cache.shape[3 if packed else 1]
    chunk = 16 // key.element_size()
    if packed:
        k_shape: tuple[int, ...] = (num_blocks, num_heads, head_dim // chunk, block_size, chunk)
        v_shape: tuple[int, ...] = (num_blocks, num_heads, head_dim, block_size)
    else:
        k_shape = v_shape = (num_blocks, block_size, num_heads, head_dim)
    require(
        not packed or head_dim % chunk == 0,
        f"key head dim {head_dim}; the packed layout needs a multiple of {chunk}",
    )
    require(
        k_cache.shape == k_shape,
        f"k_cache.shape={tuple(k_cache.shape)}; expected {k_shape} for key.shape={tuple(key.shape)}",
    )
    check_floating("v_cache", v_cache, key, 4)
    require(v_cache.shape == v_shape, f"v_cache.shape={tuple(v_cache.shape)}; expected {v_shape}")
    require(min(num_blocks, block_size) > 0, f"k_cache.shape={tuple(k_cache.shape)}; a pool has at least one slot")
    require_apart("k_cache", k_cache)
    require_apart("v_cache", v_cache)
    axes = (("k_cache", k_cache, 2 if packed else 3), ("v_cache", v_cache, 2 if packed else 3))
    for name, cache, axis in axes:  # the kernel multiplies these two in 32 bits: within a head they are near
        reach = (cache.shape[axis] - 1) * cache.stride(axis)
        require(
            reach <= MOST, f"{name}.stride({axis})={cache.stride(axis)}; a head may span {MOST} elements, not {reach}"
        )
    check_integers("slot_mapping", slot_mapping, key.device, 1, (torch.int32, torch.int64))
    require(
        slot_mapping.shape[0] == num_tokens,
        f"slot_mapping has {slot_mapping.shape[0]} entries for {num_tokens} tokens of key",
    )
    return int(block_size)
