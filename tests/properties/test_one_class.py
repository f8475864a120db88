"""An adapter that is the block manager itself: what it raises behind a breach is no reason to keep the breach back."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from properties import chapter
from properties.blocks.operations import Admit, Append, Fork, Geometry
from properties.blocks.spec import SPEC
from properties.contract import CLAUSES, AdapterError
from properties.judging import Results, judge_target
from properties.ledger import Ledger
from properties.machine import PROFILES, Failing, Tally, search
from properties.minimise import breaks, minimise
from properties.protocol import Capabilities, Copy, slots_from_table
from properties.targets import Target, load
from properties.targets.ours import OurBlocks


class Full(Exception):
    pass


class Sound:
    """Reference counts, and copies on write."""

    level = "blocks"
    capabilities = Capabilities(refusals=(Full,), prefix_cache=False)

    def open(self, config: Geometry) -> None:
        self.block_size, self.free_list = config.block_size, list(range(config.num_blocks))
        self.counts, self.made = [0] * config.num_blocks, list[Copy]()
        self.tables, self.lengths = dict[str, list[int]](), dict[str, int]()

    def _take(self) -> int:
        block = self.free_list.pop(0)
        self.counts[block] = 1
        return block

    def _drop(self, block: int) -> None:
        self.counts[block] -= 1
        if not self.counts[block]:
            self.free_list.append(block)

    def admit(self, name: str, tokens: Sequence[int], salt: str | None = None) -> int:
        self.tables[name], self.lengths[name] = [], 0
        try:
            self.append(name, tokens)
        except Full:
            del self.tables[name], self.lengths[name]
            raise
        return 0

    def append(self, name: str, tokens: Sequence[int]) -> None:
        table, length = self.tables[name], self.lengths[name]
        fresh = -(-(length + len(tokens)) // self.block_size) - len(table)
        shared = length % self.block_size > 0 and self.counts[table[-1]] > 1
        if fresh + shared > len(self.free_list):
            raise Full
        if shared:
            old, table[-1] = table[-1], self._take()
            self._drop(old)
            self.made.append(Copy(old, table[-1]))
        table += [self._take() for _ in range(fresh)]
        self.lengths[name] = length + len(tokens)

    def free(self, name: str) -> None:
        for block in self.tables.pop(name):
            self._drop(block)
        del self.lengths[name]

    def slots(self, name: str) -> Sequence[int]:
        return slots_from_table(self.tables[name], self.block_size)

    def fork(self, parent: str, child: str) -> None:
        self.tables[child], self.lengths[child] = self._table_for_a_child(parent), self.lengths[parent]
        for block in self.tables[child]:
            self.counts[block] += 1

    def _table_for_a_child(self, parent: str) -> list[int]:
        return list(self.tables[parent])

    def copies(self) -> list[Copy]:
        made, self.made = self.made, []
        return made

    def ref_count(self, block: int) -> int:
        return self.counts[block]

    def free_blocks(self) -> list[int]:
        return list(self.free_list)


class TellsSlotsOfItsTokensAlone(Sound):
    """Where others tell all slots of the last block."""

    def slots(self, name: str) -> Sequence[int]:
        return super().slots(name)[: self.lengths[name]]


class OursToo(OurBlocks):
    def slots(self, name: str) -> Sequence[int]:
        return super().slots(name)[: self.manager.num_tokens(name)]


@pytest.mark.parametrize("cls", [TellsSlotsOfItsTokensAlone, OursToo])
def test_slots_behind_the_last_token_need_not_be_told(cls: type) -> None:
    """That a copy was due for a shared last block was seen by the slot behind the last token alone: ALLOC-6, COW-4."""
    results = judged(cls)

    assert (results.adapter, results.findings) == (None, {})
    assert results.tally.marks["a copy on write"] > 0


class SharesTheTable(Sound):
    """Parent and child have one list; in the end blocks are taken from an empty pool, in the adapter's own code."""

    def _table_for_a_child(self, parent: str) -> list[int]:
        return self.tables[parent]


def judged(cls: type) -> Results:
    return judge_target(Target("mine", "blocks", cls), PROFILES["pagefault-dev"], 40, Ledger(), [])


def test_the_sound_one_is_clean() -> None:
    results = judged(Sound)

    assert (results.adapter, results.findings) == (None, {})


def test_what_was_broken_first_is_the_finding() -> None:
    results = judged(SharesTheTable)

    assert results.adapter is None
    assert {"COW-1", "REF-1", "ALLOC-1"} <= results.findings.keys()
    for id in ("COW-1", "REF-1"):
        case = results.findings[id].case
        assert len(case.operations) == 3
        assert "changed with those of" in case.message
        assert "and are the same: do both have one table?" in case.message


def test_a_step_that_only_blocks_of_one_token_need_is_left_out() -> None:
    """Which of two smallest cases was found depended on where the search began: four steps, or three and a wider block."""
    four = (Admit("A", (0,)), Fork("A", "B"), Append("A", (0,)), Append("B", (0,)))
    fails = breaks(SPEC, SharesTheTable, "COW-1")
    assert fails(Geometry(block_size=1, num_blocks=2), four)

    geometry, operations = minimise(SPEC, (Geometry(block_size=1, num_blocks=2), four), fails)

    assert geometry.block_size == 2
    assert operations == (four[0], four[1], four[3])


class LosesBlocks(Sound):
    """One with each sequence that is freed; the second time it fails."""

    def open(self, config: Geometry) -> None:
        super().open(config)
        self.lost: list[int] = []

    def free(self, name: str) -> None:
        block = self.tables[name][0]
        super().free(name)
        if self.lost:
            self.lost.remove(block - 1_000)
        if block in self.free_list:
            self.free_list.remove(block)
            self.lost.append(block)


def test_a_search_that_tolerates_the_breach_goes_on_to_the_next_trace() -> None:
    tally = search(SPEC, LosesBlocks, PROFILES["pagefault-dev"], tolerate=CLAUSES)

    assert tally.adapter is None
    assert tally.outcomes["crashed"] > 0, "no trace came to the exception"
    assert "ALLOC-1" in tally.failing


class RaisesAtOnce(Sound):
    def append(self, name: str, tokens: Sequence[int]) -> None:
        self.tables[name][len(self.tables)] = 0
        super().append(name, tokens)


def test_what_nothing_was_broken_before_is_the_adapter() -> None:
    results = judged(RaisesAtOnce)

    assert results.adapter is not None
    assert "raised IndexError" in results.adapter.problem


def test_the_verdict_names_what_other_traces_broke() -> None:
    failing = {"REF-1": Failing(None, (), "", 3), "COW-1": Failing(None, (), "", 3)}
    tally = Tally(failing=failing, adapter=AdapterError("append raised IndexError", "mend it"))
    contract: Any = SimpleNamespace(judge=lambda name: Results(load("ours"), tally=tally), told_by={})

    with pytest.raises(pytest.fail.Exception, match=r"append raised IndexError.*\. Broken before that: REF-1, COW-1$"):
        chapter.check(contract, "REF-1", "ours")
