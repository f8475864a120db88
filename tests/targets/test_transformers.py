"""transformers' PagedAttentionCache: clean, and not because nothing was looked at."""

import pytest

from properties.blocks.operations import Admit, Allocate, Append, Computed, Fork, Free, Geometry, Preempt, Resume
from tests.targets.hunt import Hunt, adapter, breaches

MAKE = adapter("transformers")
GEOMETRY = Geometry(block_size=2, num_blocks=8)


@pytest.fixture(name="make")
def _make():
    return MAKE


@pytest.fixture(name="allocators")
def _allocators(make):
    from transformers.generation.continuous_batching.cache_allocators import cache_allocator

    return cache_allocator


def test_nothing_is_found(make):
    hunt = Hunt(make, num_seeds=1300)

    assert hunt.found == {}
    assert hunt.unreached() == ({}, [])


def test_an_equal_block_is_given_up(make):
    target = make()
    target.open(GEOMETRY)
    target.allocate("A", (0, 1, 2))
    target.allocate("B", (0, 1, 2))
    before = target.table("B")
    target.computed("A", 3)
    target.computed("B", 3)

    assert target.table("B") == [target.table("A")[0], before[1]]
    assert target.ref_count(target.table("A")[0]) == 2


def test_de_duplication_is_no_finding(make):
    trace = [
        Allocate("A", (0, 1, 2)),
        Allocate("B", (0, 1, 2)),
        Computed("A", 3),
        Computed("B", 3),
        Append("A", (3,)),
        Append("B", (3, 4)),
        Free("A"),
        Preempt("B"),
        Resume("B"),
    ]

    assert breaches(make, GEOMETRY, trace) == {}


def test_a_fork_copies_its_partial_block_at_once(make):
    target = make()
    target.open(GEOMETRY)
    target.admit("A", (0, 1, 2))
    target.fork("A", "B")

    (copy,) = target.copies()

    assert (copy.src, copy.dst) == (target.table("A")[1], target.table("B")[1])
    assert target.copies() == []
    assert target.table("A")[0] == target.table("B")[0]


def test_trash_blocks_are_never_handed_out(make):
    target = make()
    target.open(GEOMETRY)
    target.admit("A", range(12))

    assert sorted(target.table("A")) == [2, 3, 4, 5, 6, 7]
    assert target.free_blocks() == []


def test_a_hash_without_the_parent_is_found(make, allocators, monkeypatch):
    chained = allocators.compute_block_hash
    monkeypatch.setattr(allocators, "compute_block_hash", lambda parent, tokens: chained(None, tokens))

    assert len(Hunt(make, 300, until=["HASH-1"]).minimised("HASH-1")[1]) == 2


def test_a_de_duplication_with_another_block_is_found(make, allocators, monkeypatch):
    """Equal hashes are believed: here any complete block counts as equal."""
    register = allocators.BlockLedger.register_new_hash

    def first_come(self, block_id, block_hash):
        return (
            next(iter(self.hash_to_block.values()), None)
            if self.hash_to_block
            else register(self, block_id, block_hash)
        )

    monkeypatch.setattr(allocators.BlockLedger, "register_new_hash", first_come)

    found = breaches(make, GEOMETRY, [Admit("A", (0, 1, 2)), Admit("B", (3, 4, 5))])
    assert "sequence B, position 0" in found["CONTENT-1"]


def test_a_release_that_ignores_references_is_found(make, allocators, monkeypatch):
    def ignore(self, block_id, no_cache=False):
        self.shared_ref_counts.pop(block_id, None)
        return block_id not in self.block_to_hash

    monkeypatch.setattr(allocators.BlockLedger, "release", ignore)
    hunt = Hunt(make, 300, until=["REF-1"])

    assert len(hunt.minimised("REF-1")[1]) <= 4


def test_an_eviction_that_keeps_the_hash_is_found(make, allocators, monkeypatch):
    def keep(self):
        evicted = list(self.cached_blocks)
        self.cached_blocks.clear()
        return evicted

    monkeypatch.setattr(allocators.BlockLedger, "evict_cached_blocks", keep)

    assert "ALLOC-1" in Hunt(make, 300, until=["ALLOC-1"]).found


def test_a_fork_without_its_copy_is_found(make, monkeypatch):
    monkeypatch.setattr(make, "copies", lambda self: [])

    found = breaches(make, GEOMETRY, [Admit("A", (0, 1, 2)), Fork("A", "B")])

    assert "sequence B, position 2" in found["CONTENT-1"]


def test_an_offload_that_forgets_the_hash_table_is_found(make, allocators, monkeypatch):
    """`free_blocks(no_cache=True)` is driven by preemption: what it leaves findable is found."""
    release = allocators.BlockLedger.release

    def leave_the_hash(self, block_id, no_cache=False):
        block_hash = self.block_to_hash.get(block_id)
        gone = release(self, block_id, no_cache)
        if gone and block_hash is not None:
            self.hash_to_block[block_hash] = block_id
            self.block_to_hash[block_id] = block_hash
        return gone

    monkeypatch.setattr(allocators.BlockLedger, "release", leave_the_hash)
    found = breaches(make, GEOMETRY, [Admit("A", (0, 1, 2)), Preempt("A")])

    assert "ALLOC-1" in found
