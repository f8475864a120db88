"""Batch preparation against the plain per-token reference, and what it refuses."""

from __future__ import annotations

import random

import pytest

from paged_impl.batch import BatchPreparer
from paged_impl.scheduler import ScheduledRow
from paged_ref.metadata import BatchRow, batch_metadata, padded_tables, slot_of


def random_step(draw: random.Random, block_size: int) -> tuple[list[BatchRow], list[ScheduledRow], BatchPreparer]:
    preparer = BatchPreparer(2, 64, block_size)
    blocks = list(range(500))
    draw.shuffle(blocks)
    plain, rows = [], []
    for number in range(draw.randint(1, 6)):
        tokens = [draw.randrange(100) for _ in range(draw.randint(1, 60))]
        table = [blocks.pop() for _ in range(-(-len(tokens) // block_size) + draw.randint(0, 1))]
        table = table[: -(-64 // block_size)]
        decode = draw.random() < 0.5
        stop = len(tokens) if decode else draw.randint(1, len(tokens))
        start = stop - 1 if decode else draw.randint(0, stop - 1)
        name = f"r{number}"
        preparer.add(name)
        preparer.add_tokens(name, tokens)
        preparer.set_table(name, table)
        plain.append(BatchRow(tokens, start, stop, table))
        rows.append(ScheduledRow(name, start, stop, stop == len(tokens)))
    return plain, rows, preparer


@pytest.mark.parametrize("block_size", [1, 3, 16])
def test_the_arrays_equal_the_reference(block_size: int) -> None:
    draw = random.Random(block_size)
    for _ in range(200):
        plain, rows, preparer = random_step(draw, block_size)
        padding = draw.randint(0, 2)
        expected = batch_metadata(plain, block_size, num_padding_tokens=padding)
        found = preparer.prepare(rows, padding)

        assert tuple(found.input_ids.tolist()) == expected.input_ids
        assert tuple(found.positions.tolist()) == expected.positions
        assert tuple(found.slot_mapping.tolist()) == expected.slot_mapping
        assert tuple(found.cu_seqlens_q.tolist()) == expected.cu_seqlens_q
        assert tuple(found.cu_seqlens_k.tolist()) == expected.cu_seqlens_k
        assert tuple(found.context_lens.tolist()) == expected.context_lens
        assert (found.max_seqlen_q, found.max_seqlen_k) == (expected.max_seqlen_q, expected.max_seqlen_k)
        assert tuple(map(tuple, found.block_tables.tolist())) == expected.block_tables


def test_a_lane_that_is_used_again_shows_nothing_of_its_past() -> None:
    preparer = BatchPreparer(1, 16, 2)
    preparer.add("A")
    preparer.add_tokens("A", range(12))
    preparer.set_table("A", [9, 8, 7, 6, 5, 4])
    preparer.remove("A")
    preparer.add("B")
    preparer.add_tokens("B", [1, 2])
    preparer.set_table("B", [3])
    preparer.add("C")  # a lane beyond the first: they double
    preparer.add_tokens("C", range(6))
    preparer.set_table("C", [0, 1, 2])
    batch = preparer.prepare([ScheduledRow("B", 1, 2, True), ScheduledRow("C", 5, 6, True)])

    assert batch.block_tables.tolist() == [[3, -1, -1], [0, 1, 2]]


def test_rows_that_lack_tokens_or_blocks_are_named() -> None:
    preparer = BatchPreparer(2, 16, 2)
    for name in "AB":
        preparer.add(name)
        preparer.add_tokens(name, [1, 2])
        preparer.set_table(name, [ord(name)])
    rows = [ScheduledRow("A", 2, 3, True), ScheduledRow("B", 1, 2, True)]

    assert preparer.behind(rows)[:2] == (rows[:1], [("A", 1)])
    preparer.add_sampled([("A", 7)])
    assert preparer.behind(rows)[:2] == ([], [("A", 1)])
    preparer.add_blocks(preparer.behind(rows), [[4]])
    assert preparer.behind(rows)[:2] == ([], [])
    assert preparer.prepare(rows).input_ids.tolist() == [7, 2]
    assert preparer.prepare(rows).slot_mapping.tolist() == [8, 2 * ord("B") + 1]


def test_many_tables_grow_at_once_each_by_its_own_blocks() -> None:
    preparer = BatchPreparer(3, 16, 2)
    tables = {"A": [5], "B": [9, 8], "C": []}
    for name, table in tables.items():
        preparer.add(name)
        preparer.add_tokens(name, range(8))
        preparer.set_table(name, table)
    rows = [ScheduledRow(name, 7, 8, True) for name in "CAB"]
    lacking = preparer.behind(rows)

    assert lacking.blocks == [("C", 0), ("A", 1), ("B", 2)]
    preparer.add_blocks(lacking, [[1, 2, 3, 4], [6, 7, 10], [11, 12]])
    assert preparer.prepare(rows).block_tables.tolist() == [[1, 2, 3, 4], [5, 6, 7, 10], [9, 8, 11, 12]]
    preparer.add_blocks(preparer.behind(rows), [])
    with pytest.raises(ValueError, match="a table of 9 blocks"):
        preparer.add_blocks(lacking, [[13], [14], [15, 16, 17, 18, 19, 20, 21]])
    assert [preparer.num_blocks(name) for name in "ABC"] == [4, 4, 4]  # nothing was added to the others either


def test_no_rows_give_empty_arrays() -> None:
    batch = BatchPreparer(1, 8, 2).prepare([])

    assert batch.cu_seqlens_q.tolist() == [0]
    assert (batch.max_seqlen_q, batch.max_seqlen_k, len(batch.slot_mapping)) == (0, 0, 0)


def test_mistakes_are_refused_before_anything_changes() -> None:
    preparer = BatchPreparer(1, 4, 2)
    preparer.add("A")
    preparer.add_tokens("A", [1, 2, 3])

    with pytest.raises(ValueError, match="has a lane already"):
        preparer.add("A")
    with pytest.raises(ValueError, match="5 tokens, the most is max_tokens=4"):
        preparer.add_tokens("A", [4, 5])
    with pytest.raises(ValueError, match="3 blocks"):
        preparer.set_table("A", [1, 2, 3])
    with pytest.raises(ValueError, match="block_size=0"):
        BatchPreparer(1, 4, 0)
    assert preparer.num_tokens("A") == 3
    assert preparer.num_blocks("A") == 0


def test_the_reference_refuses_ranges_and_tables_that_make_no_sense() -> None:
    with pytest.raises(ValueError, match=r"row \[2, 1\)"):
        BatchRow([1, 2], 2, 1, [0])
    with pytest.raises(ValueError, match=r"row \[0, 3\)"):
        BatchRow([1, 2], 0, 3, [0])
    with pytest.raises(ValueError, match="needs logical block 1"):
        slot_of(2, [5, -1], 2)
    with pytest.raises(ValueError, match="width=1"):
        padded_tables([[1, 2]], width=1)
