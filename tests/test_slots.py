"""Slots, both ways."""

import doctest
import random

import pytest

from paged_ref import slots


def test_the_examples_hold():
    outcome = doctest.testmod(slots)

    assert outcome.attempted >= 9
    assert outcome.failed == 0


def test_ranges_and_the_formula_agree_wherever_a_chunk_starts_and_ends():
    rng = random.Random(0)
    for block_size in (1, 2, 3, 4, 5, 16):
        table = rng.sample(range(100), 4)
        num_slots = 4 * block_size
        for start in range(num_slots + 1):
            for stop in range(start, num_slots + 1):
                by_token = slots.slots_by_token(start, stop, table, block_size)
                ranges = slots.slot_ranges(start, stop, table, block_size)

                assert slots.slots_by_block(start, stop, table, block_size) == by_token
                assert len(by_token) == len(set(by_token)) == stop - start
                assert {slot // block_size for slot in by_token} <= set(table)
                assert len(ranges) == len({position // block_size for position in range(start, stop)})


def test_the_slots_of_a_whole_table_are_all_slots_of_its_blocks():
    table = [6, 0, 3]

    found = slots.slots_by_block(0, 9, table, 3)

    assert found == [18, 19, 20, 0, 1, 2, 9, 10, 11]


@pytest.mark.parametrize("function", [slots.slots_by_token, slots.slots_by_block, slots.slot_ranges])
@pytest.mark.parametrize(
    ("start", "stop", "table", "message"),
    [
        (3, 9, [7, 2], "position 8 is in logical block 2, but the table has 2 blocks of 4"),
        (0, 2, [-1, 2], "position 0 is in logical block 0, which is released"),
        (-1, 2, [7, 2], "position -1 is negative"),
    ],
)
def test_a_position_without_a_slot_is_refused(function, start, stop, table, message):
    with pytest.raises(ValueError, match=message):
        function(start, stop, table, 4)


@pytest.mark.parametrize("block_size", [1, 2, 3, 4, 16])
def test_a_new_block_is_needed_exactly_when_the_number_of_blocks_grows(block_size):
    for num_tokens in range(1, 50):
        grows = -(-num_tokens // block_size) > -(-(num_tokens - 1) // block_size)

        assert slots.opens_block(num_tokens, block_size) == grows
