"""decode() against float64, with everything that a sequence does not own poisoned."""

import dataclasses
import itertools

import pytest
import torch

from paged_impl.kernels import decode, rules
from paged_impl.kernels.decode import Workspace
from tests.kernels import plain

MIXED = [1, 70, 0, 33]
SHAPES = [
    # lengths, heads, block size, window
    (MIXED, "4/2/64", 16, None),
    ([17, 64, 65], "6/2/24", 5, None),  # nothing is a power of two
    ([3, 100], "5/1/32", 1, None),  # a block a token
    ([300, 0, 257], "2/2/16", 256, None),  # a tile in one block
    ([100, 64, 7], "4/2/96", 16, 20),  # padded head dim, window
    ([70, 20], "71/1/16", 64, None),  # multi-query: two tiles of heads
    ([70, 20], "40/1/128", 16, None),  # so many rows that they are merged a part at a time
    ([0, 0], "4/2/64", 4, None),
]


@pytest.mark.parametrize(("lens", "heads", "block_size", "window"), SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_agrees_with_float64(
    lens: list[int], heads: str, block_size: int, window: int | None, dtype: torch.dtype, device: str
) -> None:
    batch = plain.make_batch(lens, heads, block_size, dtype, device=device)
    expected, expected_lse = plain.answer(batch, window)
    for num_splits in (None, 1, 3):
        out, lse = decode(
            *batch.decode_args(), scale=batch.scale, num_splits=num_splits, window=window, return_lse=True
        )

        plain.assert_close(out, expected)
        plain.assert_close(lse, expected_lse, plain.LARGEST_LSE_ERROR)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_the_limit_rejects_wrong_answers(dtype: torch.dtype) -> None:
    """Zeros, the neighbour's row, one token dropped, one page swapped: each is farther off than any right answer may be."""
    batch = plain.make_batch([40, 40], dtype=dtype)
    expected, _ = plain.answer(batch)
    swapped = batch.table.clone()
    swapped[0, [2, 3]] = batch.table[1, [2, 3]]
    wrong = {
        "zeros": torch.zeros_like(expected),
        "other row": expected.flip(0),
        "dropped token": plain.answer(dataclasses.replace(batch, lens=batch.lens - 1))[0],
        "swapped page": plain.answer(dataclasses.replace(batch, table=swapped))[0],
    }
    for name, values in wrong.items():
        assert plain.largest_error(values.to(dtype), expected) > 2 * plain.LARGEST_ERROR[dtype], name


@pytest.mark.parametrize(
    "rule",
    [rules.DecodeRule(16, 16, 4, 3, total=5, short_tokens=0, min_tiles=1),
     rules.DecodeRule(32, 32, 2, 5, wave=1, short_tokens=0), rules.DecodeRule(16, 64, 4, 7, short_tokens=4096)],
    ids=["many pieces", "few pieces", "whole rows"],
)  # fmt: skip
@pytest.mark.parametrize("block_size", [8, 64, 12])  # whole blocks in a tile, a tile in a block, neither
def test_every_schedule_and_page_lookup(rule: rules.DecodeRule, block_size: int, device: str) -> None:
    batch = plain.make_batch([1, 200, 0, 33, 34, 64], "4/2/32", block_size, device=device)

    out, lse = decode(*batch.decode_args(), scale=batch.scale, rule=rule, return_lse=True)

    expected, expected_lse = plain.answer(batch)
    plain.assert_close(out, expected)
    plain.assert_close(lse, expected_lse, plain.LARGEST_LSE_ERROR)


@pytest.mark.parametrize("num_splits", [1, 3])
def test_bits_do_not_depend_on_the_batch(num_splits: int, device: str) -> None:
    """Reordered, and alone; on a GPU the batch is so large that another launch rule would be chosen for it."""
    lens = [5, 100, 0, 57, 64, 1] + [7] * (300 if device == "cuda" else 6)
    batch = plain.make_batch(lens, "4/2/32", 4, device=device)
    order = torch.randperm(len(lens), generator=torch.Generator().manual_seed(0)).to(device)

    def rows(pick: torch.Tensor) -> torch.Tensor:
        tensors = batch.q[pick], batch.k_cache, batch.v_cache, batch.table[pick], batch.lens[pick]
        return decode(*tensors, scale=batch.scale, num_splits=num_splits)

    together = rows(torch.arange(len(lens), device=device))

    assert torch.equal(rows(order), together[order])
    for alone in ([0], [1], [3]):
        assert torch.equal(rows(torch.tensor(alone, device=device)), together[alone])


@pytest.mark.parametrize("bound", [0, 7, 10**6])
@pytest.mark.parametrize("lens", [[70, 5, 30], [70]], ids=["planned", "one"])
def test_the_bound_of_contexts_changes_no_answer(bound: int, lens: list[int], device: str) -> None:
    """Not even one that is too small."""
    batch = plain.make_batch(lens, device=device)

    out = decode(*batch.decode_args(), scale=batch.scale, max_context_len=bound)

    plain.assert_close(out, plain.answer(batch)[0])


def test_a_workspace_is_left_as_it_was_found(device: str) -> None:
    """Calls of any shape share one: each finds the counters zero, and gives the bits that it gives with its own."""
    workspace, counters = Workspace(), None
    for seed, (lens, num_splits) in enumerate([([70, 5, 0], 3), ([1, 200, 33], None), ([70, 5], 2), ([64], 5)]):
        batch = plain.make_batch(lens, "4/2/32", 4, seed=seed, device=device)
        shared, own = (
            decode(*batch.decode_args(), scale=batch.scale, num_splits=num_splits, workspace=given)
            for given in (workspace, None)
        )
        counters = workspace.counters(1, batch.q.device)
        assert torch.equal(shared, own)
        assert not counters.any()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="a CUDA graph needs a GPU")
def test_graphs_with_and_without_a_workspace_replay_the_same_bits(device: str) -> None:
    batch = plain.make_batch([700, 5, 33], "8/2/64", 16, torch.bfloat16, device=device)
    expected = decode(*batch.decode_args(), scale=batch.scale, num_splits=7)
    warm = Workspace()
    warm.counters(64, batch.q.device)
    for workspace in (warm, Workspace(), None):
        out, graph = torch.empty_like(batch.q), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(3):
                decode(
                    *batch.decode_args(), scale=batch.scale, num_splits=7, out=out, workspace=workspace, check_values=False
                )  # fmt: skip
        for _ in range(3):
            out.fill_(float("nan"))
            graph.replay()
            torch.cuda.synchronize()
            assert torch.equal(out, expected)


def test_moving_pages_changes_no_bit(device: str) -> None:
    batch = plain.make_batch([70, 33], device=device)
    order = torch.randperm(len(batch.k_cache), generator=torch.Generator().manual_seed(1)).to(device)
    place = torch.argsort(order).int()
    owned = (batch.table >= 0) & (batch.table < len(order))
    moved = torch.where(owned, place[batch.table.clamp(0, len(order) - 1).long()], batch.table)

    out = decode(*batch.decode_args(), scale=batch.scale)
    again = decode(batch.q, batch.k_cache[order], batch.v_cache[order], moved.int(), batch.lens, scale=batch.scale)

    assert torch.equal(out, again)


def test_strided_tensors_and_a_given_output(device: str) -> None:
    """Queries out of a fused projection, caches stored head first and apart from each other, an output in a larger tensor."""
    batch = plain.make_batch([9, 30], "4/2/32", dtype=torch.bfloat16, device=device)
    fused = torch.randn(2, 12, 32, device=device).to(torch.bfloat16)
    fused[:, 4:8] = batch.q
    k_cache = batch.k_cache.transpose(1, 2).contiguous().transpose(1, 2)
    room = torch.full((2, 6, 32), 7.0, device=device).to(torch.bfloat16)

    out = decode(fused[:, 4:8], k_cache, batch.v_cache, batch.table, batch.lens, scale=batch.scale, out=room[:, 1:5])

    assert out.data_ptr() == room[:, 1:5].data_ptr()
    plain.assert_close(room[:, 1:5], plain.answer(batch)[0])
    assert torch.equal(room[:, [0, 5]], torch.full_like(room[:, [0, 5]], 7.0))


def test_no_sequences(device: str) -> None:
    batch = plain.make_batch([], device=device)

    out, lse = decode(*batch.decode_args(), scale=1.0, return_lse=True)

    assert (out.shape, lse.shape) == ((0, 4, 32), (0, 4))


def test_a_plan_never_needs_more_programs_than_are_launched(device: str) -> None:
    """Batches of every mixture: each sequence has a piece, no more than the launch has room for, and as the model says."""
    from benchmarks import schedule_model
    from tests.kernels.plan_probe import BLOCK_N, pieces_of

    generator = torch.Generator().manual_seed(0)
    for case in range(1500 if device == "cuda" else 60):
        num_seqs = int(torch.randint(2, 40, (), generator=generator))
        longest = int(torch.tensor([1, 20, 3000, 200_000])[case % 4])
        lens = torch.randint(0, longest + 1, (num_seqs,), generator=generator)
        if case % 3 == 0:
            lens[:] = longest
        wave_pieces, num_pieces, min_tiles = ((33, 33, 4), (1, 1, 1), (66, 132, 4), (8, 24, 2))[
            case % 4 if case % 5 else 0
        ]

        pieces = pieces_of(lens.int().to(device), wave_pieces, num_pieces, min_tiles)

        tiles = [-(-length // BLOCK_N) for length in lens.tolist()]
        assert pieces[:num_seqs] == schedule_model.pieces(tiles, wave_pieces, num_pieces, min_tiles)
        assert min(pieces[:num_seqs]) >= 1
        assert pieces[num_seqs:] == [0] * (len(pieces) - num_seqs)
        assert sum(pieces) <= num_seqs + num_pieces or sum(pieces) <= wave_pieces <= num_seqs + num_pieces


BAD = {
    "q.dtype=torch.float64": lambda b: {"q": b.q.double()},
    "q has 2 dimensions": lambda b: {"q": b.q[0]},
    "k_cache.dtype=torch.float16": lambda b: {"k_cache": b.k_cache.half()},
    "v_cache.shape=(22, 4, 1, 32) differs": lambda b: {"v_cache": b.v_cache[:, :, :1]},
    "q has 3 query heads, not a multiple of the 2": lambda b: {"q": b.q[:, :3]},
    "head dim 16 differs from q head dim 32": lambda b: {"k_cache": b.k_cache[..., :16], "v_cache": b.v_cache[..., :16]},
    "head dim 8; supported: 16 to 256": lambda b: {key: getattr(b, key)[..., :8] for key in ("q", "k_cache", "v_cache")},
    "q.stride(-1)=2": lambda b: {"q": torch.stack([b.q, b.q], -1)[..., 0]},
    "block_table.dtype=torch.int64": lambda b: {"block_table": b.table.long()},
    "block_table has 1 rows for 2 sequences": lambda b: {"block_table": b.table[:1]},
    "context_lens has 1 entries": lambda b: {"context_lens": b.lens[:1]},
    "context_lens[1]=90 exceeds block_table: 20 blocks of 4": lambda b: {"context_lens": b.lens.new_tensor([1, 90])},
    "context_lens[0]=-1": lambda b: {"context_lens": b.lens.new_tensor([-1, 3])},
    "block_table[1, 17]=99 is needed by context_lens[1]=70 but the pool has blocks 0 to 21": lambda b: {
        "block_table": replaced(b.table)
    },
    "num_splits=0": lambda b: {"num_splits": 0},
    "window=0": lambda b: {"window": 0},
    "out.shape=(2, 4, 16)": lambda b: {"out": b.q[..., :16].contiguous()},
    "q=None; expected a tensor": lambda b: {"q": None},
    "k_cache.layout=torch.sparse_coo": lambda b: {"k_cache": b.k_cache.to_sparse()},
    "block_table=[[0]]; expected a tensor": lambda b: {"block_table": [[0]]},
    "num_splits=1.5: expected a whole number": lambda b: {"num_splits": 1.5},
    "num_splits=1000000; expected None or at least 1, at most 65536": lambda b: {"num_splits": 1000000},
    "window=2147483648; expected at most": lambda b: {"window": 2**31},
    "window=True": lambda b: {"window": True},
    "scale=nan; expected a number below 1e+30": lambda b: {"scale": float("nan")},
    "scale=inf": lambda b: {"scale": float("inf")},
    "scale='1'": lambda b: {"scale": "1"},
    "max_context_len=-1; expected at least 0": lambda b: {"max_context_len": -1},
    "max_context_len='9': expected a whole number": lambda b: {"max_context_len": "9"},
    "workspace=3; expected None or a Workspace": lambda b: {"workspace": 3},
    "several elements share one place": lambda b: {"out": b.q[:1].expand(2, -1, -1)},
}  # fmt: skip


def replaced(table: torch.Tensor) -> torch.Tensor:
    table = table.clone()
    table[1, 17] = 99
    return table


@pytest.mark.parametrize("message", BAD, ids=str)
def test_refuses(message: str, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every mistake is a ValueError that names the argument, its value and the limit, before any launch."""
    import sys

    import paged_impl.kernels.decode  # noqa: F401

    batch = plain.make_batch([1, 70], device=device)
    names = ("q", "k_cache", "v_cache", "block_table", "context_lens")
    arguments = dict(zip(names, batch.decode_args(), strict=True)) | BAD[message](batch)
    monkeypatch.setattr(
        sys.modules["paged_impl.kernels.decode"], "decode_kernel", None
    )  # a launch would be a TypeError

    with pytest.raises(ValueError) as caught:  # noqa: PT011  (the text is compared below)
        decode(**{"scale": 1.0, **arguments})

    assert message in str(caught.value)


def test_both_orders_of_lengths_give_the_same_rows(device: str) -> None:
    """The planned schedule, longest first and last."""
    for lens in itertools.permutations([120, 3, 31]):
        batch = plain.make_batch(list(lens), block_size=16, device=device)
        plain.assert_close(decode(*batch.decode_args(), scale=batch.scale), plain.answer(batch)[0])
