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
    short_tokens: rows that cannot be longer are not cut, if there are enough of them; pdl: overlap launches (sm_90 on).
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
    if dtype == torch.float32:  # exact products run on the FMA units and hold whole tiles in registers
        block_n = 32 if width <= 128 and (large or capability == 0) else 16
        rule = DecodeRule(block_m, block_n, num_warps=4 if block_m <= 16 else 8, num_stages=3)
    elif not large:
        rule = DecodeRule(block_m, min(64, 8192 // width), num_warps=4, num_stages=3)
    elif block_m == 64:
        rule = DecodeRule(block_m, min(64, 8192 // width), num_warps=4, num_stages=9 if width <= 64 else 5, alone=1)
    elif num_seqs * num_kv_heads > 2 * num_sms and width <= 128:
        # Beyond one wave of these, more programs with fewer copies each. A padded tile does better so, too.
        block_n = min(64, 4096 // width)
        full = _fill_waves(num_seqs * num_kv_heads, 4 * num_sms, block_size % block_n == 0) and head_dim == width
        num_stages, total = (deep, 6) if full else (5, 8)
        rule = DecodeRule(block_m, block_n, num_warps=2, num_stages=num_stages, wave=4, total=total)
    else:
        rule = DecodeRule(
            block_m, min(128, 8192 // width), num_warps=4, num_stages=deep, alone=1 if width <= 128 else 2
        )
    if capability == 0:  # interpreted: cut short rows too, or small cases would never have partitions
        rule = dataclasses.replace(rule, short_tokens=0, min_tiles=1, total=2)
    return rule


def _fill_waves(num_rows: int, wave: int, page_holds_tile: bool) -> bool:
    """Whether rows fit into one wave, or fill two in pages that hold a tile: the fifth program that fewer copies make room
    for cost 2 to 13 % there (NOTES.md, decode 14), and nothing elsewhere."""
    return num_rows <= wave or (page_holds_tile and 18 * wave <= 10 * num_rows <= 20 * wave)


def fixed_splits(rule: DecodeRule, num_seqs: int, pairs: int, max_context: int, num_sms: int, parts: int) -> int | None:
    """Pieces of every sequence where no look at the lengths is needed; None where the kernel has to plan.

    max_context: what the host knows of the lengths; the capacity of the table, if no more. parts: `merge_parts`.
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


def merge_parts(rule: DecodeRule, piece_elements: int) -> int:
    """Pieces that are read at a time when they are merged: 64 float32 values a thread."""
    return max(1, 64 * 32 * rule.num_warps // piece_elements)


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
        rule = PrefillRule(min(32, rows), 32 if width <= 64 else 16, 4 if width <= 64 else 8, 2, pack=1)
    elif capability == 90 and width > 128:
        rule = PrefillRule(min(128, rows), 32, 8, 3, pack=1)
    elif capability == 90:
        rule = PrefillRule(min(64, rows), 64, 4, 5, pack=1)
    else:  # mma.sync, and shared memory for two stages of a small tile everywhere
        rule = PrefillRule(min(64, rows), 64 if width <= 128 else 32, 4, 2, pack=1)
    if few and group <= rule.block_m:
        return dataclasses.replace(rule, pack=group)
    return rule


def _wide_prefill_rule(group: int, width: int, block_size: int, max_query_len: int, max_context: int) -> PrefillRule:
    """An H100's or H200's, by the number of tiles of a program (benchmarks/NOTES.md, prefill 8 to 10).

    Few tiles: two programs on a multiprocessor hide each other's start and end. Many tiles in small pages: the addresses
    of a tile are computed for twice as many rows. Many in pages that hold a tile: the copy engine fetches it, and the
    largest tile is best. Rows of several heads of a KV head cover fewer tokens, so that less of a tile is hidden from them.
    """
    pack = next(heads for heads in (4, 2, 1) if group % heads == 0)
    mean_context = max_context - max_query_len // 2
    if mean_context <= 1024 and width <= 64:
        return PrefillRule(64, 64, 4, 5, pack)
    if mean_context <= 1024:
        return PrefillRule(128, 64, 8, 3, pack, tma=block_size % 64 == 0, max_registers=128)
    if block_size % 128 == 0:
        return PrefillRule(128, 128, 8, 5, pack=1, tma=True)
    if max_query_len * pack <= 128:
        return PrefillRule(128, 128, 8, 5, pack=1)
    return PrefillRule(256, 64, 16, 5, pack, tma=block_size % 64 == 0)


def has_large_shared_memory(capability: int) -> bool:
    """Whether a multiprocessor has 160 KB or more of shared memory (A100, H100 and later data-centre parts; not L4, RTX
    4090)."""
    return capability in (80, 90, 100, 103)


def alignment(strides: list[int]) -> int:
    """Elements (at most 16) that divide every cache stride: what the kernels may promise the compiler about offsets."""
    return next(size for size in (16, 8, 4, 2, 1) if all(stride % size == 0 for stride in strides))
