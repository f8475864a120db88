"""One query token per sequence against a paged cache.

    out[s, h] = sum_p softmax_p(scale * q[s, h] . k[p]) v[p],     p in [max(0, L - window), L),   L = context_lens[s]
    lse[s, h] = log sum_p exp(scale * q[s, h] . k[p])

with k[p] = k_cache[block_table[s, p // block_size], p % block_size, h // (Hq // Hkv)], v[p] likewise.

Online softmax over tiles of BLOCK_N tokens, in base 2 (exp2 is one instruction; log2(e) is folded into the
scale): per tile   m' = max(m, max s),   l' = l 2^(m - m') + sum 2^(s - m'),   acc' = acc 2^(m - m') + 2^(s - m') v.
The query heads that share a KV head are the rows of one matrix product, so that each key is read once.

A sequence is cut into pieces, one program each; the program that ends last merges them: with o_i the result of piece i
and lse_i its LSE,  out = sum_i 2^(lse_i - lse) o_i  (partitions of paged attention v2; FlashDecoding), always in the
order of i. Which one is last is told by a counter (as in split-K products), which it sets back to 0: see `Workspace`.
- num_splits given: so many equal pieces of every sequence. The bits of a row depend on its own length and num_splits
  alone. One piece needs no merging.
- otherwise the kernel itself looks at all lengths and chooses the pieces of each sequence, so that a batch of any
  mixture keeps the whole device busy to the end, also under CUDA graphs, where the host does not know the lengths.

Letters: S sequences, P pairs of one sequence (KV head, tile of its query heads), M rows, N tokens of a tile, D head dim.
"""

import math

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from paged_impl import checks
from paged_impl.kernels import rules, runtime
from paged_impl.kernels.pages import load_tile, token_offsets

LOG2_E = math.log2(math.e)
# Arguments that change from step to step; without this Triton would compile anew when one happens to be 1 or divisible by 16.
VARYING = ["num_seqs", "capacity", "num_splits", "wave_pieces", "num_pieces"]


class Workspace:
    """The counters of cut sequences, zero between calls, so that no call has to clear them first.

    Calls that share a workspace must run one after the other: one for each stream. Without one, decode() clears fresh
    counters in every call. Memory that a captured graph may use is kept until the workspace is dropped.
    """

    def __init__(self) -> None:
        self._kept: list[torch.Tensor] = []

    def counters(self, count: int, device: torch.device) -> torch.Tensor:
        """int32 zeros, at least `count`. While a graph is captured what is missing is allocated for that graph alone."""
        for kept in self._kept:
            if kept.device == device and len(kept) >= count:
                return kept
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            return torch.zeros(count, dtype=torch.int32, device=device)
        self._kept.append(torch.zeros(max(1024, 2 * count), dtype=torch.int32, device=device))
        return self._kept[-1]


@triton.jit
def tile_range(length, WINDOW: tl.constexpr, BLOCK_N: tl.constexpr):
    """First tile with a visible token, and the number of tiles from there to the end of the context."""
    first = tl.maximum(length - WINDOW, 0) // BLOCK_N if WINDOW > 0 else length * 0
    return first, (length + BLOCK_N - 1) // BLOCK_N - first


@triton.jit
def plan(
    lens_ptr, num_seqs, capacity, wave_pieces, num_pieces,
    WINDOW: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_S: tl.constexpr, MIN_TILES: tl.constexpr, FEW: tl.constexpr,
):  # fmt: skip
    """How many pieces each sequence is cut into, [BLOCK_S]: at least 1, and 0 past the last sequence.

    Rows of nearly one length get as many pieces as together fill the device once (wave_pieces): a second wave that
    is not full would cost more. Otherwise pieces are as long as num_pieces equal ones would be: programs that end at
    different times are replaced by others. FEW sequences are cut so that their pieces too run all at once, where a limit
    a tenth or a quarter above their average length makes that possible (NOTES.md, decode 16). A piece has at least
    MIN_TILES tiles, unless there are few in all.
    """
    seq = tl.arange(0, BLOCK_S)
    lengths = tl.minimum(tl.load(lens_ptr + seq, mask=seq < num_seqs, other=0), capacity)
    _, tiles = tile_range(lengths, WINDOW, BLOCK_N)
    total, longest = tl.sum(tiles, 0), tl.max(tiles, 0)
    in_wave = wave_pieces // num_seqs
    even = longest.to(tl.int64) * num_seqs * 10 <= total.to(tl.int64) * 11
    even &= in_wave * num_seqs * 10 >= wave_pieces * 8
    in_wave = tl.minimum(in_wave, tl.maximum(tl.minimum(16, longest), longest // MIN_TILES))
    share = tl.maximum((total + num_pieces - 1) // num_pieces, MIN_TILES)
    if FEW:
        average = tl.maximum((total + wave_pieces - 1) // wave_pieces, MIN_TILES)
        # In 32nds above the average: 8, then 3, since the shorter limit is better.
        for slack in tl.static_range(8, 2, -5):
            limit = average + average // 32 * slack + average % 32 * slack // 32
            needed = tl.sum(tl.where(seq < num_seqs, tl.maximum((tiles + limit - 1) // limit, 1), 0), 0)
            share = tl.where(needed <= wave_pieces, limit, share)
    pieces = tl.where(even, in_wave, (tiles + share - 1) // share)
    return tl.where(seq < num_seqs, tl.maximum(pieces, 1), 0)


@triton.jit
def attend(
    q, k_ptr, v_ptr, table_ptr, length, first_tile, last_tile, scale_log2,
    stride_kb, stride_kt, stride_vb, stride_vt,
    HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr, WINDOW: tl.constexpr, SAME_STRIDES: tl.constexpr,
    ALIGN: tl.constexpr, WIDE_PAGES: tl.constexpr, BF16_BITS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Softmax-weighted values over tiles [first_tile, last_tile): unnormalised acc [M, D], maximum and sum [M]."""
    m = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    weights = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)  # summed once, after the loop: a sum over warps in it is slow
    acc = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    for tile in range(first_tile, last_tile):
        start = tile * BLOCK_N
        position = start + tl.arange(0, BLOCK_N)
        visible = position < length
        if WINDOW > 0:
            visible &= position >= length - WINDOW
        k_offsets = token_offsets(
            table_ptr, start, length, stride_kb, stride_kt, BLOCK_SIZE, BLOCK_N, ALIGN, WIDE_PAGES, True
        )
        if SAME_STRIDES:
            v_offsets = k_offsets
        else:
            v_offsets = token_offsets(
                table_ptr, start, length, stride_vb, stride_vt, BLOCK_SIZE, BLOCK_N, ALIGN, WIDE_PAGES, True
            )
        # Values too are masked: a weight of 0 does not silence a NaN that lies beyond the end of the context.
        k = load_tile(k_ptr, k_offsets, visible, HEAD_DIM, BLOCK_D, BF16_BITS, True)
        v = load_tile(v_ptr, v_offsets, visible, HEAD_DIM, BLOCK_D, BF16_BITS, True)
        s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale_log2
        s = tl.where(visible[None, :], s, float("-inf"))
        m_new = tl.maximum(m, tl.max(s, 1))
        shrink = tl.exp2(m - m_new)
        p = tl.exp2(s - m_new[:, None])
        weights = weights * shrink[:, None] + p
        acc = tl.dot(p.to(v.dtype), v, acc * shrink[:, None], input_precision="ieee")
        m = m_new
    return acc, m, tl.sum(weights, 1)


@triton.jit
def heads_of(pair, first_row, GROUP: tl.constexpr, ROWS: tl.constexpr, BLOCK_M: tl.constexpr):
    """Query heads [ROWS], int64, of a pair's rows from first_row on, and which of them there are."""
    HEAD_TILES: tl.constexpr = (GROUP + BLOCK_M - 1) // BLOCK_M
    head_in_group = pair % HEAD_TILES * BLOCK_M + first_row + tl.arange(0, ROWS)
    return (pair // HEAD_TILES).to(tl.int64) * GROUP + head_in_group, head_in_group < GROUP


@triton.jit
def write_rows(
    out_ptr, lse_ptr, acc, lse, seq, pair, first_row, stride_os, stride_oh,
    NUM_KV_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, WITH_LSE: tl.constexpr,
    ALIGN_ROWS: tl.constexpr, ROWS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Writes out, and the LSE in base e, of rows of one (sequence, pair): of acc [ROWS, BLOCK_D], lse [ROWS] in base 2."""
    dim = tl.arange(0, BLOCK_D)
    head, in_group = heads_of(pair, first_row, GROUP, ROWS, BLOCK_M)
    in_rows = in_group[:, None] & (dim < HEAD_DIM)[None, :]
    out_offsets = tl.multiple_of(seq * stride_os + head * stride_oh, ALIGN_ROWS)
    tl.store(out_ptr + out_offsets[:, None] + dim[None, :], acc.to(out_ptr.dtype.element_ty), mask=in_rows)
    if WITH_LSE:
        tl.store(lse_ptr + seq * (NUM_KV_HEADS * GROUP) + head, lse * 0.6931471805599453, mask=in_group)


@triton.jit
def merge(
    part_ptr, part_lse_ptr, first_slot, stride_piece, num_splits, pair, first_row,
    GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, ROWS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr,
    PARTS: tl.constexpr,
):  # fmt: skip
    """The pieces of rows of one (sequence, pair) as one: [ROWS, BLOCK_D], and its LSE [ROWS], in base 2.

    PARTS pieces are read at a time. They were written by other multiprocessors, hence past the first-level cache (.cg).
    """
    dim = tl.arange(0, BLOCK_D)
    _, in_group = heads_of(pair, first_row, GROUP, ROWS, BLOCK_M)
    slot = first_slot + first_row + tl.arange(0, ROWS)
    m = tl.full((ROWS,), float("-inf"), tl.float32)
    norm = tl.zeros((ROWS,), tl.float32)
    acc = tl.zeros((ROWS, BLOCK_D), tl.float32)
    for start in range(0, num_splits, PARTS):
        part = start + tl.arange(0, PARTS)
        slots = slot[:, None] + part[None, :] * stride_piece
        there = in_group[:, None] & (part < num_splits)[None, :]
        lse = tl.load(part_lse_ptr + slots, mask=there, other=float("-inf"), cache_modifier=".cg")
        values = tl.load(
            part_ptr + slots[:, :, None] * HEAD_DIM + dim[None, None, :],
            mask=there[:, :, None] & (dim < HEAD_DIM)[None, None, :], other=0, cache_modifier=".cg",
        )  # fmt: skip
        m_new = tl.maximum(m, tl.max(lse, 1))
        floor = tl.where(m_new == float("-inf"), 0.0, m_new)  # parts that saw no token have weight 0, not NaN
        weight = tl.exp2(lse - floor[:, None])
        shrink = tl.exp2(m - floor)
        norm = norm * shrink + tl.sum(weight, 1)
        acc = acc * shrink[:, None] + tl.sum(weight[:, :, None] * values, 1)
        m = m_new
    divisor = tl.where(norm == 0, 1.0, norm)
    return acc / divisor[:, None], m + tl.log2(divisor)


@triton.jit(do_not_specialize=VARYING)
def decode_kernel(
    out_ptr, lse_ptr, part_ptr, part_lse_ptr, counter_ptr, q_ptr, k_ptr, v_ptr, table_ptr, lens_ptr,
    scale_log2, num_seqs, capacity, num_splits, wave_pieces, num_pieces,
    stride_os, stride_oh, stride_qs, stride_qh, stride_table,
    stride_kb, stride_kt, stride_kh, stride_vb, stride_vt, stride_vh,
    NUM_KV_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    WINDOW: tl.constexpr, PLANNED: tl.constexpr, SPLIT: tl.constexpr, WITH_LSE: tl.constexpr,
    SAME_STRIDES: tl.constexpr, ALIGN: tl.constexpr, WIDE_PAGES: tl.constexpr, ALIGN_ROWS: tl.constexpr,
    BF16_BITS: tl.constexpr, PDL: tl.constexpr, MIN_TILES: tl.constexpr, BLOCK_S: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    MERGE_ROWS: tl.constexpr, MERGE_PARTS: tl.constexpr, FEW: tl.constexpr,
):  # fmt: skip
    """One piece of one (sequence, pair): into out if it has no other; else into part, and the last one merges them.

    MERGE_ROWS rows are merged at a time, of MERGE_PARTS pieces at a time.
    """
    HEAD_TILES: tl.constexpr = (GROUP + BLOCK_M - 1) // BLOCK_M
    PAIRS: tl.constexpr = NUM_KV_HEADS * HEAD_TILES
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    # Neighbouring programs read the heads of the same tokens, which lie side by side in memory: NOTES.md, "locality".
    pair, lane = tl.program_id(0) % PAIRS, tl.program_id(0) // PAIRS
    if PLANNED:
        pieces = plan(lens_ptr, num_seqs, capacity, wave_pieces, num_pieces, WINDOW, BLOCK_N, BLOCK_S, MIN_TILES, FEW)
        ends = tl.cumsum(pieces, 0)
        seq = tl.sum((ends <= lane).to(tl.int32), 0)
        if seq >= num_seqs:
            return
        piece = lane - tl.max(tl.where(ends <= lane, ends, 0), 0)
        num_splits = tl.sum(tl.where(tl.arange(0, BLOCK_S) == seq, pieces, 0), 0)
    else:
        seq, piece = lane // num_splits, lane % num_splits
    length = tl.minimum(tl.load(lens_ptr + seq), capacity)
    first, num_tiles = tile_range(length, WINDOW, BLOCK_N)
    begin = first + (piece.to(tl.int64) * num_tiles // num_splits).to(tl.int32)
    end = first + ((piece + 1).to(tl.int64) * num_tiles // num_splits).to(tl.int32)

    dim = tl.arange(0, BLOCK_D)
    seq_64, kv_head = seq.to(tl.int64), (pair // HEAD_TILES).to(tl.int64)
    head, in_group = heads_of(pair, 0, GROUP, BLOCK_M, BLOCK_M)
    in_rows = in_group[:, None] & (dim < HEAD_DIM)[None, :]
    q_offsets = tl.multiple_of(seq_64 * stride_qs + head * stride_qh, ALIGN_ROWS)
    q = tl.load(q_ptr + q_offsets[:, None] + dim[None, :], mask=in_rows, other=0)
    acc, m, norm = attend(
        q, k_ptr + tl.multiple_of(kv_head * stride_kh, ALIGN), v_ptr + tl.multiple_of(kv_head * stride_vh, ALIGN),
        table_ptr + seq_64 * stride_table,
        length, begin, end, scale_log2, stride_kb, stride_kt, stride_vb, stride_vt,
        HEAD_DIM, BLOCK_SIZE, WINDOW, SAME_STRIDES, ALIGN, WIDE_PAGES, BF16_BITS, BLOCK_M, BLOCK_N, BLOCK_D,
    )  # fmt: skip
    divisor = tl.where(norm == 0, 1.0, norm)  # nothing read: zeros, and an LSE of -inf since m is -inf
    lse = m + tl.log2(divisor)
    acc = acc / divisor[:, None]
    if (not SPLIT) or (PLANNED and num_splits == 1):
        write_rows(
            out_ptr, lse_ptr, acc, lse, seq_64, pair, 0, stride_os, stride_oh,
            NUM_KV_HEADS, GROUP, HEAD_DIM, WITH_LSE, ALIGN_ROWS, BLOCK_M, BLOCK_M, BLOCK_D,
        )  # fmt: skip
    else:
        first_slot = tl.program_id(0).to(tl.int64) * BLOCK_M
        slot = first_slot + tl.arange(0, BLOCK_M)
        tl.store(part_ptr + slot[:, None] * HEAD_DIM + dim[None, :], acc, mask=in_rows)
        tl.store(part_lse_ptr + slot, lse)
        tl.debug_barrier()  # every thread has written before one says so
        counter = counter_ptr + seq_64 * PAIRS + pair
        if tl.atomic_add(counter, 1, sem="acq_rel") == num_splits - 1:
            tl.store(counter, 0)
            first_slot -= piece.to(tl.int64) * (PAIRS * BLOCK_M)
            for first_row in range(0, min(GROUP, BLOCK_M), MERGE_ROWS):
                merged, merged_lse = merge(
                    part_ptr, part_lse_ptr, first_slot, PAIRS * BLOCK_M, num_splits, pair, first_row,
                    GROUP, HEAD_DIM, MERGE_ROWS, BLOCK_M, BLOCK_D, MERGE_PARTS,
                )  # fmt: skip
                write_rows(
                    out_ptr, lse_ptr, merged, merged_lse, seq_64, pair, first_row, stride_os, stride_oh,
                    NUM_KV_HEADS, GROUP, HEAD_DIM, WITH_LSE, ALIGN_ROWS, MERGE_ROWS, BLOCK_M, BLOCK_D,
                )  # fmt: skip


def decode(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_table: torch.Tensor,
    context_lens: torch.Tensor,
    *,
    scale: float,
    num_splits: int | None = None,
    window: int | None = None,
    max_context_len: int | None = None,
    return_lse: bool = False,
    out: torch.Tensor | None = None,
    check_values: bool | None = None,
    rule: rules.DecodeRule | None = None,
    workspace: Workspace | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Attention of one query per sequence over its own tokens: `[S, Hq, d]`, with the LSE `[S, Hq]` (float32, base e)
    if asked for.

    q `[S, Hq, d]`; caches `[blocks, block size, Hkv, d]`, any strides but a dense last dimension (a permuted view of
    `[blocks, Hkv, block size, d]` will do); block_table int32 `[S, width]`; context_lens int32 `[S]`, the current token
    included. Table entries past a sequence's last block are never read and may hold anything; no slot beyond a length
    influences a bit. A length of 0 gives zeros and an LSE of -inf. window: visible tokens, the current one included.

    num_splits: partitions of each sequence. A number fixes them (bits depend on that sequence alone; 1 is one pass);
    None shares the work of the batch evenly, so that the order of sums, and the last bits, depend on the batch and the
    device. max_context_len: a bound that the host knows (default: what the table can hold); the closer, the better the
    choice of pieces, and a context beyond it is only slower. Writes only `out` (allocated when None). Raises ValueError
    before any launch; `check_values=False` waives reading lengths and block ids (a wait for the device on a GPU; never
    done during graph capture). rule: overrides the launch rule. workspace: saves clearing the counters; for calls that
    follow one another alone.
    """
    _check(q, k_cache, v_cache, block_table, context_lens, num_splits, window, out, scale, workspace)
    max_context = checks.bound_of_contexts(max_context_len, block_table, k_cache)
    if checks.should_check_values(check_values, q.device):
        checks.check_context_values(block_table, context_lens, *k_cache.shape[:2], window=window)
    num_seqs, num_heads, head_dim = q.shape
    out = torch.empty_like(q, memory_format=torch.contiguous_format) if out is None else out
    lse = torch.empty((num_seqs, num_heads) if return_lse else (0,), dtype=torch.float32, device=q.device)
    if num_seqs > 0:
        capability = runtime.compute_capability(q.device)
        # With num_splits given, bits must not depend on the batch: neither may the tile.
        rule = rule or rules.decode_rule(
            1 if num_splits else num_seqs,
            num_heads,
            k_cache.shape[2],
            head_dim,
            k_cache.shape[1],
            q.dtype,
            capability,
            runtime.num_multiprocessors(q.device),
        )
        _launch(
            q, k_cache, v_cache, block_table, context_lens, scale, num_splits, window, max_context, out, lse, rule,
            workspace or Workspace(),
        )  # fmt: skip
    return (out, lse) if return_lse else out


def _launch(
    q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, block_table: torch.Tensor, context_lens: torch.Tensor,
    scale: float, num_splits: int | None, window: int | None, max_context: int, out: torch.Tensor, lse: torch.Tensor,
    rule: rules.DecodeRule, workspace: Workspace,
) -> None:  # fmt: skip
    num_seqs, num_heads, head_dim = q.shape
    num_kv_heads = k_cache.shape[2]
    group = num_heads // num_kv_heads
    pairs = num_kv_heads * triton.cdiv(group, rule.block_m)
    capacity = checks.capacity_of(block_table, k_cache)
    num_sms = runtime.num_multiprocessors(q.device)
    block_d = rules.padded_head_dim(head_dim)
    merge_rows, merge_parts = rules.merge_tile(rule, group, block_d, q.dtype)
    wave_pieces, num_pieces = rules.pieces(rule, pairs, num_sms)
    if num_splits is None:
        num_splits = rules.fixed_splits(rule, num_seqs, pairs, max_context, num_sms, merge_parts)
    planned = num_splits is None
    lanes = num_seqs * num_splits if num_splits else num_seqs + num_pieces
    split = num_splits != 1
    num_parts = pairs * lanes if split else 0
    parts = torch.empty((num_parts, rule.block_m, head_dim), dtype=torch.float32, device=q.device)
    part_lse = torch.empty((num_parts, rule.block_m), dtype=torch.float32, device=q.device)
    counters = workspace.counters(num_seqs * pairs, q.device) if split else context_lens
    bits = runtime.reads_bf16_bits(q.dtype)
    q = q.float() if bits else q  # before its strides are taken: a converted copy is dense
    kernel_out = torch.empty(q.shape, dtype=torch.float32) if bits else out
    pdl = rule.pdl and runtime.compute_capability(q.device) >= 90
    strides = [*k_cache.stride()[:3], *v_cache.stride()[:3]]
    capped = {"maxnreg": rule.max_registers} if rule.max_registers else {}
    decode_kernel[(pairs * lanes,)](
        kernel_out, lse, parts, part_lse, counters, q, runtime.as_bits(k_cache), runtime.as_bits(v_cache),
        block_table, context_lens, scale * LOG2_E, num_seqs, capacity, num_splits or 0, wave_pieces, num_pieces,
        kernel_out.stride(0), kernel_out.stride(1), q.stride(0), q.stride(1), block_table.stride(0), *strides,
        NUM_KV_HEADS=num_kv_heads, GROUP=group, HEAD_DIM=head_dim, BLOCK_SIZE=k_cache.shape[1], WINDOW=window or 0,
        PLANNED=planned, SPLIT=split, WITH_LSE=lse.numel() > 0, BF16_BITS=bits, **rules.layout(q, kernel_out, k_cache, v_cache),
        PDL=pdl, launch_pdl=pdl, MIN_TILES=rule.min_tiles,
        BLOCK_S=rules.padded_seqs(num_seqs) if planned else 1, BLOCK_M=rule.block_m, BLOCK_N=rule.block_n, BLOCK_D=block_d,
        MERGE_ROWS=merge_rows, MERGE_PARTS=merge_parts, FEW=planned and rules.are_few(num_seqs, wave_pieces),
        num_warps=rule.num_warps, num_stages=rule.num_stages, **capped,
    )  # fmt: skip
    if bits:
        out.copy_(kernel_out)


def _check(
    q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, block_table: torch.Tensor, context_lens: torch.Tensor,
    num_splits: int | None, window: int | None, out: torch.Tensor | None, scale: float, workspace: Workspace | None,
) -> None:  # fmt: skip
    checks.check_kernel_dtype("q", q)
    checks.check_decode(q, k_cache, v_cache, block_table, context_lens, scale=scale, window=window)
    checks.check_head_dim(q.shape[2])
    checks.check_out(out, q)
    checks.check_splits(num_splits)
    checks.require(
        workspace is None or isinstance(workspace, Workspace), f"workspace={workspace!r}; expected None or a Workspace"
    )
    runtime.require_runnable(q)
