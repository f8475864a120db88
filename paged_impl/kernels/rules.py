"""Launch rules: tile sizes, warps, pipeline depth and number of programs, from shape, page size, dtype and device.

Tuned off line on an H200 (benchmarks/NOTES.md holds the log); nothing is tuned at import or at first call. The other
devices named below were reasoned about and compiled for, not run.
"""

import dataclasses
from dataclasses import dataclass

import torch
import triton

# plan() in decode.py holds all lengths in one vector; longer batches are not cut (they fill any device).
MAX_PLANNED_SEQS = 4096


@dataclass(frozen=True, slots=True)
class StoreRule:
    """block_rows: (token, head) rows per program."""

    block_rows: int
    num_warps: int


@dataclass(frozen=True, slots=True)
class DecodeRule:
    """block_m: query heads of one KV head per program; block_n: tokens per tile.

    wave, total: pieces of work per multiprocessor, for an even and for a ragged batch; alone: for a single sequence;
    min_tiles: least tiles of a piece;
    short_tokens: rows that cannot be longer are not cut, if there are enough of them; pdl: overlap launches (sm_90 on);
    max_registers: of a thread (0: the compiler's choice). 255 are all there are; unasked, the compiler parks values in local
    memory to make room for a third program, whose tiles would not fit (NOTES.md, decode 17).
    """

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int
    wave: int = 2
    total: int = 3
    alone: int = 2
    min_tiles: int = 4
    short_tokens: int = 1536
    pdl: bool = True
    max_registers: int = 255


@dataclass(frozen=True, slots=True)
class PrefillRule:
    """block_m: query rows per program; block_n: tokens per KV tile; pack: query heads of a KV head whose rows a program takes.

    tma: tiles are fetched by the copy engine; max_registers: of a thread, where more programs are to fit (0: no bound).
    """

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int
    pack: int
    tma: bool = False
    max_registers: int = 0


def padded_head_dim(head_dim: int) -> int:
    """Width of a tile in head-dim elements: Triton tiles are powers of two."""
    return max(16, int(triton.next_power_of_2(head_dim)))


def store_rule(head_dim: int, dtype: torch.dtype, interpreted: bool) -> StoreRule:
    """4 KB of keys a program, which gives every thread two 16-byte copies; one large tile for the interpreter."""
    if interpreted:
        return StoreRule(block_rows=64, num_warps=4)
    block_rows = 4096 // (padded_head_dim(head_dim) * dtype.itemsize)
    return StoreRule(block_rows=max(1, block_rows), num_warps=4)


def decode_rule(
    num_seqs: int, num_heads: int, num_kv_heads: int, head_dim: int, block_size: int, dtype: torch.dtype, capability: int,
    num_sms: int,
) -> DecodeRule:  # fmt: skip
    """Decode is bound by memory: enough copies in flight on every multiprocessor, and equal work for each.

    A 16-bit tile is 16 KB of keys. Three of them in flight with their values take just under half of an H200's shared
    memory: exactly two programs run on a multiprocessor, and a wave of twice as many programs as multiprocessors is
    spread evenly (where a third would fit, it is not). More rows than that run as four programs of half the size.
    """
    width = padded_head_dim(head_dim)
    group = num_heads // num_kv_heads
    block_m = min(max(16, int(triton.next_power_of_2(group))), 64)
    large = has_large_shared_memory(capability)
    deep = 7 if capability >= 90 else 5  # three tiles in flight, or two
    if dtype == torch.float32:
        rule = _exact_decode_rule(block_m, width, block_size, capability)
    elif not large:
        rule = DecodeRule(block_m, min(64, 8192 // width), num_warps=4, num_stages=3)
    elif block_m == 64:
        num_warps, num_stages = 8 if width > 128 else 4, 9 if width <= 64 else 5
        rule = DecodeRule(block_m, min(64, 8192 // width), num_warps, num_stages, alone=1)
    elif num_seqs * num_kv_heads > 2 * num_sms and width <= 128 and head_dim % 2 == 0:
        # Beyond one wave of these, more programs with fewer copies each. A padded tile does better so, too. Not heads of an
        # odd size, which nothing copies asynchronously: their tiles are too much for the registers of two warps.
        block_n = min(64, 4096 // width)
        full = _fill_waves(num_seqs * num_kv_heads, 4 * num_sms, block_size % block_n == 0) and head_dim == width
        num_stages, total = (deep, 6) if full else (5, 8)
        rule = DecodeRule(block_m, block_n, num_warps=2, num_stages=num_stages, wave=4, total=total)
    else:
        rule = DecodeRule(
            block_m, min(128, 8192 // width), num_warps=4, num_stages=deep, alone=1 if width <= 128 else 2
        )
    if capability == 0:  # interpreted: cut short rows too, or small cases would never have partitions
        rule = dataclasses.replace(rule, short_tokens=0, min_tiles=1, wave=2, total=2)
    return rule


def _exact_decode_rule(block_m: int, width: int, block_size: int, capability: int) -> DecodeRule:
    """Exact products run on the FMA units and hold whole tiles in registers, beside a page id a token where those differ.

    Two to five programs fit a multiprocessor, and are not spread evenly: many small ones even out (NOTES.md, decode 18).
    max_registers: told where the compiler would park a few bytes, and not where it would then unroll until it spills.
    """
    whole_pages = block_size > 1 and block_size & (block_size - 1) == 0
    interpreted = capability == 0
    widest = 128 if whole_pages or interpreted else 64
    block_m = min(block_m, 64 if width <= 64 or whole_pages else 32)
    block_n = 32 if width <= widest and (has_large_shared_memory(capability) or interpreted) else 16
    num_warps = 4 if block_m <= 16 and (whole_pages or width <= 128) else 8
    tight = (num_warps == 8 and width <= 64) or (not whole_pages and width <= 128)
    return DecodeRule(block_m, block_n, num_warps, 3, wave=8, total=12, max_registers=255 if tight else 0)


def _fill_waves(num_rows: int, wave: int, page_holds_tile: bool) -> bool:
    """Whether rows fit into one wave, or fill two in pages that hold a tile: the fifth program that fewer copies make room
    for cost 2 to 13 % there (NOTES.md, decode 14), and nothing elsewhere."""
    return num_rows <= wave or (page_holds_tile and 18 * wave <= 10 * num_rows <= 20 * wave)


def fixed_splits(rule: DecodeRule, num_seqs: int, pairs: int, max_context: int, num_sms: int, parts: int) -> int | None:
    """Pieces of every sequence where no look at the lengths is needed; None where the kernel has to plan.

    max_context: what the host knows of the lengths; the capacity of the table, if no more. parts: those of `merge_tile`.
    """
    no_row_is_long = max_context <= rule.short_tokens and num_seqs * pairs * 10 >= num_sms * 9
    if no_row_is_long or num_seqs > MAX_PLANNED_SEQS:
        return 1
    if num_seqs == 1:
        return min(_pieces_alone(rule, pairs, num_sms, parts), max(16, max_context // rule.block_n // rule.min_tiles))
    return None


def _pieces_alone(rule: DecodeRule, pairs: int, num_sms: int, parts: int) -> int:
    """One program on each multiprocessor reads as fast as two (NOTES.md, decode 15), and half as many pieces are merged.

    One program merges them, `parts` at a time: eight rounds of it cost as much as what more readers would gain.
    """
    most = min(max(1, num_sms * rule.alone // pairs), max(32, 8 * parts))
    return most - most % parts if most > parts else most


def are_few(num_seqs: int, wave_pieces: int) -> bool:
    """Whether a ragged batch may be cut into one wave of pieces: of more sequences, some piece is always far too long."""
    return 2 * num_seqs <= wave_pieces


def merge_tile(rule: DecodeRule, group: int, width: int, dtype: torch.dtype) -> tuple[int, int]:
    """Rows that are merged at a time, and pieces of them that are read at a time.

    Of float32 values a thread holds 16 of the result at most (32 of narrow heads), and 64 that were read; 32 beside exact
    products, which leave fewer registers. More are spilled.
    """
    threads = 32 * rule.num_warps
    rows = min(rule.block_m, int(triton.next_power_of_2(group)), (32 if width <= 64 else 16) * threads // width)
    values = 32 if dtype == torch.float32 else 64
    return rows, max(1, values * threads // (rows * width))


def padded_seqs(num_seqs: int) -> int:
    """Width of the vector of lengths: 32 (one a lane, summed without shared memory), 128, or a power of two beyond."""
    return 32 if num_seqs <= 32 else max(128, int(triton.next_power_of_2(num_seqs)))


def pieces(rule: DecodeRule, pairs: int, num_sms: int) -> tuple[int, int]:
    """Pieces of all sequences together, for one pair: of an even batch, in one wave; and of a ragged batch.

    The launch has room for the second number and one more piece for each sequence, so it is never below the first.
    """
    wave_pieces = max(1, num_sms * rule.wave // pairs)
    return wave_pieces, max(wave_pieces, num_sms * rule.total // pairs)


def prefill_rule(
    group: int,
    head_dim: int,
    block_size: int,
    max_query_len: int,
    max_context: int,
    dtype: torch.dtype,
    capability: int,
) -> PrefillRule:
    """Prefill is bound by arithmetic: as many query rows per KV tile as registers allow, or few when there are few."""
    width = padded_head_dim(head_dim)
    few = max_query_len < 128
    rows = max(16, int(triton.next_power_of_2(max_query_len * (group if few else 1))))
    if capability == 90 and dtype != torch.float32 and width <= 128 and rows > 64:
        rule = _wide_prefill_rule(group, width, block_size, max_query_len, max_context)
    elif dtype == torch.float32:  # exact products run on the FMA units
        rule = PrefillRule(
            min(32, rows), 32 if width <= 64 else 16, 4 if width <= 64 else 8, 2, pack=1, max_registers=128
        )
    elif capability == 90 and width > 128:
        rule = PrefillRule(min(128, rows), 32, 8, 3, pack=1)
    elif capability == 90:
        rule = PrefillRule(min(64, rows), 64, 4, 5, pack=1)
    else:  # mma.sync, and registers and shared memory for two stages of a small tile everywhere
        widest = 64 if capability and not has_large_shared_memory(capability) else 128
        rule = PrefillRule(min(64, rows), 64 if width <= widest else 32, 4, 2, pack=1)
    if few and group <= rule.block_m:
        return dataclasses.replace(rule, pack=group)
    return rule


def _wide_prefill_rule(group: int, width: int, block_size: int, max_query_len: int, max_context: int) -> PrefillRule:
    """An H100's or H200's, by the number of tiles of a program (benchmarks/NOTES.md, prefill 8 to 10).

    Narrow heads: a tile that gives each thread 16 bytes to copy. Few tiles: two programs on a multiprocessor hide each
    other's start and end. Many tiles in small pages: the addresses of a tile are computed for twice as many rows. Many in
    pages that hold a large tile: the copy engine fetches it. Rows of several heads of a KV head cover fewer tokens, so that
    less of a tile is hidden from them.
    """
    pack = next(heads for heads in (4, 2, 1) if group % heads == 0)
    mean_context = max_context - max_query_len // 2
    if width <= 32 or (mean_context <= 1024 and width <= 64):
        return PrefillRule(64, 64, 4, 5, pack)
    if width <= 64:
        return PrefillRule(128, 64, 4, 5, pack)
    if mean_context <= 1024:
        return PrefillRule(128, 64, 8, 3, pack, max_registers=128)
    if block_size % 128 == 0:
        return PrefillRule(128, 128, 8, 5, pack=1, tma=True)
    if max_query_len * pack <= 128:
        return PrefillRule(128, 128, 8, 5, pack=1)
    return PrefillRule(256, 64, 16, 5, pack)


def has_large_shared_memory(capability: int) -> bool:
    """Whether a multiprocessor has 160 KB or more of shared memory (A100, H100 and later data-centre parts; not L4, RTX
    4090)."""
    return capability in (80, 90, 100, 103)


def alignment(strides: list[int]) -> int:
    """Elements (at most 16) that divide every stride: what the kernels may promise the compiler about offsets (ALIGN: of the
    caches; ALIGN_ROWS: of queries and output)."""
    return next(size for size in (16, 8, 4, 2, 1) if all(stride % size == 0 for stride in strides))


def layout(q: torch.Tensor, out: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor) -> dict[str, int | bool]:
    """What decode and prefill are compiled for: how their tensors lie in memory."""
    k_strides, v_strides = list(k_cache.stride()[:3]), list(v_cache.stride()[:3])
    return {
        "SAME_STRIDES": k_strides == v_strides,
        "ALIGN": alignment(k_strides + v_strides),
        "WIDE_PAGES": has_wide_pages(k_cache, v_cache),
        "ALIGN_ROWS": alignment([*q.stride()[:2], *out.stride()[:2]]),
    }


def has_wide_pages(*caches: torch.Tensor) -> bool:
    """Whether the tokens of a page of `[blocks, block size, Hkv, d]` lie 2**31 elements apart."""
    return any((cache.shape[1] - 1) * cache.stride(1) >= 2**31 for cache in caches)
