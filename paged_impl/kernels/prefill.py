"""Many query tokens per sequence against a paged cache: whole prompts, chunks, and suffixes behind a cached prefix.

    out[t, h] = sum_p softmax_p(scale * q[t, h] . k[p]) v[p],     p in [max(0, e - window), e)
    e = context_lens[s] - cu_seqlens_q[s + 1] + t + 1             for the tokens t in [cu_seqlens_q[s], cu_seqlens_q[s + 1])

with k and v read through sequence s's row of the block table: causal, aligned at the end of the context ("bottom
right"), so that the last query sees everything. One program computes BLOCK_M query rows of one sequence by online
softmax, as in decode.py. Tiles that every row sees in full carry no mask; only those on the diagonal do. The programs of a
sequence run one after another, so that its keys and values come from the L2 cache, those with the longest rows first.

Rows are tokens of one query head, or (token, head of the KV group) pairs: a short chunk still fills the tile, and a long
one spans fewer tokens, so that less is computed beyond the diagonal. Letters: M rows, N tokens of a KV tile, D head dim.
"""

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from paged_impl import checks
from paged_impl.kernels import rules, runtime
from paged_impl.kernels.decode import LOG2_E
from paged_impl.kernels.pages import load_tile, token_offsets

LOWEST = tl.constexpr(-3.4028234663852886e38)  # finite: the difference of two such maxima is 0, not NaN


@triton.jit
def fold_tiles(
    acc, m, norm, q, k_ptr, v_ptr, k_desc, v_desc, kv_head, table_ptr, length, position, first_position,
    first_tile, last_tile, scale_log2,
    stride_kb, stride_kt, stride_vb, stride_vt,
    HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr, WINDOW: tl.constexpr, SAME_STRIDES: tl.constexpr,
    ALIGN: tl.constexpr, WIDE_PAGES: tl.constexpr, BF16_BITS: tl.constexpr, TMA: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Fold tiles [first_tile, last_tile) into (acc, m, norm).

    first_position: the position of the first row. MASKED: rows see different parts of a tile, or it ends past the context.
    TMA: a tile lies in one page and is fetched by the copy engine (descriptors [1, BLOCK_N, 1, BLOCK_D] of the caches), which
    spares the address arithmetic but cannot mask rows.
    """
    for tile in range(first_tile, last_tile):
        start = tile * BLOCK_N
        key_position = start + tl.arange(0, BLOCK_N)
        if TMA and not MASKED:
            page = tl.load(table_ptr + start // BLOCK_SIZE)
            k = tl.reshape(k_desc.load([page, start % BLOCK_SIZE, kv_head, 0]), (BLOCK_N, BLOCK_D))
            v = tl.reshape(v_desc.load([page, start % BLOCK_SIZE, kv_head, 0]), (BLOCK_N, BLOCK_D))
        else:
            owned = key_position < length
            if WINDOW > 0:  # what lies before every row's window may have been freed: as foreign as the tail
                owned &= key_position > first_position - WINDOW
            k_offsets = token_offsets(
                table_ptr, start, length, stride_kb, stride_kt, BLOCK_SIZE, BLOCK_N, ALIGN, WIDE_PAGES, MASKED
            )
            if SAME_STRIDES:
                v_offsets = k_offsets
            else:
                v_offsets = token_offsets(
                    table_ptr, start, length, stride_vb, stride_vt, BLOCK_SIZE, BLOCK_N, ALIGN, WIDE_PAGES, MASKED
                )
            # Values too are masked: a weight of 0 does not silence a NaN that lies beyond the end of the context.
            k = load_tile(k_ptr, k_offsets, owned, HEAD_DIM, BLOCK_D, BF16_BITS, MASKED)
            v = load_tile(v_ptr, v_offsets, owned, HEAD_DIM, BLOCK_D, BF16_BITS, MASKED)
        s = tl.dot(q, tl.trans(k), input_precision="ieee")
        if MASKED:
            if WINDOW > 0:  # one comparison for both ends: a key in the future is a large number
                visible = (position[:, None] - key_position[None, :]).to(tl.uint32, bitcast=True) < WINDOW
            else:
                visible = key_position[None, :] <= position[:, None]
            s = tl.where(visible, s, float("-inf"))
        # A positive scale commutes with the maximum: applied once here, and fused with the subtraction below.
        m_new = tl.maximum(m, tl.max(s, 1) * scale_log2)
        shrink = tl.exp2(m - m_new)  # both are finite, also of a row that has seen no key yet
        p = tl.exp2(s * scale_log2 - m_new[:, None])
        norm = norm * shrink + tl.sum(p, 1)
        acc = tl.dot(p.to(v.dtype), v, acc * shrink[:, None], input_precision="ieee")
        m = m_new
    return acc, m, norm


@triton.jit
def prefill_kernel(
    out_ptr, lse_ptr, q_ptr, k_ptr, v_ptr, k_desc, v_desc, table_ptr, cu_ptr, lens_ptr,
    scale_log2, capacity, num_heads,
    stride_ot, stride_oh, stride_qt, stride_qh, stride_table,
    stride_kb, stride_kt, stride_kh, stride_vb, stride_vt, stride_vh,
    GROUP: tl.constexpr, PACK: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr, WINDOW: tl.constexpr,
    WITH_LSE: tl.constexpr, SAME_STRIDES: tl.constexpr, ALIGN: tl.constexpr, WIDE_PAGES: tl.constexpr,
    ALIGN_ROWS: tl.constexpr, BF16_BITS: tl.constexpr, TMA: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    BLOCK_TOKENS: tl.constexpr = BLOCK_M // PACK
    head_block, seq = tl.program_id(0), tl.program_id(2)
    query_tile = tl.num_programs(1) - 1 - tl.program_id(1)
    query_start = tl.load(cu_ptr + seq).to(tl.int64)
    query_len = (tl.load(cu_ptr + seq + 1) - query_start).to(tl.int32)
    first_token = query_tile * BLOCK_TOKENS
    if first_token >= query_len:
        return
    length = tl.minimum(tl.load(lens_ptr + seq), capacity)

    row = tl.arange(0, BLOCK_M)
    dim = tl.arange(0, BLOCK_D)
    token = first_token + row // PACK
    head = (head_block * PACK + row % PACK).to(tl.int64)
    kv_head = (head_block * PACK // GROUP).to(tl.int64)
    in_rows = (token < query_len) & (row < BLOCK_TOKENS * PACK)
    in_tile = in_rows[:, None] & (dim < HEAD_DIM)[None, :]
    position = length - query_len + token  # the row's own position; its last visible key
    q_offsets = tl.multiple_of((query_start + token) * stride_qt + head * stride_qh, ALIGN_ROWS)
    q = tl.load(q_ptr + q_offsets[:, None] + dim[None, :], mask=in_tile, other=0)

    # Tiles [first, full) are seen whole by every row; [full, last) only in part.
    first_position = length - query_len + first_token
    visible_end = tl.minimum(first_position + BLOCK_TOKENS, length)
    last = (visible_end + BLOCK_N - 1) // BLOCK_N
    if WINDOW > 0:
        first = tl.maximum(first_position + 1 - WINDOW, 0) // BLOCK_N
        full = first
    else:
        first = 0
        full = tl.maximum(first_position + 1, 0) // BLOCK_N

    m = tl.full((BLOCK_M,), LOWEST, tl.float32)
    norm = tl.zeros((BLOCK_M,), tl.float32)
    acc = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    k_ptr += tl.multiple_of(kv_head * stride_kh, ALIGN)
    v_ptr += tl.multiple_of(kv_head * stride_vh, ALIGN)
    table_ptr += seq.to(tl.int64) * stride_table
    if WINDOW == 0:
        acc, m, norm = fold_tiles(
            acc, m, norm, q, k_ptr, v_ptr, k_desc, v_desc, kv_head.to(tl.int32), table_ptr, length, position, first_position,
            first, full, scale_log2,
            stride_kb, stride_kt, stride_vb, stride_vt,
            HEAD_DIM, BLOCK_SIZE, WINDOW, SAME_STRIDES, ALIGN, WIDE_PAGES, BF16_BITS, TMA, BLOCK_N, BLOCK_D, False,
        )  # fmt: skip
    acc, m, norm = fold_tiles(
        acc, m, norm, q, k_ptr, v_ptr, k_desc, v_desc, kv_head.to(tl.int32), table_ptr, length, position, first_position,
        full, last, scale_log2,
        stride_kb, stride_kt, stride_vb, stride_vt,
        HEAD_DIM, BLOCK_SIZE, WINDOW, SAME_STRIDES, ALIGN, WIDE_PAGES, BF16_BITS, TMA, BLOCK_N, BLOCK_D, True,
    )  # fmt: skip
    # Rows are numbered anew, from a 0 that the compiler cannot know: it would keep their addresses from above in registers
    # that the loops need, and park others in local memory (NOTES.md, prefill 11).
    row = tl.arange(0, BLOCK_M) + (tl.load(cu_ptr + seq, volatile=True) - query_start).to(tl.int32)
    token = first_token + row // PACK
    head = (head_block * PACK + row % PACK).to(tl.int64)
    in_rows = (token < query_len) & (row < BLOCK_TOKENS * PACK)
    in_tile = in_rows[:, None] & (dim < HEAD_DIM)[None, :]
    divisor = tl.where(norm == 0, 1.0, norm)  # a row that sees nothing: zeros
    acc = acc / divisor[:, None]
    out_offsets = tl.multiple_of((query_start + token) * stride_ot + head * stride_oh, ALIGN_ROWS)
    tl.store(out_ptr + out_offsets[:, None] + dim[None, :], acc.to(out_ptr.dtype.element_ty), mask=in_tile)
    if WITH_LSE:
        lse_offsets = (query_start + token) * num_heads + head
        lse = tl.where(norm == 0, float("-inf"), (m + tl.log2(divisor)) * 0.6931471805599453)
        tl.store(lse_ptr + lse_offsets, lse, mask=in_rows)


def prefill(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_table: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    context_lens: torch.Tensor,
    *,
    scale: float,
    max_query_len: int,
    window: int | None = None,
    max_context_len: int | None = None,
    return_lse: bool = False,
    out: torch.Tensor | None = None,
    check_values: bool | None = None,
    rule: rules.PrefillRule | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Causal attention of all query tokens of a batch: `[T, Hq, d]`, with the LSE `[T, Hq]` (float32, base e) if asked for.

    q `[T, Hq, d]` holds the queries of all sequences one after the other; cu_seqlens_q int32 `[S + 1]` their bounds,
    starting at 0; context_lens int32 `[S]` the tokens in the cache, those of the queries (already stored) included.
    Caches, block_table, window and the guarantees about slots, table padding and rows that see nothing are those of
    decode(). Rows of q past cu_seqlens_q[-1] are padding: their output is not written. max_context_len: a bound that the
    host knows (default: what the table can hold), for the choice of tiles; a context beyond it is only slower. The bits of
    a row depend on its own sequence, max_query_len and that bound alone.

    Writes only `out` (allocated when None). Raises ValueError before any launch; `check_values=False` waives reading
    lengths and block ids (a wait for the device on a GPU; never done during graph capture). rule: overrides the launch
    rule.
    """
    _check(q, k_cache, v_cache, block_table, cu_seqlens_q, context_lens, scale, max_query_len, window, out)
    max_context = checks.bound_of_contexts(max_context_len, block_table, k_cache)
    if checks.should_check_values(check_values, q.device):
        checks.check_prefill_values(
            block_table,
            context_lens,
            cu_seqlens_q,
            k_cache,
            window=window,
            max_query_len=max_query_len,
            num_tokens=q.shape[0],
        )
    num_tokens, num_heads, head_dim = q.shape
    out = torch.empty_like(q, memory_format=torch.contiguous_format) if out is None else out
    lse = torch.empty((num_tokens, num_heads) if return_lse else (0,), dtype=torch.float32, device=q.device)
    if num_tokens > 0 and context_lens.shape[0] > 0 and max_query_len > 0:
        group = num_heads // k_cache.shape[2]
        capability = runtime.compute_capability(q.device)
        rule = rule or rules.prefill_rule(
            group, head_dim, k_cache.shape[1], max_query_len, max_context, q.dtype, capability
        )
        _launch(
            q,
            k_cache,
            v_cache,
            block_table,
            cu_seqlens_q,
            context_lens,
            scale,
            max_query_len,
            window,
            out,
            lse,
            rule,
        )
    return (out, lse) if return_lse else out


def _launch(
    q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, block_table: torch.Tensor, cu_seqlens_q: torch.Tensor,
    context_lens: torch.Tensor, scale: float, max_query_len: int, window: int | None, out: torch.Tensor, lse: torch.Tensor,
    rule: rules.PrefillRule,
) -> None:  # fmt: skip
    num_tokens, num_heads, head_dim = q.shape
    group = num_heads // k_cache.shape[2]
    bits = runtime.reads_bf16_bits(q.dtype)
    num_tiles = triton.cdiv(min(max_query_len, num_tokens), rule.block_m // rule.pack)
    checks.check_grid(num_tiles, context_lens.shape[0])
    q = q.float() if bits else q  # before its strides are taken: a converted copy is dense
    kernel_out = torch.empty(q.shape, dtype=torch.float32) if bits else out
    strides = [*k_cache.stride()[:3], *v_cache.stride()[:3]]
    tma = rule.tma and not window and not bits
    tma = tma and _fits_descriptor(k_cache, rule.block_n) and _fits_descriptor(v_cache, rule.block_n)
    box = [1, rule.block_n, 1, rules.padded_head_dim(head_dim)]
    descriptors = [TensorDescriptor.from_tensor(cache, box) if tma else None for cache in (k_cache, v_cache)]
    grid = (num_heads // rule.pack, num_tiles, context_lens.shape[0])
    capped = {"maxnreg": rule.max_registers} if rule.max_registers else {}
    prefill_kernel[grid](
        kernel_out, lse, q, runtime.as_bits(k_cache), runtime.as_bits(v_cache),
        *descriptors, block_table, cu_seqlens_q, context_lens,
        scale * LOG2_E, checks.capacity_of(block_table, k_cache), num_heads,
        kernel_out.stride(0), kernel_out.stride(1), q.stride(0), q.stride(1), block_table.stride(0), *strides,
        GROUP=group, PACK=rule.pack, HEAD_DIM=head_dim, BLOCK_SIZE=k_cache.shape[1], WINDOW=window or 0,
        WITH_LSE=lse.numel() > 0, BF16_BITS=bits, TMA=tma, **rules.layout(q, kernel_out, k_cache, v_cache),
        BLOCK_M=rule.block_m, BLOCK_N=rule.block_n, BLOCK_D=rules.padded_head_dim(head_dim),
        num_warps=rule.num_warps, num_stages=rule.num_stages, **capped,
    )  # fmt: skip
    if bits:
        out.copy_(kernel_out)


def _fits_descriptor(cache: torch.Tensor, block_n: int) -> bool:
    """Whether the copy engine can fetch tiles of a cache: whole tiles in a page; addresses and strides of 16 bytes."""
    size = cache.element_size()
    aligned = all(stride * size % 16 == 0 for stride in cache.stride()[:3]) and cache.data_ptr() % 16 == 0
    return cache.shape[1] % block_n == 0 and aligned


def _check(
    q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, block_table: torch.Tensor, cu_seqlens_q: torch.Tensor,
    context_lens: torch.Tensor, scale: float, max_query_len: int, window: int | None, out: torch.Tensor | None,
) -> None:  # fmt: skip
    checks.check_kernel_dtype("q", q)
    checks.check_prefill(
        q,
        k_cache,
        v_cache,
        block_table,
        cu_seqlens_q,
        context_lens,
        scale=scale,
        window=window,
        max_query_len=max_query_len,
    )
    checks.check_head_dim(q.shape[2])
    # A positive scale commutes with the maximum, which is why it may be applied after it.
    checks.require(scale >= checks.MIN_SCALE, f"scale={scale}; prefill needs one of at least {checks.MIN_SCALE:g}")
    checks.check_out(out, q)
    runtime.require_runnable(q)
