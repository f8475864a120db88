"""tokasaurus 0.0.4: clean, and not because nothing was looked at."""

import pytest

from properties.blocks.operations import Admit, Append, Free, Geometry
from tests.targets.hunt import Hunt, adapter, breaches


@pytest.fixture(name="make")
def _make():
    return adapter("tokasaurus")


def test_nothing_is_found(make):
    hunt = Hunt(make, num_seeds=1300)

    assert hunt.found == {}
    assert hunt.unreached() == ({}, [])


def test_its_own_sanity_checks_agree(make):
    """The adapter drives it legally: its own invariants hold after every kind of call."""
    target = make()
    target.open(Geometry(block_size=2, num_blocks=6))
    target.admit("A", (0, 1, 2, 3, 4))
    target.admit("B", (0, 1, 2, 3))
    target.append("A", (5, 6, 7))
    target.free("A")
    target.admit("C", (0, 1, 2, 3, 4, 5, 6))
    target.allocator.sanity_checks({"B", "C"})
    target.free("C")
    target.free("B")
    target.allocator.sanity_checks(set())


def test_what_was_decoded_is_hit_after_its_sequence_ended(make):
    target = make()
    target.open(Geometry(block_size=2, num_blocks=6))
    target.admit("A", (0, 1))
    target.append("A", (2, 3))

    assert target.lookup((0, 1, 2, 3, 4)) == 2
    target.free("A")
    assert target.lookup((0, 1, 2, 3, 4)) == 4


def test_eviction_does_not_depend_on_the_clock(make):
    """Two runs of one case evict the same blocks, however fast the machine is."""
    trace = [Admit(name, (index, 0, 0)) for index, name in enumerate("ABCD")] + [Free(name) for name in "ABCD"]

    def tables():
        target = make()
        target.open(Geometry(block_size=1, num_blocks=12))
        for operation in trace:
            arguments = (operation.tokens,) if isinstance(operation, Admit) else ()
            getattr(target, operation.kind)(operation.name, *arguments)
        target.admit("E", range(9, 16))
        return target.table("E")

    assert tables() == tables()


@pytest.fixture(name="allocator")
def _allocator(make, monkeypatch):
    """Plants a fault: a method of the allocator is replaced for the test."""
    source = make().source

    def plant(method, replacement):
        original = getattr(source.BlockAllocator, method)
        monkeypatch.setattr(source.BlockAllocator, method, lambda self, *a, **k: replacement(original, self, *a, **k))

    return plant


def test_a_lookup_without_the_prefix_is_found(make, allocator):
    def any_block_with_these_tokens(original, self, input_ids):
        size = self.page_size
        by_tokens = {block.contents: block for block in self.all_blocks if block.parent is not None}
        found = []
        for start in range(0, len(input_ids) - size, size):
            block = by_tokens.get(tuple(input_ids[start : start + size]))
            if block is None or block in found:
                break
            found.append(block)
        return found

    allocator("prefix_match", any_block_with_these_tokens)
    hunt = Hunt(make, num_seeds=300, until=["HASH-1"])

    assert len(hunt.minimised("HASH-1")[1]) <= 2


def test_a_forgotten_publication_of_appended_tokens_is_seen(make):
    found = breaches(
        make,
        Geometry(block_size=2, num_blocks=3),
        [Admit("A", (0, 1)), Append("A", (2,)), Free("A"), Admit("B", (0, 1, 2))],
    )

    assert found == {}


def test_a_free_that_ignores_other_holders_is_found(make, allocator):
    def take_it_from_everybody(original, self, seq_id, kv_indices, token_ids):
        for block in kv_indices:
            self.all_blocks[block].seq_ids.intersection_update({seq_id})
        original(self, seq_id, kv_indices, token_ids)

    allocator("free_and_update", take_it_from_everybody)
    hunt = Hunt(make, num_seeds=300, until=["REF-1"])

    assert len(hunt.minimised("REF-1")[1]) == 3  # two that share a block, one that ends


def test_a_free_that_keeps_blocks_is_found(make, allocator):
    def lose_the_tail(original, self, seq_id, kv_indices, token_ids):
        original(self, seq_id, kv_indices, token_ids)
        if self.floating_blocks and len(token_ids) % self.page_size:
            self.floating_blocks.pop()

    allocator("free_and_update", lose_the_tail)
    hunt = Hunt(make, num_seeds=100, until=["ALLOC-1"])

    assert len(hunt.minimised("ALLOC-1")[1]) == 2
