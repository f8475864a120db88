"""Each classic bug of a Triton kernel is caught in the interpreter, by its clause, and the guard names the line."""

import inspect
import os

import pytest

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("these kernels are meant for the interpreter", allow_module_level=True)

from typing import Literal

import torch
from msgspec.structs import replace

from properties.attention.cases import CopyCase, ReadCase, Row, StoreCase
from properties.attention.judges import judge
from tests.attention.triton_faults import CopyByAddress, PassesOn, Peeks, SmallTriton, StoreInWords, peek_kernel

CASE = ReadCase(
    operation="decode",
    rows=(Row(key=0, context_len=13, table=(5, 1, 6, 3)), Row(key=1, context_len=1, table=(0,))),
    num_blocks=8,
    block_size=4,
    num_kv_heads=2,
    ratio=3,
    head_size=24,
)

# The second tile of 16 tokens asks for table entries 4 to 7 of the last row, which has five.
FIVE_BLOCKS = (Row(key=0, context_len=17, table=(5, 1, 6, 3, 0)),)


@pytest.mark.parametrize("num_splits", [1, 2, 5])
@pytest.mark.parametrize("variation", ["move", "high_stride", "repoison", "splits", "alone", "pad"])
def test_with_every_switch_on_the_kernels_are_right(variation: str, num_splits: int) -> None:
    verdict = judge(SmallTriton(), replace(CASE, variation=variation, num_splits=num_splits))

    assert verdict.findings == []


@pytest.mark.parametrize(
    ("target", "changes", "property_id", "clue"),
    [
        (SmallTriton(mask_values=False), {}, "READ-2", "must not touch (slots that no sequence owns)"),
        (SmallTriton(mask_table=False), {"rows": FIVE_BLOCKS}, "READ-2", "leaves every tensor of the launch"),
        (SmallTriton(wide_offsets=False), {"variation": "high_stride"}, "READ-3", "overflow"),
        (SmallTriton(empty_is_zero=False), {"num_splits": 5}, "READ-4", "Right in one partition"),
        (SmallTriton(partial_stride=0), {"num_splits": 2}, "READ-4", "Right in one partition"),
    ],
    ids=["values not masked", "table not masked", "32-bit offsets", "empty partition", "stride-0 partials"],
)
def test_each_bug_is_caught(target: SmallTriton, changes: dict[str, object], property_id: str, clue: str) -> None:
    findings = judge(target, replace(CASE, **changes)).findings

    assert [finding.property for finding in findings] == [property_id]
    assert clue in findings[0].message


def test_unmasked_values_are_caught_by_poison_where_a_target_may_load_them() -> None:
    target = SmallTriton(mask_values=False)
    target.capabilities = replace(target.capabilities, reads_only_owned=False)

    findings = judge(target, CASE).findings

    assert [finding.property for finding in findings] == ["READ-2"]
    assert "values of slots that no query of the sequence may read (here nan)" in findings[0].message


@pytest.mark.parametrize(("window", "broken"), [(None, []), (12, []), (10, []), (9, ["READ-2"]), (2, ["READ-2"])])
def test_a_block_before_the_window_is_not_the_sequences_any_more(window: int | None, broken: list[str]) -> None:
    """Of 13 tokens in blocks of 4 a window of 10 sees the last of the first block."""
    case = replace(CASE, rows=(Row(key=0, context_len=13, table=(5, 1, 6, 3)),), window=window, num_splits=None)

    findings = judge(Peeks(), case).findings

    assert [finding.property for finding in findings] == broken
    assert all("peek_kernel" in finding.message or "triton_faults.py:" in finding.message for finding in findings)


@pytest.mark.parametrize("operation", ["decode", "prefill"])
@pytest.mark.parametrize(
    ("target", "clue"),
    [
        (Peeks(behind=True), "Entry 1 of the block table of row 1 names that block, behind its last one"),
        (Peeks(shift=1), "No entry that it has read names the block"),
    ],
    ids=["an entry behind the last block", "the next block"],
)
def test_a_neighbours_slot_that_is_loaded_and_not_used_is_caught(
    target: Peeks, clue: str, operation: Literal["decode", "prefill"]
) -> None:
    """Whatever is in the pool; the answer is right, and the block is owned by another row of the batch."""
    case = replace(CASE, operation=operation, padding="foreign", num_splits=None)
    line = (
        inspect.getsource(peek_kernel.fn).split("# the peek")[0].count("\n") + inspect.getsourcelines(peek_kernel.fn)[1]
    )

    findings = judge(target, case).findings
    alone = judge(target, replace(case, rows=case.rows[:1], padding="zero")).findings

    assert [finding.property for finding in findings] == ["READ-2"]
    assert f"triton_faults.py:{line}: a load touches 1 element of the key cache" in findings[0].message
    assert (
        "slots of another sequence), the first in block 1, offset 0 (slot 4), which belongs to row 0"
        in findings[0].message
    )
    assert (
        "program (1, 0, 0) has read the block table of row 1 (1 token in blocks [0]) alone by then"
        in findings[0].message
    )
    assert clue in findings[0].message
    assert alone == []


@pytest.mark.parametrize("pool_form", ["separate", "interleaved"])
def test_large_pools_are_guarded_too(pool_form: Literal["separate", "interleaved"]) -> None:
    """800 thousand elements; what is loaded and not used is zero, so that no answer is wrong."""
    case = replace(CASE, num_blocks=2**12, rows=CASE.rows[:1], poison_v="zero", pool_form=pool_form)

    findings = judge(SmallTriton(mask_values=False), case).findings

    assert judge(SmallTriton(), case).findings == []
    assert [finding.property for finding in findings] == ["READ-2"]
    assert "of the value cache that this call must not touch (slots that no sequence owns)" in findings[0].message
    assert "the first in block 0, offset " in findings[0].message


def test_of_nobodys_slot_it_is_said_whose_table_was_read() -> None:
    """The lanes of row 0 that are not masked go where the masked entries of its table lead: to block 0, which is row 1's."""
    message = judge(SmallTriton(mask_values=False), replace(CASE, num_splits=None)).findings[0].message

    assert "the first in block 0, offset 1 (slot 1), behind the last token of row 1 (1 token in blocks [0])" in message
    assert "; program (0, 0, 0) has read the block table of row 0 (13 tokens in blocks [5, 1, 6, 3])" in message


def test_the_guard_names_the_line_of_the_kernel() -> None:
    message = judge(SmallTriton(mask_table=False), replace(CASE, rows=FIVE_BLOCKS)).findings[0].message

    assert "triton_faults.py:" in message


def test_a_store_kernel_that_needs_a_power_of_two_is_caught() -> None:
    """nano-vllm's store: heads x head size is one tl.arange, so 3 heads of 16 are refused."""
    right = judge(SmallTriton(), StoreCase(slots=(5, -1, 0), num_blocks=3, block_size=4, num_kv_heads=2))
    findings = judge(SmallTriton(), StoreCase(slots=(5, -1, 0), num_blocks=3, block_size=4, num_kv_heads=3)).findings

    assert right.findings == []
    assert [finding.property for finding in findings] == ["CRASH-1"]
    assert "power of 2" in findings[0].message


@pytest.mark.parametrize("word", [torch.uint8, torch.int16, torch.int64], ids=str)
def test_a_store_in_words_of_another_size_is_right_and_its_overrun_is_caught(word: torch.dtype) -> None:
    case = StoreCase(slots=(5, -1, 0), num_blocks=3, block_size=4, num_kv_heads=2)
    findings = judge(StoreInWords(word=word, excess=1), case).findings

    assert judge(StoreInWords(word=word), case).findings == []
    assert [finding.property for finding in findings] == ["STORE-1"]
    assert "put_words_kernel" in findings[0].message or "triton_faults.py" in findings[0].message


COPY = CopyCase(pairs=((5, 2), (0, 7)), num_layers=3, num_blocks=8, block_size=4, num_kv_heads=2)


def test_a_copy_that_is_told_addresses_is_right() -> None:
    verdict = judge(CopyByAddress(), COPY)

    assert verdict.findings == []
    assert verdict.judged["COW-2"] == 1


def test_a_copy_that_is_told_addresses_and_leaves_the_caches_is_caught() -> None:
    """The last block is written, so that what is too much lies behind the cache."""
    findings = judge(CopyByAddress(excess=4), replace(COPY, pairs=((0, 7),))).findings

    assert [finding.property for finding in findings] == ["CRASH-1"]
    assert (
        "a store leaves every tensor of the launch in 4 active lanes, the first 0 bytes behind" in findings[0].message
    )


@pytest.mark.parametrize("way", ["tuple", "reinterpreted", "descriptor"])
def test_kernels_that_get_their_tensors_in_other_ways_are_right(
    way: Literal["tuple", "reinterpreted", "descriptor"],
) -> None:
    assert judge(PassesOn(way=way), CASE).findings == []


@pytest.mark.parametrize("way", ["tuple", "reinterpreted", "descriptor"])
def test_an_overrun_of_such_a_kernel_is_caught(way: Literal["tuple", "reinterpreted", "descriptor"]) -> None:
    findings = judge(PassesOn(way=way, excess=4), CASE).findings

    assert [finding.property for finding in findings] == ["READ-2"]
    assert "a load leaves every tensor of the launch in 4 active lanes, the first 0 bytes behind" in findings[0].message


def test_an_overflow_in_masked_lanes_is_found_unless_the_target_says_what_its_tables_hold() -> None:
    """The whole row of the table is loaded, its padding too, and multiplied in 32 bits; the loads of tokens are masked."""
    target = SmallTriton(mask_table=False, wide_offsets=False)
    findings = judge(target, replace(CASE, padding="huge")).findings
    target.capabilities = replace(target.capabilities, padding=("minus_one", "beyond", "foreign", "zero"))

    assert [finding.property for finding in findings] == ["READ-2"]
    assert "what reaches the output: block-table entries behind the last block (here huge)" in findings[0].message
    assert "may leave 'huge' out of `padding` in its capabilities" in findings[0].message
    for padding in target.capabilities.padding:
        assert judge(target, replace(CASE, padding=padding)).findings == []
