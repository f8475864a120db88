"""A program may load slots of those sequences alone whose rows of the block table it has read: no right kernel is accused, and
what reaches into a neighbour's slots is, with the line, the row and the reason.
"""

import inspect
import os
import random
from contextlib import nullcontext

import numpy as np
import pytest
import torch

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("kernels are compiled in this process, so there is no interpreter to guard", allow_module_level=True)

from triton.runtime.errors import InterpreterError

from properties.attention.guarding.guard import guarded
from properties.attention.guarding.ownership import Rights, owner_of
from properties.attention.guarding.tables import Program, tables_among
from tests.attention import ownership_kernels as kernels
from tests.attention.ownership_kernels import RIGHT, SIZE, Batch
from tests.attention.ownership_scene import batch_of, fault_of, owners_of, protected_by, sums_of


def _line_of(kernel: object, comment: str) -> int:
    lines, start = inspect.getsourcelines(kernel.fn)  # type: ignore[attr-defined]
    return start + next(i for i, line in enumerate(lines) if comment in line)


@pytest.mark.parametrize("design", RIGHT)
def test_no_right_kernel_is_accused(design: str) -> None:
    batch = batch_of()

    with guarded(protected_by(batch)) as watch:
        sums = RIGHT[design](batch)

    assert sums.tolist() == sums_of(batch)
    assert watch.num_checks > 4


def test_a_common_beginning_may_be_read_through_the_table_of_one_row() -> None:
    batch = batch_of((6, 7, 9), ((5, 2, 0, 4), (5, 7, 9, 2), (5, 1, 6, 3)))

    with guarded(protected_by(batch)):
        sums = kernels.shared_prefix(batch)

    assert sums.tolist() == sums_of(batch)


def test_a_common_beginning_that_is_before_the_window_of_that_row_may_be_read_too() -> None:
    """Row 0 may have given back block 5, which the two others still own."""
    batch = batch_of((9, 6, 7), ((5, 2, 0, 4), (5, 7, 9, 2), (5, 1, 6, 3)))

    with guarded(protected_by(batch, window=4)):
        sums = kernels.shared_prefix(batch)

    assert sums.tolist() == sums_of(batch)


def test_rows_that_are_the_same_memory_are_each_others() -> None:
    batch = batch_of((6, 6, 3), ((5, 2, 1, 4),) * 3)

    with guarded(protected_by(batch)):
        sums = kernels.by_rows(batch, batch.tables[:1].expand(3, -1))

    assert sums.tolist() == sums_of(batch)


def test_a_table_whose_rows_overlap_gives_every_row_that_an_entry_lies_in() -> None:
    """Windows over one list of pages: the second row begins with the second page."""
    pages = torch.tensor([5, 2, 1, 6, 3], dtype=torch.int32)
    batch = batch_of((8, 8, 8), ((5, 2, 1), (2, 1, 6), (1, 6, 3)))

    with guarded(protected_by(batch)):
        sums = kernels.by_rows(batch, pages.as_strided((3, 3), (1, 1)))

    assert sums.tolist() == sums_of(batch)


@pytest.mark.parametrize("form", ["plain", "64 bits", "view", "columns"])
def test_an_entry_behind_the_last_block_that_is_another_rows_block_is_reported(form: str) -> None:
    batch = batch_of()
    forms = {"plain": batch.tables, "64 bits": batch.tables.long(), "view": kernels.padded(batch.tables)}
    tables = forms.get(form, batch.tables)

    message = fault_of(batch, lambda: kernels.peeking(batch, [0, 1, 2, 0], [2, 0, 0, 0], tables=tables))

    assert (
        f"ownership_kernels.py:{_line_of(kernels.peeking_kernel, 'the foreign key')}: a load touches 1 element"
        in message
    )
    assert "slots of another sequence), the first in block 1, offset 0 (slot 4), which belongs to row 1" in message
    assert "program (0, 0, 0) has read the block table of row 0 (6 tokens in blocks [5, 2]) alone by then" in message
    assert "Entry 2 of the block table of row 0 names that block, behind its last one" in message
    assert "position < context length" in message


def test_an_entry_behind_the_last_column_of_a_view_is_no_licence() -> None:
    """The table is a view of a larger one, in whose next column another row's block stands; its last row is nobody's."""
    batch = batch_of()
    rows = torch.cat([batch.tables[:, :3], torch.zeros(1, 3, dtype=torch.int32)])
    larger = torch.cat([rows, torch.ones(5, 1, dtype=torch.int32)], 1)
    tables = larger[:, :3]

    message = fault_of(batch, lambda: kernels.peeking(batch, [0, 1, 2, 0], [3, 0, 0, 0], tables=tables))

    assert "which belongs to row 1; program (0, 0, 0) has read the block table of row 0" in message


def test_a_neighbours_slot_by_wrong_arithmetic_is_reported() -> None:
    batch = batch_of()

    message = fault_of(batch, lambda: kernels.peeking(batch, [0, 1, 2, 0], [0, 0, 0, 0], shift=1))

    assert "the first in block 6, offset 0 (slot 24), which belongs to row 1" in message
    assert "No entry that it has read names the block: the address is computed wrongly" in message


def test_the_next_program_has_not_read_what_the_last_one_has() -> None:
    """Program 0 reads block 5 of its own row, as entry 1 + 4; program 1 does the same, and the block is not its own."""
    batch = batch_of()

    message = fault_of(batch, lambda: kernels.peeking(batch, [0, 1, 2, 0], [2, 0, 0, 0], shift=4))

    assert "block 5, offset 0 (slot 20), which belongs to row 0 and row 2; program (1, 0, 0) has read" in message
    assert "the block table of row 1 (9 tokens in blocks [1, 6, 3]) alone by then" in message


def test_a_row_that_is_read_may_be_used() -> None:
    """The same load is right once the program has read the row of the owner."""
    batch = batch_of()

    with guarded(protected_by(batch)):
        sums = kernels.peeking(batch, [1, 0, 0, 1], [1, 1, 0, 2])

    assert sums.tolist() == sums_of(batch)


def test_a_tile_that_is_masked_out_afterwards_is_reported() -> None:
    batch = batch_of((8, 12), ((5, 2, 1, 1), (1, 6, 3, 3)))

    message = fault_of(batch, lambda: kernels.greedy(batch))

    assert f"ownership_kernels.py:{_line_of(kernels.greedy_kernel, 'the unmasked load')}: " in message
    assert "a load touches 8 elements of the key cache" in message
    assert "block 1, offset 0 (slot 4), which belongs to row 1" in message


def test_the_tail_of_a_block_that_another_row_fills_is_reported() -> None:
    """Both rows have block 5, of which row 0 has two tokens and row 1 all four."""
    batch = batch_of((6, 10), ((2, 5, 2, 2), (2, 5, 1, 1)))

    message = fault_of(batch, lambda: kernels.greedy(batch))

    assert "a load touches 2 elements" in message
    assert "block 5, offset 2 (slot 22), which belongs to row 1" in message
    assert "The block is its own, the offset in it is not" in message


@pytest.mark.parametrize(
    ("lengths", "window", "clue"),
    [
        (
            (6, 9),
            None,
            "slots that no sequence owns), the first in block 2, offset 2 (slot 10), behind the last token of row 0",
        ),
        (
            (8, 12),
            4,
            "block 5, offset 0 (slot 20), a block wholly before the window of row 0, which keeps its positions from 4",
        ),
        (
            (8, 12),
            None,
            "(slot 16), which entry 2 of the block table of row 0 (8 tokens in blocks [5, 2]) names, behind its last",
        ),
    ],
    ids=["tail", "before the window", "entry of nobody's block"],
)
def test_nobodys_slot_is_said_to_be_near_what(lengths: tuple[int, ...], window: int | None, clue: str) -> None:
    batch = batch_of(lengths, ((5, 2, 4, 4), (1, 6, 3, 0)))

    assert clue in fault_of(batch, lambda: kernels.greedy(batch), window)


@pytest.mark.parametrize(
    ("lengths", "faulty"), [((9, 9, 7, 0), False), ((8, 9, 8, 0), True)], ids=["another row's page", "nobody's slot"]
)
def test_without_a_known_table_a_program_is_held_to_what_any_row_owns(lengths: tuple[int, ...], faulty: bool) -> None:
    """A list of pages, of which row 0 reads one too many, the first one of row 1; or row 2 a slot too many."""
    batch = batch_of((8, 9, 7, 0))
    out, lens = torch.zeros(4), torch.tensor(lengths, dtype=torch.int32)

    with guarded(protected_by(batch)), pytest.raises(InterpreterError, match="no seq") if faulty else nullcontext():
        kernels.csr_kernel[(4,)](out, batch.keys, *batch.csr(), lens, batch.keys.stride(0), 8, SIZE)

    assert (float(out[0]) != sums_of(batch)[0]) is not faulty


SWAPPED = batch_of((3, 2), ((1, 0, 0, 0), (0, 0, 0, 0)))
"""Two rows of one block, each with the number of the other row: so many lists of numbers look like this table."""


@pytest.mark.parametrize("design", RIGHT)
def test_no_right_kernel_is_accused_where_small_numbers_are_blocks_by_chance(design: str) -> None:
    beside_longer = batch_of((7, 2, 3), ((0, 5, 0, 0), (2, 0, 0, 0), (1, 0, 0, 0)))
    like_lengths = batch_of((1, 2), ((1, 0, 0, 0), (2, 0, 0, 0)))
    each_behind_the_other = batch_of((3, 6), ((5, 7, 7, 7), (7, 1, 1, 1)))

    for batch in (SWAPPED, beside_longer, like_lengths, each_behind_the_other):
        with guarded(protected_by(batch)):
            sums = RIGHT[design](batch)
        assert sums.tolist() == sums_of(batch), batch.tables


def test_a_map_from_blocks_to_rows_is_no_table() -> None:
    """In the second batch it holds the table of each row in that row, but of the first one, which has no tokens."""
    in_order = batch_of((0, 2, 5), ((1, 2, 2, 1), (1, 2, 2, 2), (2, 0, 1, 1)))

    for batch in (SWAPPED, in_order):
        with guarded(protected_by(batch)):
            sums = kernels.by_work(batch, by_block=True)
        assert sums.tolist() == sums_of(batch)


@pytest.mark.parametrize(("rows", "width", "known"), [(9, 3, True), (10, 3, False), (10, 9, True)])
def test_a_tensor_with_a_row_for_each_block_is_a_table_if_it_is_wide(rows: int, width: int, known: bool) -> None:
    tables = torch.zeros(rows, width, dtype=torch.int32)
    tables[:2, :2] = torch.tensor([[5, 2], [1, 0]])
    owners = [owner_of("row 0", [*range(20, 24), 8]), owner_of("row 1", [4, 5])]

    assert len(tables_among([tables], Rights(10, SIZE, owners))) == known


def test_a_list_that_holds_the_blocks_of_the_one_sequence_that_has_some_is_no_table() -> None:
    """Of each block the next one and its row, in order of the blocks: row 1 is at its place with blocks 0 and 1."""
    links = torch.tensor([[1, 1], [0, 1], [0, 0]], dtype=torch.int32)
    owners = [owner_of("row 0", []), owner_of("row 1", range(8))]

    assert tables_among([links], Rights(10, SIZE, owners)) == ()
    owners[0] = owner_of("row 0", range(4, 6))
    assert len(tables_among([links], Rights(10, SIZE, owners))) == 1


def test_a_pool_of_rows_of_slots_is_no_table() -> None:
    """The slots of row 0 begin as the table of row 1 does, and those of a request that has ended as the table of row 0."""
    keys = torch.arange(1.0, 40 * SIZE + 1).reshape(40, SIZE)
    tables, lens = torch.tensor([[8], [32]], dtype=torch.int32), torch.tensor([3, 2], dtype=torch.int32)
    batch = Batch(keys, torch.zeros_like(keys), tables, lens)
    stale = torch.arange(8, 24, dtype=torch.int32)[None]

    with guarded(protected_by(batch)):
        sums = kernels.by_slot_rows(batch, stale)

    assert sums.tolist() == sums_of(batch)


def _drawn(seed: int) -> Batch:
    """Up to five rows, some with a common beginning or of length 0; behind the last blocks any ids of the pool. In half of
    the batches all blocks are full, and these ids their own.
    """
    rng, full = random.Random(seed), seed % 2 == 0
    blocks, tables, lengths = rng.sample(range(10), 10), [], []
    for _ in range(rng.randint(1, 5)):
        parent = rng.randrange(len(tables)) if tables and rng.random() < 0.4 else None
        prefix = [] if parent is None else tables[parent][: rng.randint(0, lengths[parent] // SIZE)]
        own = [blocks.pop() for _ in range(min(len(blocks), rng.randint(0, 3), 4 - len(prefix)))]
        held = len(prefix) + len(own)
        lengths.append(held * SIZE - (rng.randint(0, SIZE - 1) if own and not full else 0))
        ids = [*prefix, *own] if full and held else range(10)
        tables.append([*prefix, *own, *(rng.choice(ids) for _ in range(4 - held))])
    return batch_of(tuple(lengths), tuple(map(tuple, tables)))


@pytest.mark.parametrize("design", RIGHT)
def test_no_right_kernel_is_accused_in_any_batch(design: str) -> None:
    for seed in range(12):
        batch = _drawn(seed)
        with guarded(protected_by(batch)):
            sums = RIGHT[design](batch)
        assert sums.tolist() == sums_of(batch), seed


def test_a_tile_that_is_masked_out_afterwards_is_reported_in_every_batch_in_which_it_reaches_out() -> None:
    """Against sets of slots: those of the rows whose blocks a row of the table begins with, and what any row owns."""
    verdicts = []
    for seed in range(60):
        batch, owners = _drawn(seed), owners_of(_drawn(seed))
        slots = [set(owner.slots.tolist()) for owner in owners]
        needed = [-(-len(owner.slots) // SIZE) for owner in owners]
        tables, reaches_out = batch.tables.tolist(), False
        for i, row in enumerate(tables):
            like = [q for q, table in enumerate(tables) if needed[q] and table[: needed[q]] == row[: needed[q]]]
            mine = (
                set().union(*slots)
                if all(s == slots[0] for s in slots)
                else set().union(slots[i], *(slots[q] for q in like))
            )
            reaches_out |= not {block * SIZE + offset for block in row for offset in range(SIZE)} <= mine
        with guarded(protected_by(batch)), pytest.raises(InterpreterError) if reaches_out else nullcontext():
            kernels.greedy(batch)
        verdicts.append(reaches_out)
    assert 15 <= sum(verdicts) <= 45


def test_the_row_of_a_sequence_without_tokens_allows_nothing() -> None:
    batch = batch_of()

    message = fault_of(batch, lambda: kernels.peeking(batch, [0, 1, 2, 3], [0, 0, 0, 0]))

    assert (
        "belongs to row 1; program (3, 0, 0) has read the block table of row 3 (0 tokens in blocks []) alone" in message
    )


def test_a_launch_within_a_launch_does_not_make_the_tables_forgotten() -> None:
    batch, others = batch_of(), torch.zeros(4)

    def launch(*_: object, **__: object) -> None:
        kernels.told_kernel[(1,)](others, others, others, batch.lens, 0, False, 1, False, False)

    kernels.peeking_kernel.pre_run_hooks.append(launch)
    try:
        message = fault_of(batch, lambda: kernels.peeking(batch, [0, 1, 2, 0], [2, 0, 0, 0]))
    finally:
        kernels.peeking_kernel.pre_run_hooks.clear()

    assert "slots of another sequence), the first in block 1" in message


@pytest.mark.parametrize(("width", "rows"), [(4, [0]), (8, [0, 1])])
def test_of_a_load_of_several_entries_each_is_read(width: int, rows: list[int]) -> None:
    tables = torch.tensor([[5, 2, 4], [1, 6, 3]], dtype=torch.int32)
    owners = [owner_of("row 0", [*range(20, 24), 8]), owner_of("row 1", [4, 5])]
    (table,) = tables_among([tables, tables.float(), tables[0], tables[:1]], Rights(10, SIZE, owners))
    program = Program((0, 0, 0), (table,))
    last = table.start + 2 * 4

    program.reads(np.array([last]), width, last, last)

    assert sorted(program.owners) == rows


def test_an_entry_of_a_block_that_was_given_back_may_be_anything() -> None:
    tables = torch.tensor([[-1, 2], [7, 6]], dtype=torch.int32)
    rights = Rights(10, SIZE, [owner_of("row 0", [*range(20, 24), 8], first_kept=4), owner_of("row 1", [28, 29])])

    assert len(tables_among([tables], rights)) == 1
    assert tables_among([tables + 1], rights) == ()


def test_what_was_before_the_window_is_allowed_where_it_is_somebody_elses_alone() -> None:
    """Row 1 has the first two tokens of block 5."""
    rights = Rights(10, SIZE, [owner_of("row 0", [*range(20, 24), 8], first_kept=4), owner_of("row 1", [20, 21])])

    allowed = rights.allowed(np.array([5, 5, 5, 2, 2]), np.array([0, 1, 2, 0, 1]), frozenset([0]))

    assert allowed.tolist() == [True, True, False, True, False]
