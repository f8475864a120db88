"""The launch rules: what they may depend on, and that what the host allots is enough for what the device plans."""

import inspect
import itertools

import pytest
import torch

from paged_impl.kernels import decode, rules
from tests.kernels import sm90

BF16 = torch.bfloat16
H200, A100, L4 = (90, 132), (80, 108), (89, 58)


def decode_rule(
    num_seqs: int, heads: str, device: tuple[int, int] = H200, dtype: torch.dtype = BF16, block_size: int = 16
) -> rules.DecodeRule:
    num_heads, num_kv_heads, head_dim = (int(part) for part in heads.split("/"))
    return rules.decode_rule(num_seqs, num_heads, num_kv_heads, head_dim, block_size, dtype, *device)


@pytest.mark.parametrize("device", [H200, A100, L4], ids=str)
def test_every_shape_has_a_legal_tile(device: tuple[int, int]) -> None:
    """Triton's products need 16 rows and a depth of 16; tiles are powers of two; all query heads of a group are covered."""
    for group, head_dim, dtype in itertools.product(
        (1, 5, 16, 71), (16, 24, 64, 96, 128, 200, 256), (BF16, torch.float32)
    ):
        for num_seqs in (1, 40, 1000):
            rule = decode_rule(num_seqs, f"{2 * group}/2/{head_dim}", device, dtype)
            assert rule.block_m >= 16
            assert rule.block_n >= 16
            assert rule.block_n & (rule.block_n - 1) == rule.block_m & (rule.block_m - 1) == 0
        for query_len, capacity in itertools.product((1, 64, 4096), (512, 100_000)):
            prefill = rules.prefill_rule(group, head_dim, 16, query_len, capacity, dtype, device[0])
            assert prefill.block_m >= 16
            assert prefill.block_n >= 16
            assert not prefill.tma or device is H200


def test_the_rule_does_not_look_at_lengths() -> None:
    """Under CUDA graphs the host does not know them; and a row's bits may depend on its own length alone."""
    assert list(inspect.signature(rules.decode_rule).parameters) == [
        "num_seqs", "num_heads", "num_kv_heads", "head_dim", "block_size", "dtype", "capability", "num_sms",
    ]  # fmt: skip


def launch_of_decode(num_seqs: int, num_splits: int | None, device: tuple[int, int]) -> sm90.Launch:
    """What decode() would launch for float16 queries of 32 heads."""
    q, cache = torch.empty(num_seqs, 32, 128, dtype=torch.float16), torch.empty(64, 16, 8, 128, dtype=torch.float16)
    table, lens = torch.empty(num_seqs, 256, dtype=torch.int32), torch.empty(num_seqs, dtype=torch.int32)
    q, cache, table, lens = (tensor.to("meta") for tensor in (q, cache, table, lens))
    with sm90.recording(*device) as launches:
        decode(q, cache, cache, table, lens, scale=0.1, num_splits=num_splits, check_values=False)
    (launch,) = launches
    return launch


@pytest.mark.parametrize("device", [H200, A100, L4], ids=str)
@pytest.mark.parametrize("num_splits", [1, 7])
def test_with_a_number_of_splits_the_launch_does_not_depend_on_the_batch(
    num_splits: int, device: tuple[int, int]
) -> None:
    """Tile, warps and stages, hence the order of sums and the bits of a row, are those of the row alone."""
    alone = launch_of_decode(1, num_splits, device)
    for num_seqs in (2, 33, 64, 1000, 5000):
        together = launch_of_decode(num_seqs, num_splits, device)

        assert together.kwargs == alone.kwargs
        assert together.grid == (num_seqs * alone.grid[0],)


def test_without_one_it_does() -> None:
    """Else the test above could not fail."""
    assert launch_of_decode(1, None, H200).kwargs["BLOCK_N"] != launch_of_decode(64, None, H200).kwargs["BLOCK_N"]
    assert decode_rule(1, "32/8/128", dtype=torch.float16) != decode_rule(64, "32/8/128", dtype=torch.float16)


@pytest.mark.parametrize("pairs", [1, 2, 7, 8, 32, 71, 500])
@pytest.mark.parametrize("num_seqs", [2, 8, 33, 64, 1000])
def test_an_even_batch_fits_the_launch(num_seqs: int, pairs: int) -> None:
    """plan() cuts an even batch into at most wave_pieces; the launch has room for num_seqs + num_pieces."""
    for rule in (decode_rule(num_seqs, "32/8/128"), rules.DecodeRule(16, 64, 4, 7, wave=4, total=1)):
        wave_pieces, num_pieces = rules.pieces(rule, pairs, 132)

        assert wave_pieces <= num_seqs + num_pieces


@pytest.mark.parametrize(
    ("num_seqs", "capacity", "expected"),
    [
        (16, 1024, 1),
        (16, 100_000, None),
        (2, 1024, None),
        (5000, 100_000, 1),
        (1, 4096, 16),
        (1, 131_072, 16),
    ],
)
def test_splits_that_need_no_plan(num_seqs: int, capacity: int, expected: int | None) -> None:
    """No row can be long and they fill the device; more rows than a plan holds; one row."""
    assert rules.fixed_splits(decode_rule(num_seqs, "32/8/128"), num_seqs, 8, capacity, 132, 16) == expected


@pytest.mark.parametrize(
    ("heads", "expected"),
    [
        ("32/8/128", 16),
        ("28/4/128", 32),
        ("16/2/128", 64),
        ("8/1/128", 64),
        ("71/1/64", 32),
        ("32/32/128", 4),
        ("16/8/256", 32),
    ],
)
def test_a_single_sequence_is_cut_as_was_fastest(heads: str, expected: int) -> None:
    """The counts that were fastest at 32,768 tokens on an H200 (NOTES.md, decode 15)."""
    rule = decode_rule(1, heads)
    num_heads, num_kv_heads, head_dim = (int(part) for part in heads.split("/"))
    group = num_heads // num_kv_heads
    pairs = num_kv_heads * -(-group // rule.block_m)
    _, parts = rules.merge_tile(rule, group, head_dim, BF16)

    assert rules.fixed_splits(rule, 1, pairs, 32_768, 132, parts) == expected


def test_alignment_is_what_all_strides_share() -> None:
    assert [rules.alignment(strides) for strides in ([1024, 128, 64], [96, 48, 24], [15, 5, 5], [32, 48, 2])] == [
        16,
        8,
        1,
        2,
    ]


@pytest.mark.parametrize(
    ("group", "head_dim", "dtype", "expected"),
    [
        (4, 128, BF16, (4, 16)), (4, 128, torch.float32, (4, 8)), (7, 128, BF16, (8, 8)), (71, 64, BF16, (64, 2)),
        (71, 128, BF16, (16, 4)), (71, 256, BF16, (16, 4)), (1, 64, BF16, (1, 128)),
    ],
)  # fmt: skip
def test_what_is_merged_at_a_time_fits_the_registers(
    group: int, head_dim: int, dtype: torch.dtype, expected: tuple[int, int]
) -> None:
    """(rows, pieces): the compile gate holds that none of these spills."""
    rule = rules.decode_rule(4, group, 1, head_dim, 16, dtype, *H200)

    assert rules.merge_tile(rule, group, head_dim, dtype) == expected


@pytest.mark.parametrize(("block_size", "stride", "wide"), [(1, 2**40, False), (16, 2**27, False), (17, 2**27, True)])
def test_offsets_within_a_page_are_64_bits_wide_where_they_pass_32(block_size: int, stride: int, wide: bool) -> None:
    near = torch.empty(4, block_size, 2, 16, device="meta")
    far = torch.empty_strided((4, block_size, 2, 16), (2**40, stride, 16, 1), device="meta")

    assert rules.has_wide_pages(near, near) is False
    assert rules.has_wide_pages(near, far) is wide
    assert rules.has_wide_pages(far, near) is wide


def test_three_tiles_are_in_flight_where_waves_of_programs_are_full() -> None:
    """132 multiprocessors with four programs each: 528 rows are a wave, two are filled by 951 to 1056."""
    for num_seqs, block_size, stages in (
        (64, 16, 7), (66, 256, 7), (80, 256, 5), (128, 256, 7), (128, 16, 5), (128, 24, 5), (256, 256, 5)
    ):  # fmt: skip
        assert decode_rule(num_seqs, "32/8/128", block_size=block_size).num_stages == stages


def test_the_copy_engine_needs_whole_tiles_in_a_page() -> None:
    for block_size, expected in ((256, (128, True)), (64, (64, False)), (96, (64, False)), (16, (64, False))):
        rule = rules.prefill_rule(4, 128, block_size, 4096, 8192, BF16, 90)
        assert (rule.block_n, rule.tma) == expected


@pytest.mark.parametrize("group", [1, 2, 3, 4, 7, 8, 71])
def test_the_rows_of_a_program_are_heads_of_one_kv_head(group: int) -> None:
    """A program that took heads of two KV heads would read one of them for both."""
    for query_len, capacity, block_size, device in itertools.product(
        (1, 20, 128, 600, 8192), (600, 3000, 100_000), (16, 64, 256), (H200, A100)
    ):
        rule = rules.prefill_rule(group, 128, block_size, query_len, capacity, BF16, device[0])
        assert group % rule.pack == 0
        assert rule.pack <= rule.block_m


@pytest.mark.parametrize(
    ("query_len", "capacity", "block_size", "expected"),
    [
        (512, 512, 16, (128, 64, 4)), (512, 512, 256, (128, 64, 4)), (2048, 2048, 16, (128, 64, 4)),
        (4096, 4096, 16, (256, 64, 4)), (4096, 4096, 256, (128, 128, 1)), (128, 2048, 256, (128, 128, 1)),
        (128, 2048, 16, (256, 64, 4)), (20, 8192, 16, (128, 128, 4)), (1, 8192, 16, (16, 64, 4)),
    ],
)  # fmt: skip
def test_how_a_chunk_is_cut(query_len: int, capacity: int, block_size: int, expected: tuple[int, int, int]) -> None:
    """Few tiles, many gathered ones, many fetched ones: rows of a program, tokens of a tile, heads."""
    rule = rules.prefill_rule(4, 128, block_size, query_len, capacity, BF16, 90)

    assert (rule.block_m, rule.block_n, rule.pack) == expected
