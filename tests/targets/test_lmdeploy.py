"""lmdeploy's block manager and prefix trie: clean, and not because nothing was looked at."""

import pytest

from properties.blocks.operations import Admit, Append, Free, Geometry, SwapIn, SwapOut
from tests.targets.hunt import Hunt, adapter, breaches

MAKE = adapter("lmdeploy")
GEOMETRY = Geometry(block_size=2, num_blocks=4, num_host_blocks=4)


@pytest.fixture(name="make")
def _make():
    return MAKE


def test_nothing_is_found(make):
    hunt = Hunt(make, num_seeds=1300)
    rare, never = hunt.unreached()

    assert hunt.found == {}
    assert never == []
    assert set(rare) <= {"SWAP-1"}  # it swaps only what the trie does not hold: less than a block
    assert hunt.judged["SWAP-1"] > 50


def test_a_swap_goes_out_and_comes_back(make):
    target = make()
    target.open(GEOMETRY)
    target.admit("A", (0,))
    target.swap_out("A")
    (out,) = target.copies()
    target.swap_in("A")
    (back,) = target.copies()

    assert (out.src_space, out.dst_space) == ("device", "host")
    assert (back.src_space, back.src) == ("host", out.dst)
    assert back.dst == target.table("A")[0]
    assert breaches(make, GEOMETRY, [Admit("A", (0,)), SwapOut("A"), SwapIn("A"), Append("A", (1,))]) == {}


def test_a_swap_to_the_wrong_block_is_found(make, monkeypatch):
    manager = make().source.manager.DefaultBlockManager
    swap_in = manager.try_swap_in

    def shift(self, msg):
        done, pairs = swap_in(self, msg)
        return done, {(src + 1) % 4: dst for src, dst in pairs.items()}

    monkeypatch.setattr(manager, "try_swap_in", shift)

    assert "SWAP-1" in breaches(make, GEOMETRY, [Admit("A", (0,)), SwapOut("A"), SwapIn("A")])


def test_an_equal_block_of_the_trie_takes_the_place_of_the_own(make):
    target = make()
    target.open(GEOMETRY)
    target.admit("A", (0, 1))

    assert target.admit("B", (0, 1)) == 2
    assert target.table("B") == target.table("A")
    assert target.ref_count(target.table("A")[0]) == 2


def test_a_trie_that_forgets_the_path_is_found(make, monkeypatch):
    trie = make().source.trie.BlockTrie
    nodes = []
    attach = make().source.trie.Node.attach_to

    def remember(self, parent):
        nodes.append(self)
        attach(self, parent)

    def any_node(self, seq):
        root = self._get_or_create_root(seq.adapter_name)
        step, node = 0, root
        while step + self.block_size < seq.num_valid_ids:
            tokens = seq.history_cache[step : step + self.block_size].tolist()
            live = [n for n in nodes if n.is_attached() and n.token_ids.tolist() == tokens]
            if not live:
                break
            node, step = live[0], step + self.block_size
            self.allocator.add_ref_count(seq.array([node.block_id]), 1)
            seq.logical_blocks.append(seq.array([node.block_id]))
        seq.prefix_cache.trie_cursor = root if node.prefix_len != step else node
        seq.set_step(step)

    monkeypatch.setattr(make().source.trie.Node, "attach_to", remember)
    monkeypatch.setattr(trie, "match", any_node)

    assert "HASH-1" in Hunt(make, num_seeds=300, until=["HASH-1"]).found


def test_an_eviction_that_ignores_references_is_found(make, monkeypatch):
    source = make().source
    lifecycle = source.trie.KVBlockLifecycle
    evict = lifecycle.evict

    def take_more(self, max_num_blocks):
        done = evict(self, max_num_blocks)
        for leaf in [leaf for leaf in self.leaves if self._is_leaf_eviction_candidate(leaf)][:1]:
            self.allocator.free(source.array([leaf.block_id]))
        return done

    monkeypatch.setattr(lifecycle, "evict", take_more)

    assert Hunt(make, num_seeds=200, until=["REF-1"]).found.keys() & {"REF-1", "REF-2", "ALLOC-1"}


def test_its_answers_leave_no_trace(make):
    target = make()
    target.open(GEOMETRY)
    target.admit("A", (0, 1, 2))
    before = (target.free_blocks(), target.cached_blocks(), target.ref_count(0))

    assert target.lookup((0, 1, 3)) == 2
    assert (target.free_blocks(), target.cached_blocks(), target.ref_count(0)) == before
    assert breaches(make, GEOMETRY, [Admit("A", (0, 1, 2)), Free("A"), Admit("B", (0, 1, 2))]) == {}
