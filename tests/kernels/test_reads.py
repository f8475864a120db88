"""What decode() and prefill() read of a context, and how they weigh it: the table's own entries, no token beyond the table
or before the window, at the scale that was given."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
import triton

from paged_impl.kernels import decode, prefill
from properties.attention.guarding import guard
from tests.kernels import plain

Read = Callable[..., torch.Tensor]
QUERIES = 5


def read_decode(batch: plain.Batch, **options: object) -> torch.Tensor:
    return decode(*batch.decode_args(), **{"scale": batch.scale, **options})  # type: ignore[arg-type, return-value]


def read_prefill(batch: plain.Batch, **options: object) -> torch.Tensor:
    given = {"scale": batch.scale, "max_query_len": QUERIES, **options}
    return prefill(*batch.prefill_args(), **given)  # type: ignore[arg-type, return-value]


READS = pytest.mark.parametrize(
    ("read", "most"), [(read_decode, 1), (read_prefill, QUERIES)], ids=["decode", "prefill"]
)


def batch_of(lens: list[int], most: int, block_size: int, device: str) -> plain.Batch:
    """With at most `most` queries of each sequence."""
    query_lens = [min(length, most) for length in lens]
    return plain.make_batch(lens, "4/2/32", block_size, query_lens=query_lens, device=device)


@READS
@pytest.mark.parametrize("block_size", [16, 24], ids=["pages in a tile", "a page for each token"])
@pytest.mark.skipif(
    not triton.knobs.runtime.interpret, reason="only the interpreter's guard sees a load that is not used"
)
def test_no_entry_behind_the_last_block_is_loaded(read: Read, most: int, block_size: int, device: str) -> None:
    """The table is just as wide as the longest sequence, which comes last and fills no tile: behind it ends its memory."""
    batch = batch_of([3, 48], most, block_size, device)
    batch = replace(batch, table=batch.table[:, : 48 // block_size].clone())

    with np.errstate(all="ignore"), guard.guarded() as watch:
        out = read(batch)

    assert watch.num_checks > 0
    plain.assert_close(out, plain.answer(batch)[0])


@READS
def test_a_length_beyond_the_table_is_that_of_the_table(read: Read, most: int, device: str) -> None:
    """With the check waived. Behind the four columns that are given lie the sequence's other blocks, to be read by mistake."""
    batch = batch_of([70, 13, 200], most, 16, device)
    narrow = replace(batch, table=batch.table[:, :4])
    held = replace(narrow, lens=batch.lens.clamp(max=64))
    every: list[dict[str, object]] = [{"num_splits": n} for n in (None, 1, 3)] if read is read_decode else [{}]
    for options in every:
        out = read(narrow, check_values=False, **options)

        plain.assert_close(out, plain.answer(held)[0])
        assert torch.equal(out, read(held, **options))


@READS
@pytest.mark.parametrize("window", [1, 20, 50])
def test_tokens_before_the_window_may_be_anything(read: Read, most: int, window: int, device: str) -> None:
    """Their slots, which an engine frees, hold NaN: up to the first token that the sequence's first query sees."""
    lens = [60, 34, 130]
    batch = batch_of(lens, most, 16, device)
    expected, _ = plain.answer(batch, window)
    for row, length in enumerate(lens):
        position = torch.arange(max(0, length - min(length, most) + 1 - window), device=device)
        blocks = batch.table[row, position // 16].long()
        for cache in (batch.k_cache, batch.v_cache):
            cache[blocks, position % 16] = float("nan")

    plain.assert_close(read(batch, window=window), expected)


@READS
@pytest.mark.parametrize("scale", [0.03, 0.5])
def test_the_scale_is_the_one_given(read: Read, most: int, scale: float, device: str) -> None:
    """Not 1 / sqrt(head dim), which is far from either."""
    batch = replace(batch_of([60, 3, 130], most, 16, device), scale=scale)
    expected, _ = plain.answer(batch)
    usual, _ = plain.answer(replace(batch, scale=32**-0.5))

    assert plain.largest_error(usual, expected) > 0.1
    plain.assert_close(read(batch), expected, 1e-5)
