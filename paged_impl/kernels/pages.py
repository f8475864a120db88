"""Device helpers shared by the decode and prefill kernels: from token positions to memory.

    slot(p) = table[p // BLOCK_SIZE] * BLOCK_SIZE + p % BLOCK_SIZE
    offset(p) = table[p // BLOCK_SIZE] * stride_block + (p % BLOCK_SIZE) * stride_token          (int64)

Only table entries of blocks that hold a position below `end` are read: padding may hold anything.
"""

import triton
import triton.language as tl


@triton.jit
def load_pages(pointers, owned, MASKED: tl.constexpr):
    """Block ids, int64. MASKED: some entries may lie past the last block of the sequence; those are not read."""
    pages = tl.load(pointers, mask=owned, other=0) if MASKED else tl.load(pointers)
    return pages.to(tl.int64)


@triton.jit
def token_offsets(
    table_ptr,
    start,
    end,
    stride_block,
    stride_token,
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,
    ALIGN: tl.constexpr,
    WIDE_PAGES: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Element offsets, int64 [TILE], of positions start .. start + TILE; positions from `end` on are masked by the caller.

    `start` is a multiple of TILE. Three ways to look pages up, by the shape of the problem:
    one page holds the tile (one id); the tile holds whole pages of a power-of-two size (one id per page, spread by a
    broadcast); anything else (one id per token). The broadcast loses what the compiler knew about divisibility, and
    with it the 16-byte copies: ALIGN (elements) says it again. Measured in benchmarks/NOTES.md.
    """
    within = tl.arange(0, TILE)
    if WIDE_PAGES:
        within = within.to(tl.int64)
    if BLOCK_SIZE % TILE == 0:
        pages = tl.load(table_ptr + start // BLOCK_SIZE).to(tl.int64) * stride_block
        slots = start % BLOCK_SIZE + within
    elif TILE % BLOCK_SIZE == 0 and (BLOCK_SIZE & (BLOCK_SIZE - 1)) == 0 and BLOCK_SIZE > 1:
        PAGES: tl.constexpr = TILE // BLOCK_SIZE
        index = start // BLOCK_SIZE + tl.arange(0, PAGES)
        pages = load_pages(table_ptr + index, index * BLOCK_SIZE < end, MASKED) * stride_block
        pages = tl.reshape(tl.broadcast_to(pages[:, None], (PAGES, BLOCK_SIZE)), (TILE,))
        slots = within % BLOCK_SIZE
    else:
        position = start + within
        pages = load_pages(table_ptr + position // BLOCK_SIZE, position < end, MASKED) * stride_block
        slots = position % BLOCK_SIZE
    return tl.multiple_of(pages + slots * stride_token, ALIGN)


@triton.jit
def load_tile(
    ptr, offsets, owned, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BF16_BITS: tl.constexpr, MASKED: tl.constexpr
):
    """Rows [TILE, BLOCK_D] at the offsets; components past the head dim, and (MASKED) rows not owned, are zeros and not read.

    BF16_BITS, interpreted runs only: bfloat16 bits held in int16 become the same values in float32 (see runtime.py).
    """
    dim = tl.arange(0, BLOCK_D)
    pointers = ptr + offsets[:, None] + dim[None, :]
    if MASKED:
        tile = tl.load(pointers, mask=owned[:, None] & (dim < HEAD_DIM)[None, :], other=0)
    elif HEAD_DIM < BLOCK_D:
        tile = tl.load(pointers, mask=(dim < HEAD_DIM)[None, :], other=0)
    else:
        tile = tl.load(pointers)
    if BF16_BITS:
        return (tile.to(tl.int32) << 16).to(tl.float32, bitcast=True)
    return tile
