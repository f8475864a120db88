"""Run decode's plan() by itself."""

import torch
import triton
import triton.language as tl

from paged_impl.kernels import rules
from paged_impl.kernels.decode import VARYING, plan

BLOCK_N = 64


@triton.jit(do_not_specialize=VARYING)
def _kernel(
    out_ptr, lens_ptr, num_seqs, capacity, wave_pieces, num_pieces,
    BLOCK_N: tl.constexpr, BLOCK_S: tl.constexpr, MIN_TILES: tl.constexpr, FEW: tl.constexpr,
):  # fmt: skip
    pieces = plan(lens_ptr, num_seqs, capacity, wave_pieces, num_pieces, 0, BLOCK_N, BLOCK_S, MIN_TILES, FEW)
    tl.store(out_ptr + tl.arange(0, BLOCK_S), pieces)


def pieces_of(lens: torch.Tensor, wave_pieces: int, num_pieces: int, min_tiles: int) -> list[int]:
    """Pieces of each sequence, padded with those of no sequence."""
    block_s = rules.padded_seqs(len(lens))
    out = torch.full((block_s,), -1, dtype=torch.int32, device=lens.device)
    few = rules.are_few(len(lens), wave_pieces)
    _kernel[(1,)](out, lens, len(lens), 1 << 20, wave_pieces, num_pieces, BLOCK_N, block_s, min_tiles, few)
    pieces: list[int] = out.tolist()
    return pieces
