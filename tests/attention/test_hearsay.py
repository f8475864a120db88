"""Right kernels that learn of blocks in another way than by the row of a block table, beside such a row, are not accused; a
number that happens to be the id of a block is no excuse.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("kernels are compiled in this process, so there is no interpreter to guard", allow_module_level=True)

from torch import Tensor
from triton.runtime.errors import InterpreterError

from properties.attention.guarding import guard
from properties.attention.guarding.guard import guarded
from tests.attention import ownership_kernels as kernels
from tests.attention.ownership_kernels import RIGHT, SIZE, Batch
from tests.attention.ownership_scene import batch_of, fault_of, protected_by


@pytest.mark.parametrize("design", ["a list of pages beside the table", "a copy made by the first program"])
def test_what_was_told_in_another_way_is_looked_at(design: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """These right kernels would be accused if block tables were the only source."""
    batch = batch_of()
    monkeypatch.setattr(guard, "told_otherwise", lambda *_: np.zeros((), dtype=bool))

    with guarded(protected_by(batch)), pytest.raises(InterpreterError, match="slots of another sequence"):
        RIGHT[design](batch)


@dataclass(frozen=True)
class Told:
    """Words for row 1's three blocks. `factor`: what makes them offsets in elements."""

    words: Callable[[Batch, Tensor], Tensor]
    factor: int = 1
    pointers: bool = False
    pairs: bool = False
    by_address: bool = False


SPELLINGS = {
    "ids": Told(lambda _, blocks: blocks, SIZE),
    "ids of two of the blocks": Told(lambda _, blocks: blocks[1:], SIZE),
    "ids in pairs": Told(lambda _, blocks: torch.nn.functional.pad(blocks, (0, 1)).int(), SIZE, pairs=True),
    "ids at an address": Told(lambda _, blocks: blocks, SIZE, by_address=True),
    "first slots": Told(lambda _, blocks: blocks * SIZE),
    "offsets": Told(lambda batch, blocks: blocks * batch.keys.stride(0)),
    "slots": Told(lambda _, blocks: (blocks[:, None] * SIZE + torch.arange(SIZE)).flatten()[:9]),
    "addresses": Told(lambda batch, blocks: blocks * batch.keys.stride(0) * 4 + batch.keys.data_ptr(), pointers=True),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_blocks_may_be_told_in_other_words_beside_the_table(spelling: str) -> None:
    """A program that has read the table of row 0, and reads row 1 by a list; not by a number that happens to be right."""
    batch, told = batch_of(), SPELLINGS[spelling]
    words, out = told.words(batch, batch.tables[1, :3].long()), torch.zeros(1)
    count = 3 if told.pairs else len(words)

    def call(words: Tensor) -> None:
        flags = told.pointers, told.factor, told.pairs, told.by_address
        where = words.data_ptr() if told.by_address else words
        kernels.told_kernel[(1,)](out, batch.keys, batch.tables, where, count, *flags)

    with guarded(protected_by(batch)):
        call(words)
    places = words[:count] if not told.pointers else (words - batch.keys.data_ptr()) // 4
    assert out.item() == float(batch.keys.flatten()[places * told.factor].sum())
    if not told.by_address:  # what cannot be looked into may hold the rest
        with guarded(protected_by(batch)), pytest.raises(InterpreterError, match="slots of another sequence"):
            call(torch.full_like(words, int(words[1])))


def test_a_length_is_no_block() -> None:
    """Row 0 has 8 tokens, and block 8 is all that row 1 has."""
    batch = batch_of((8, 3), ((5, 2, 5, 5), (8, 8, 8, 8)))

    message = fault_of(batch, lambda: kernels.peeking(batch, [0, 1], [0, 0], shift=3))

    assert "block 8, offset 0 (slot 32), which belongs to row 1" in message
