"""mini-vllm 0.1.1: its four faults, each under a clause of its own, at their shortest."""

import pytest

from properties.blocks.operations import Admit, Append, Free, Geometry
from tests.targets.hunt import Hunt, adapter, breaches

FAULTS = {
    "HASH-1": 2,  # a block's hash is that of its own tokens, without the prefix
    "ALLOC-2": 1,  # two equal blocks of one prompt are one block
    "ALLOC-6": 3,  # no room, although cached blocks could be evicted
    "ALLOC-4": 3,  # can_allocate_request says yes, then allocate_request fails
}


@pytest.fixture(name="make")
def _make():
    return adapter("mini-vllm")


@pytest.fixture(name="hunt", scope="module")
def _hunt():
    return Hunt(adapter("mini-vllm"), num_seeds=300, until=FAULTS)


@pytest.mark.parametrize("clause", FAULTS)
def test_each_fault_is_found_and_minimised(hunt, clause):
    _, operations, message = hunt.minimised(clause)

    assert len(operations) == FAULTS[clause], operations
    assert message


def test_a_prefix_hit_ignores_the_prefix(make):
    trace = [Admit("A", (3, 2, 0, 2, 1, 0)), Admit("B", (0, 2, 2))]

    found = breaches(make, Geometry(block_size=2, num_blocks=8), trace)

    assert "holds the value written by sequence A for its position 2" in found["HASH-1"]


def test_one_block_twice_in_a_table(make):
    found = breaches(make, Geometry(block_size=2, num_blocks=8), [Admit("A", (1, 0, 1, 0))])

    assert "twice, for positions 0 and 2" in found["ALLOC-2"]


def test_append_does_not_evict(make):
    trace = [Admit("A", (2, 3)), Admit("B", (3, 0)), Free("A"), Append("B", (0,))]

    found = breaches(make, Geometry(block_size=2, num_blocks=2), trace)

    assert set(found) == {"ALLOC-6"}
    assert "append(B, 1 token to 2) was refused" in found["ALLOC-6"]


def test_the_answer_was_yes(make):
    trace = [Admit("A", (3, 1, 0, 2, 0)), Free("A"), Admit("B", (0, 2, 2, 3, 1))]

    found = breaches(make, Geometry(block_size=2, num_blocks=3), trace)

    assert "the can-do answer for admit(B, 5 tokens) was yes" in found["ALLOC-4"]


def test_without_these_faults_nothing_is_found(make, monkeypatch):
    """The alarms come from the four places alone: mended there, the manager is clean."""
    manager_class = make().source.BlockSpaceManager

    class Mended(manager_class):
        def _compute_block_hash(self, token_ids):
            self.behind = (*self.behind, *token_ids)
            return hash(self.behind)

        def can_allocate_request(self, token_ids):
            """Hits that nobody holds are not also evictable."""
            size, self.behind = self.allocator.block_size, ()
            hits = []
            for start in range(0, len(token_ids) - size + 1, size):
                block = self.cached_blocks.get(self._compute_block_hash(token_ids[start : start + size]))
                if block is None:
                    break
                hits.append(block)
            self.behind = ()
            unheld = sum(block.ref_count == 0 for block in self.cached_blocks.values())
            room = self.allocator.get_num_free_blocks() + unheld - sum(block.ref_count == 0 for block in hits)
            return -(-len(token_ids) // size) - len(hits) <= room

        def allocate_request(self, seq_id, token_ids):
            """As before, but hits are held before anything is evicted, and a partial block evicts as well."""
            size, self.behind = self.allocator.block_size, ()
            blocks, fresh = [], []
            for start in range(0, len(token_ids), size):
                chunk = token_ids[start : start + size]
                key = self._compute_block_hash(chunk) if len(chunk) == size else None
                block = None if fresh or key is None else self.cached_blocks.get(key)
                if block is None:
                    fresh.append(key)
                else:
                    block.ref_count += 1
                    blocks.append(block)
            for key in fresh:
                self._make_room()
                blocks.append(self.allocator.allocate())
                if key is not None and key not in self.cached_blocks:
                    self.cached_blocks[key] = blocks[-1]
            self.block_tables[seq_id] = blocks
            self.behind = ()

        def append_slot(self, seq_id, current_num_tokens):
            if current_num_tokens % self.allocator.block_size == 0:
                self._make_room()
            super().append_slot(seq_id, current_num_tokens)

        def _make_room(self):
            if not self.allocator.get_num_free_blocks():
                self._evict_one_block()

        behind = ()

    monkeypatch.setattr(make().source, "BlockSpaceManager", Mended)
    hunt = Hunt(make, num_seeds=1200)

    assert hunt.found == {}
    assert hunt.unreached() == ({}, [])
