"""The block manager against a shadow memory: one test for each kind of fault, then random walks."""

import gc
import itertools
import random
from collections import Counter

import pytest
import xxhash

from paged_impl.block_manager import BlockManager, Copy
from paged_impl.block_pool import BlockPool
from paged_impl.errors import OutOfBlocks, UnknownSequence
from paged_impl.prefix_cache import HashFn, PrefixCache, PrefixNode

HASHES: dict[str, HashFn | None] = {
    "xxh64": None,
    "2 bits": lambda data: bytes([xxhash.xxh64_digest(data)[0] & 3]),
    "constant": lambda data: b"",
}


class Shadow:
    """A manager, the tokens of its sequences, and what each slot of memory holds: the whole prefix up to it.

    Each operation performs the copies, writes what it computes, and then checks every invariant.
    """

    def __init__(self, num_blocks=8, block_size=4, **options):
        self.manager = BlockManager(num_blocks, block_size, **options)
        self.block_size = block_size
        self.window = options.get("window")
        self.num_sinks = options.get("num_sinks", 0)
        self.device = {}
        self.host = {}
        self.live = {}
        self.salts = {}
        self.seen = Counter()

    def admit(self, name, tokens, salt=None):
        num_cached = self.allocate(name, tokens, salt)
        self.compute(name)
        return num_cached

    def allocate(self, name, tokens, salt=None):
        manager = self.manager
        expected_hit = manager.lookup(tokens, salt)
        assert expected_hit == self.longest_findable(tokens, salt)
        if self.refused(
            manager.can_allocate(tokens, salt),
            manager.blocks_needed_allocate(tokens, salt),
            lambda: manager.allocate(name, tokens, salt),
        ):
            return None
        self.live[name], self.salts[name] = list(tokens), salt
        num_cached = manager.num_computed(name)
        assert num_cached == expected_hit
        assert num_cached % self.block_size == 0
        assert num_cached < len(tokens)
        self.seen["hit"] += num_cached > 0
        self.check()
        return num_cached

    def compute(self, name, upto=None):
        upto = len(self.live[name]) if upto is None else upto
        self.perform_copies()
        table = self.manager.table(name)
        for position in range(self.manager.num_computed(name), upto):
            block = table[position // self.block_size]
            assert self.manager.ref_count(block) == 1, "a slot that is written has one owner"
            self.device[block, position % self.block_size] = self.value(name, position)
        self.manager.computed(name, upto)
        self.check()

    def append(self, name, tokens, *, compute=True):
        manager = self.manager
        if self.refused(
            manager.can_append(name, len(tokens)),
            manager.blocks_needed_append(name, len(tokens)),
            lambda: manager.append(name, tokens),
        ):
            return False
        self.live[name] += tokens
        self.perform_copies()
        self.check()
        if compute:
            self.compute(name)
        return True

    def fork(self, parent, child):
        num_free = self.manager.num_free
        self.manager.fork(parent, child)
        assert self.manager.num_free == num_free
        self.live[child], self.salts[child] = list(self.live[parent]), self.salts[parent]
        self.check()

    def truncate(self, name, num_tokens):
        self.manager.truncate(name, num_tokens)
        del self.live[name][num_tokens:]
        self.check()

    def free(self, name):
        self.manager.free(name)
        del self.live[name], self.salts[name]
        self.check()

    def swap_out(self, name):
        before = self.state()
        if not self.manager.can_swap_out(name):
            with pytest.raises(OutOfBlocks, match="host blocks are needed"):
                self.manager.swap_out(name)
            assert self.state() == before
            self.seen["host refusal"] += 1
            return
        self.manager.swap_out(name)
        self.perform_copies()
        self.check()

    def swap_in(self, name):
        manager = self.manager
        self.refused(manager.can_swap_in(name), manager.blocks_needed_swap_in(name), lambda: manager.swap_in(name))
        self.perform_copies()
        self.check()

    def refused(self, predicted, needed, call):
        """Run a call that takes blocks; its prediction holds, and a refusal changes nothing."""
        before, num_free = self.state(), self.manager.num_free
        if predicted:
            call()
            assert num_free - self.manager.num_free == needed
            return False
        with pytest.raises(OutOfBlocks) as refusal:
            call()
        assert (refusal.value.needed, refusal.value.free) == (needed, num_free)
        assert needed > num_free
        assert self.state() == before
        self.seen["refusal"] += 1
        return True

    def state(self):
        manager = self.manager
        names = list(self.live)
        return (
            [
                (n, manager.table(n), manager.host_table(n), manager.num_tokens(n), manager.num_computed(n))
                for n in names
            ],
            [manager.ref_count(block) for block in range(manager.num_blocks)],
            manager.free_blocks(),
            manager.cached_blocks(),
            manager.num_free_host,
        )

    def perform_copies(self):
        memory = {"device": self.device, "host": self.host}
        for copy in self.manager.take_copies():
            assert isinstance(copy, Copy)
            self.seen[f"{copy.src_space} to {copy.dst_space}"] += 1
            for offset in range(self.block_size):
                value = memory[copy.src_space].get((copy.src_block, offset))
                memory[copy.dst_space][copy.dst_block, offset] = value

    def value(self, name, position):
        return self.salts[name], tuple(self.live[name][: position + 1])

    def readable(self, name):
        """The positions that its next query reads."""
        num_computed = self.manager.num_computed(name)
        start = 0 if self.window is None else max(0, num_computed - self.window + 1)
        return [p for p in range(num_computed) if p >= start or p < self.num_sinks]

    def runs(self):
        """Every findable block by the prefix that it holds."""
        found = {}
        for block in self.manager.cached_blocks():
            salt, tokens = self.device[block, self.block_size - 1]
            for offset in range(self.block_size):
                expected = salt, tokens[: len(tokens) - self.block_size + offset + 1]
                assert self.device[block, offset] == expected, "a findable block holds one whole run"
            found.setdefault((salt, tokens), []).append(block)
        return found

    def longest_findable(self, tokens, salt):
        runs, hit = self.runs(), 0
        while hit + self.block_size < len(tokens) and (salt, tuple(tokens[: hit + self.block_size])) in runs:
            hit += self.block_size
        return hit

    def check(self):
        manager = self.manager
        holders = Counter(b for name in self.live for b in set(manager.table(name)) - {-1})
        for name, tokens in self.live.items():
            table = manager.table(name)
            held = [block for block in table if block >= 0]
            assert len(held) == len(set(held)), "no block twice in one table"
            assert manager.num_tokens(name) == len(tokens)
            if manager.is_swapped_out(name):
                assert table == ()
                table, memory = manager.host_table(name), self.host
            else:
                assert len(table) == -(-len(tokens) // self.block_size)
                assert manager.host_table(name) == ()
                memory = self.device
            for position in self.readable(name):
                slot = table[position // self.block_size], position % self.block_size
                assert memory.get(slot) == self.value(name, position), f"{name} reads a foreign value at {position}"
        free, cached = manager.free_blocks(), manager.cached_blocks()
        assert [manager.ref_count(block) for block in range(manager.num_blocks)] == [
            holders[block] for block in range(manager.num_blocks)
        ]
        assert sorted([*free, *holders]) == list(range(manager.num_blocks)), "free and held cover the pool"
        assert len(cached) == len(set(cached))
        assert manager.num_free == len(free)
        assert len(set(free) & set(cached)) == manager.num_evictable
        host = [block for name in self.live for block in manager.host_table(name) if block >= 0]
        assert len(host) == len(set(host))
        for (salt, tokens), blocks in self.runs().items():
            assert len(blocks) == 1 or not set(blocks) & set(free), "a free block is the only copy"
            if len(tokens) > self.block_size:
                assert (salt, tokens[: -self.block_size]) in self.runs(), "a cached block has a cached parent"


# ---- prefix cache


def test_a_recycled_block_is_not_found_under_its_old_prefix():
    shadow = Shadow(num_blocks=2, block_size=1)
    for name, tokens in (("a", [1]), ("b", [0, 1])):
        shadow.admit(name, tokens)
        shadow.free(name)

    assert shadow.admit("c", [1, 9]) == 0


def test_equal_tokens_behind_another_prefix_are_no_hit():
    shadow = Shadow(block_size=2)
    shadow.admit("a", [1, 1, 2, 2, 0])

    assert shadow.admit("b", [2, 2, 1, 1, 0]) == 0


def test_a_hit_ends_at_the_first_miss():
    shadow = Shadow(num_blocks=6, block_size=2)
    shadow.admit("a", [1, 1, 2, 2, 3, 3, 4])
    shadow.free("a")
    shadow.admit("b", [9] * 6)  # takes the three blank blocks
    shadow.append("b", [9])  # evicts the leaf [3, 3]

    assert shadow.manager.lookup([1, 1, 2, 2, 3, 3, 4]) == 4
    assert shadow.manager.lookup([0, 0, 2, 2, 3, 3, 4]) == 0


def test_nothing_is_findable_before_it_is_computed():
    shadow = Shadow(block_size=2)
    prompt = [1, 2, 3, 4, 5]
    shadow.allocate("a", prompt)
    assert shadow.manager.lookup(prompt) == 0

    shadow.compute("a", 3)
    assert shadow.manager.lookup(prompt) == 2, "one block is full, the second is half computed"

    shadow.compute("a", 4)
    assert shadow.manager.lookup(prompt) == 4


def test_saying_less_than_before_changes_nothing():
    shadow = Shadow(block_size=2)
    shadow.admit("a", [1, 2, 3, 4, 5])
    before = shadow.state()
    shadow.manager.computed("a", 2)

    assert shadow.state() == before


def test_a_sequence_cancelled_before_its_prefill_leaves_nothing_findable():
    shadow = Shadow(block_size=2)
    shadow.allocate("a", [1, 2, 3, 4, 5])
    shadow.compute("a", 2)
    shadow.free("a")

    assert shadow.admit("b", [1, 2, 3, 4, 5]) == 2


@pytest.mark.parametrize(("num_tokens", "cached"), [(1, 0), (4, 0), (5, 4), (8, 4), (9, 8)])
def test_a_repeat_hits_every_full_block_but_leaves_one_token(num_tokens, cached):
    shadow = Shadow(block_size=4)
    prompt = list(range(num_tokens))
    shadow.admit("a", prompt)
    shadow.free("a")

    assert shadow.admit("b", prompt) == cached


def test_chunks_of_the_prefill_do_not_change_what_is_cached():
    whole, chunked = Shadow(num_blocks=16, block_size=3), Shadow(num_blocks=16, block_size=3)
    prompt = list(range(20))
    whole.admit("a", prompt)
    chunked.allocate("a", prompt)
    for upto in (1, 4, 5, 6, 13, 20):
        chunked.compute("a", upto)

    for num_tokens in range(1, 21):
        assert chunked.manager.lookup(prompt[:num_tokens]) == whole.manager.lookup(prompt[:num_tokens])


def test_generated_tokens_are_cached_with_the_prompt():
    shadow = Shadow(block_size=2)
    shadow.admit("a", [1])
    for token in (2, 3, 4, 5):
        shadow.append("a", [token])

    assert shadow.admit("b", [1, 2, 3, 4, 9]) == 4


def test_salts_separate_equal_tokens():
    shadow = Shadow(num_blocks=16, block_size=2)
    salts = [None, 1, "1", b"1", 2, ""]
    for salt in salts:
        assert shadow.admit(salt, [1, 2, 3], salt) == 0
    for salt in salts:
        shadow.free(salt)

        assert shadow.admit(salt, [1, 2, 3], salt) == 2


@pytest.mark.parametrize("hash_name", ["2 bits", "constant"])
def test_a_collision_loses_a_hit_and_never_gives_a_wrong_one(hash_name):
    shadow = Shadow(num_blocks=40, block_size=1, hash_fn=HASHES[hash_name])
    for first in range(6):
        for second in range(6):
            assert shadow.admit("a", [first, second, 0]) <= 2
            shadow.free("a")

    assert shadow.manager.cached_blocks(), "the first of the colliding prefixes stays"


def test_all_that_continues_a_prefix_goes_with_it():
    shadow = Shadow(num_blocks=8, block_size=1)
    shadow.admit("a", [1, 2])
    for last in (3, 4, 5):
        shadow.admit("b", [1, 2, last, 9])
        shadow.free("b")
    assert shadow.manager.num_evictable == 6
    shadow.truncate("a", 1)

    assert (shadow.manager.num_evictable, shadow.manager.cached_blocks()) == (
        0,
        [shadow.manager.table("a")[0]],
    )


def test_clearing_the_cache_outdates_live_sequences_too():
    shadow = Shadow(block_size=2)
    shadow.admit("old", [1, 2, 3])
    shadow.admit("other", [7, 7, 7])
    shadow.free("other")
    shadow.allocate("begun", [5, 6, 7])
    shadow.manager.clear_cache()
    shadow.append("old", [4, 5])
    shadow.compute("begun")

    assert shadow.manager.cached_blocks() == []
    assert shadow.manager.num_evictable == 0
    assert shadow.admit("new", [1, 2, 3, 4, 5]) == 0
    assert shadow.manager.lookup([1, 2, 3, 4, 5]) == 4, "what begins after it is cached again"


def test_without_a_prefix_cache_nothing_is_found():
    shadow = Shadow(block_size=2, enable_prefix_cache=False)
    shadow.admit("a", [1, 2, 3])

    assert shadow.admit("b", [1, 2, 3]) == 0
    assert shadow.manager.cached_blocks() == []


def test_what_the_caller_does_with_its_list_changes_nothing():
    shadow = Shadow(block_size=2)
    tokens = [1, 2, 3]
    shadow.admit("a", tokens)
    tokens[0] = 9

    assert shadow.admit("b", [1, 2, 3]) == 2


def test_copies_of_one_prefix_are_interchangeable():
    shadow = Shadow(num_blocks=9, block_size=2)
    for name in "abc":  # each misses, since none is computed yet
        shadow.allocate(name, [1, 2, 3])
    for name in "abc":
        shadow.compute(name)
    assert len(shadow.manager.cached_blocks()) == 3

    for name in "abc":
        shadow.free(name)
        assert shadow.manager.lookup([1, 2, 3]) == 2

    assert shadow.manager.num_evictable == 1, "a free copy too many is blank"


def test_a_dead_chain_is_not_kept_in_memory():
    gc.collect()
    gc.disable()  # nor does it wait for the collector: no cycle is left behind
    others = [thing for thing in gc.get_objects() if type(thing) is PrefixNode]  # what other tests left alive
    known = set(map(id, others))
    manager = BlockManager(4, 1)
    manager.allocate("a", [0])
    for token in range(1, 1000):
        manager.computed("a", manager.num_tokens("a"))
        manager.free("a")
        manager.allocate("a", [token, token + 1, token + 2])

    cache = PrefixCache(2)
    cache.publish(cache.publish(cache.root, b"parent", 0), b"child", 1)
    cache.forget(0)
    nodes = [thing for thing in gc.get_objects() if type(thing) is PrefixNode and thing.block >= 0]
    nodes = [node for node in nodes if id(node) not in known]
    gc.enable()

    assert len(nodes) <= 4
    assert not [node for node in nodes if not node.alive]


def test_siblings_leave_in_any_order():
    for order in itertools.permutations(range(1, 5)):
        cache = PrefixCache(8)
        parent = cache.publish(cache.root, b"parent", 0)
        for block in range(1, 5):
            cache.publish(parent, b"%d" % block, block)
        for i, block in enumerate(order[:-1]):
            assert cache.forget(block) == []
            assert sorted(cache.blocks()) == [0, *sorted(order[i + 1 :])]

        assert cache.forget(0) == [order[-1]]
        assert cache.blocks() == []


# ---- reference counts, refusals, eviction


def test_an_unknown_or_double_free_is_refused():
    shadow = Shadow()
    shadow.admit("a", [1])
    shadow.free("a")
    before = shadow.state()

    with pytest.raises(UnknownSequence, match="no sequence is called 'a'"):
        shadow.manager.free("a")
    assert shadow.state() == before
    assert isinstance(UnknownSequence("a"), KeyError)


@pytest.mark.parametrize(
    "use",
    [
        "table",
        "host_table",
        "num_tokens",
        "num_computed",
        "is_swapped_out",
        "swap_out",
        "swap_in",
        "can_swap_in",
    ],
)
def test_every_use_of_an_unknown_name_is_refused(use):
    with pytest.raises(UnknownSequence, match="never allocated"):
        getattr(BlockManager(2, 2), use)("nobody")


def test_the_whole_pool_serves_one_sequence_of_exactly_its_size():
    shadow = Shadow(num_blocks=3, block_size=4)
    shadow.admit("a", list(range(12)))

    assert shadow.manager.num_free == 0
    assert not shadow.append("a", [0])


def test_a_refusal_says_how_many_blocks_were_needed_free_and_evictable():
    shadow = Shadow(num_blocks=4, block_size=2)
    shadow.admit("a", [1, 2, 3])
    shadow.admit("b", [4])
    shadow.free("a")

    with pytest.raises(OutOfBlocks, match=r"4 device blocks are needed and 3 are free \(1 of them hold cached"):
        shadow.manager.allocate("c", [0] * 8)


def test_a_refused_prompt_with_hits_pins_nothing():
    shadow = Shadow(num_blocks=4, block_size=2)
    shadow.admit("a", [1, 2, 3, 4, 5])
    shadow.free("a")
    for _ in range(5):
        assert shadow.allocate("b", [1, 2, 3, 4, 5, 6, 7, 8, 9]) is None
    assert shadow.manager.num_free == 4

    assert shadow.admit("b", [1, 2, 3, 4, 5]) == 4


def test_hits_on_free_blocks_are_counted_and_never_evicted_by_their_own_call():
    shadow = Shadow(num_blocks=4, block_size=2)
    shadow.admit("a", [1, 2, 3, 4, 5])
    shadow.free("a")
    shadow.admit("b", [9, 9, 9])
    shadow.free("b")  # evictable, oldest first: [3, 4], [1, 2], [9, 9]

    assert shadow.admit("c", [1, 2, 3, 4, 5, 6, 7]) == 4
    assert shadow.manager.lookup([9, 9, 9]) == 0


def test_a_lookup_reserves_nothing_and_the_allocation_looks_again():
    shadow = Shadow(num_blocks=3, block_size=2)
    shadow.admit("a", [1, 2, 3, 4, 5])
    shadow.free("a")
    assert shadow.manager.lookup([1, 2, 3, 4, 5]) == 4
    shadow.admit("b", [9, 9, 9])  # evicts a block of the hit

    assert shadow.admit("c", [1, 2]) == 0
    shadow.free("c")
    shadow.free("b")
    assert shadow.admit("c", [1, 2, 3, 4, 5]) <= 2


def test_eviction_takes_the_least_recently_released_and_the_leaf_before_its_parent():
    shadow = Shadow(num_blocks=6, block_size=1)
    shadow.admit("a", [1, 2, 0])
    shadow.admit("b", [3, 4, 0])
    shadow.free("a")
    shadow.free("b")
    shadow.admit("a", [1, 9])  # a hit on [1] makes it the newest
    shadow.free("a")
    order = [shadow.device[block, 0][1] for block in shadow.manager.free_blocks()[-shadow.manager.num_evictable :]]

    assert order == [(1, 2), (3, 4, 0), (3, 4), (3,), (1, 9), (1,)]


def test_an_evicted_prefix_costs_only_its_own_leaf():
    shadow = Shadow(num_blocks=4, block_size=2)
    shadow.admit("a", [1, 2, 3, 4, 5, 6, 7])
    shadow.free("a")
    shadow.admit("b", [9] * 3)

    assert shadow.manager.lookup([1, 2, 3, 4, 5, 6, 7]) == 4


def test_blank_blocks_are_taken_before_cached_ones_the_last_released_first():
    shadow = Shadow(num_blocks=4, block_size=2)
    shadow.admit("a", [1, 2, 3])
    cached, blank = shadow.manager.table("a")
    untouched = shadow.manager.free_blocks()
    shadow.free("a")

    assert shadow.manager.free_blocks() == [blank, *untouched, cached]


def test_a_free_block_is_never_handed_out_twice():
    shadow = Shadow(num_blocks=6, block_size=1)
    for round_number in range(20):
        shadow.admit("a", [round_number, 1])
        shadow.admit("b", [round_number, 1, 2])
        shadow.free("b")
        shadow.free("a")

    assert sorted(shadow.manager.free_blocks()) == list(range(6))


def test_the_pool_refuses_a_release_that_nobody_owes():
    pool = BlockPool(2)
    with pytest.raises(AssertionError, match="block 1 has no holder"):
        pool.release(1)


# ---- fork and copy-on-write


def test_writers_of_a_shared_tail_part_with_one_copy():
    shadow = Shadow(block_size=4)
    shadow.admit("a", [1, 2, 3, 4, 5])
    shadow.fork("a", "b")
    assert shadow.manager.blocks_needed_append("a", 1) == 1

    shadow.append("b", [6])
    shadow.append("a", [7])

    assert shadow.seen["device to device"] == 1
    assert shadow.manager.table("a")[0] == shadow.manager.table("b")[0]
    assert shadow.manager.table("a")[1] != shadow.manager.table("b")[1]


def test_a_full_tail_is_shared_without_a_copy():
    shadow = Shadow(block_size=4)
    shadow.admit("a", [1, 2, 3, 4])
    shadow.fork("a", "b")
    shadow.append("b", [6])
    shadow.append("a", [7])

    assert shadow.seen["device to device"] == 0


def test_the_copy_is_refused_when_no_block_is_left_for_it():
    shadow = Shadow(num_blocks=2, block_size=4)
    shadow.admit("a", [1, 2, 3, 4, 5])
    shadow.fork("a", "b")

    assert not shadow.append("b", [6])
    shadow.free("a")
    assert shadow.append("b", [6])


def test_a_half_full_tail_is_never_found_by_prefix():
    shadow = Shadow(block_size=4)
    shadow.admit("a", [1, 2, 3, 4, 5, 6])

    assert shadow.admit("b", [1, 2, 3, 4, 5, 6]) == 4
    shadow.append("a", [7])
    shadow.append("b", [8])


def test_a_fork_waits_for_what_is_not_computed():
    shadow = Shadow()
    shadow.allocate("a", [1, 2, 3])
    before = shadow.state()

    with pytest.raises(ValueError, match="'a' has 3 tokens to compute"):
        shadow.manager.fork("a", "b")
    assert shadow.state() == before


def test_many_children_diverge():
    shadow = Shadow(num_blocks=16, block_size=3)
    shadow.admit(0, [1, 2])
    for child in range(1, 8):
        shadow.fork(0, child)
    for name in range(8):
        assert shadow.append(name, [10 + name])
    for name in range(8):
        shadow.free(name)

    assert shadow.manager.num_free == 16


def test_both_sides_of_a_fork_publish_what_they_append():
    shadow = Shadow(block_size=2)
    shadow.admit("a", [1, 2])
    shadow.fork("a", "b")
    shadow.append("a", [3, 4])
    shadow.append("b", [5, 6])

    assert shadow.manager.lookup([1, 2, 3, 4, 0]) == 4
    assert shadow.manager.lookup([1, 2, 5, 6, 0]) == 4


# ---- truncation


def test_after_a_truncation_the_old_run_is_not_found_under_new_tokens():
    shadow = Shadow(block_size=4)
    shadow.admit("a", [1, 2, 3, 99])
    shadow.truncate("a", 3)
    shadow.append("a", [4])

    assert shadow.manager.lookup([1, 2, 3, 99, 0]) == 0
    assert shadow.manager.lookup([1, 2, 3, 4, 0]) == 4


def test_what_a_truncation_drops_is_not_found_even_before_it_is_rewritten():
    shadow = Shadow(num_blocks=4, block_size=2)
    shadow.admit("a", [1, 2, 3, 4, 5, 6])
    shadow.truncate("a", 3)

    assert shadow.manager.lookup([1, 2, 3, 4, 5, 6, 7]) == 2
    assert shadow.manager.num_free == 2


def test_a_truncated_sequence_copies_a_block_that_another_shares_by_prefix():
    shadow = Shadow(block_size=2)
    shadow.admit("a", [1, 2, 3, 4])
    assert shadow.admit("b", [1, 2, 3, 4, 5]) == 4
    shadow.truncate("a", 3)
    shadow.append("a", [9])

    assert shadow.seen["device to device"] == 1
    assert shadow.manager.lookup([1, 2, 3, 4, 5]) == 4


def test_a_cut_block_whose_other_holder_left_is_unpublished_when_it_is_rewritten():
    shadow = Shadow(block_size=2)
    shadow.admit("a", [1, 2, 3, 4])
    shadow.admit("b", [1, 2, 3, 4, 5])
    shadow.truncate("a", 3)
    shadow.free("b")
    assert shadow.manager.lookup([1, 2, 3, 4, 0]) == 4, "its content is still whole"
    shadow.append("a", [9])

    assert shadow.manager.lookup([1, 2, 3, 4, 0]) == 2
    assert shadow.manager.lookup([1, 2, 3, 9, 0]) == 4


def test_a_sequence_may_be_truncated_to_nothing_and_go_on():
    shadow = Shadow(block_size=2)
    shadow.admit("a", [1, 2, 3])
    shadow.truncate("a", 0)
    assert shadow.manager.table("a") == ()
    shadow.append("a", [4, 5, 6])

    assert shadow.manager.lookup([4, 5, 6]) == 2


@pytest.mark.parametrize("num_tokens", [-1, 4])
def test_a_truncation_outside_the_sequence_is_refused(num_tokens):
    shadow = Shadow()
    shadow.admit("a", [1, 2, 3])

    with pytest.raises(ValueError, match=rf"num_tokens={num_tokens} is outside 0\.\.3"):
        shadow.manager.truncate("a", num_tokens)


# ---- sliding window


def test_the_window_releases_what_no_later_query_reads_and_keeps_the_sinks():
    shadow = Shadow(num_blocks=12, block_size=2, window=4, num_sinks=1)
    shadow.admit("a", list(range(20)))

    table = shadow.manager.table("a")  # the next query, at 20, reads 17 to 20 and the sink in block 0
    assert [i for i, block in enumerate(table) if block >= 0] == [0, 8, 9]


def test_the_window_follows_settled_tokens_only():
    shadow = Shadow(num_blocks=8, block_size=1, window=3)
    shadow.admit("a", [0, 1, 2, 3])
    shadow.append("a", [90, 91, 92])  # drafts: computed, then rejected
    shadow.truncate("a", 4)

    assert [p for p, block in enumerate(shadow.manager.table("a")) if block >= 0] == [2, 3]
    shadow.append("a", [4])


def test_a_fork_keeps_the_right_to_roll_drafts_back():
    shadow = Shadow(num_blocks=8, block_size=1, window=3)
    shadow.admit("a", [0, 1, 2, 3])
    shadow.append("a", [90, 91, 92])
    shadow.fork("a", "b")
    shadow.manager.computed("b", 7)
    shadow.truncate("b", 4)
    shadow.truncate("a", 4)


def test_the_window_moves_on_with_every_append():
    shadow = Shadow(num_blocks=5, block_size=1, window=2)
    shadow.admit("a", [0])
    for token in range(20):
        assert shadow.append("a", [token])

    assert sum(block >= 0 for block in shadow.manager.table("a")) <= 3


def test_sinks_do_not_stand_in_the_way_of_a_truncation():
    shadow = Shadow(num_blocks=8, block_size=1, window=4, num_sinks=6)
    shadow.admit("a", [0, 1, 2, 3])
    shadow.truncate("a", 1)
    shadow.append("a", [9])


def test_the_window_ignores_what_is_scheduled_but_not_computed():
    shadow = Shadow(num_blocks=12, block_size=1, window=2)
    shadow.allocate("a", list(range(10)))
    shadow.compute("a", 3)

    assert [p for p, block in enumerate(shadow.manager.table("a")) if block < 0] == [0, 1]


def test_a_truncation_behind_the_window_is_refused():
    shadow = Shadow(num_blocks=12, block_size=1, window=2)
    shadow.admit("a", list(range(10)))
    before = shadow.state()

    with pytest.raises(ValueError, match="the window has passed"):
        shadow.manager.truncate("a", 5)
    assert shadow.state() == before


def test_forks_beyond_the_window_are_released_once_each():
    shadow = Shadow(num_blocks=12, block_size=2, window=2)
    shadow.admit("a", [1, 2, 3, 4, 5])
    shadow.fork("a", "b")
    for token in range(6):
        shadow.append("a", [token])
        shadow.append("b", [-token])
    shadow.free("a")
    shadow.free("b")

    assert shadow.manager.num_free == 12


def test_a_repeat_hits_all_that_a_window_released():
    shadow = Shadow(num_blocks=8, block_size=2, window=2)
    shadow.admit("a", list(range(9)))
    shadow.free("a")

    assert shadow.admit("b", list(range(9))) == 8


def test_after_a_windowed_sequence_ends_its_leaf_is_evicted_before_its_parents():
    shadow = Shadow(num_blocks=5, block_size=2, window=2)
    shadow.admit("a", list(range(9)))
    shadow.free("a")
    shadow.admit("b", [50, 51, 52])

    assert shadow.manager.lookup(list(range(9))) == 6


# ---- swapping


def test_what_comes_back_is_what_went_out_though_its_blocks_were_reused():
    shadow = Shadow(num_blocks=3, block_size=2, num_host_blocks=3)
    shadow.admit("a", [1, 2, 3, 4, 5])
    shadow.swap_out("a")
    assert shadow.manager.is_swapped_out("a")
    shadow.admit("b", [7] * 6)
    shadow.free("b")
    shadow.swap_in("a")
    shadow.append("a", [6])

    assert shadow.manager.num_free_host == 3
    assert shadow.manager.lookup([1, 2, 3, 4, 5, 6, 0]) == 6


def test_copies_of_one_step_keep_their_order():
    shadow = Shadow(num_blocks=2, block_size=2, num_host_blocks=4)
    shadow.admit("a", [1, 2, 3, 4])
    manager = shadow.manager
    manager.swap_out("a")
    manager.allocate("b", [5, 6, 7])
    manager.swap_out("b")  # nothing is computed: nothing to save
    manager.swap_in("a")
    shadow.live["b"], shadow.salts["b"] = [5, 6, 7], None
    shadow.perform_copies()
    shadow.check()

    assert (shadow.seen["device to host"], shadow.seen["host to device"]) == (2, 2)


def test_a_host_block_is_read_before_it_is_reused():
    shadow = Shadow(num_blocks=4, block_size=2, num_host_blocks=2)
    shadow.admit("a", [1, 2, 3, 4])
    shadow.admit("b", [5, 6, 7, 8])
    shadow.swap_out("a")
    shadow.manager.swap_in("a")
    shadow.manager.swap_out("b")  # in the same step, into the host blocks that "a" has left
    shadow.perform_copies()
    shadow.check()


def test_a_fork_after_a_swap_publishes_each_block_once():
    shadow = Shadow(num_blocks=8, block_size=2, num_host_blocks=2)
    shadow.admit("a", [1, 2, 3, 4])
    shadow.swap_out("a")
    shadow.swap_in("a")
    shadow.fork("a", "b")
    shadow.append("a", [5])
    shadow.append("b", [6])

    assert shadow.manager.lookup([1, 2, 3, 4, 0]) == 4


def test_a_windowed_sequence_goes_on_publishing_after_a_swap():
    shadow = Shadow(num_blocks=12, block_size=2, num_host_blocks=4, window=2)
    shadow.admit("a", [1, 2, 3, 4, 5, 6])
    shadow.swap_out("a")
    shadow.swap_in("a")
    shadow.append("a", [7, 8])

    assert shadow.manager.lookup([1, 2, 3, 4, 5, 6, 7, 8, 0]) == 8


def test_a_sequence_may_end_in_host_memory():
    shadow = Shadow(num_host_blocks=2)
    shadow.admit("a", [1, 2, 3, 4, 5])
    shadow.swap_out("a")
    assert shadow.manager.num_free_host == 0
    shadow.free("a")

    assert shadow.manager.num_free_host == 2


def test_swapping_keeps_what_is_published_findable_until_it_is_evicted():
    shadow = Shadow(num_blocks=4, block_size=2, num_host_blocks=2)
    shadow.admit("a", [1, 2, 3])
    shadow.swap_out("a")
    assert shadow.admit("b", [1, 2, 3]) == 2
    shadow.swap_in("a")
    shadow.append("a", [4])
    shadow.append("b", [5])

    assert shadow.manager.lookup([1, 2, 3, 4, 0]) == 4


@pytest.mark.parametrize(
    "use",
    [
        lambda m: m.append("a", [1]),
        lambda m: m.computed("a", 1),
        lambda m: m.fork("a", "b"),
        lambda m: m.truncate("a", 1),
        lambda m: m.swap_out("a"),
        lambda m: m.can_append("a", 1),
    ],
)
def test_a_sequence_in_host_memory_must_come_back_first(use):
    shadow = Shadow(num_host_blocks=2)
    shadow.admit("a", [1, 2, 3])
    with pytest.raises(ValueError, match="'a' is not swapped out"):
        shadow.manager.swap_in("a")
    shadow.swap_out("a")
    before = shadow.state()

    with pytest.raises(ValueError, match="'a' is swapped out: call swap_in first"):
        use(shadow.manager)
    assert shadow.state() == before


# ---- bad input


def test_bytes_are_tokens_too():
    shadow = Shadow(block_size=4)
    shadow.admit("a", list(b"a prompt in bytes"))

    assert shadow.manager.lookup(b"a prompt in bytes") == 16


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_blocks": 0}, "num_blocks=0 is too small: give at least 1"),
        ({"block_size": -1}, "block_size=-1 is too small"),
        ({"num_host_blocks": -1}, "num_host_blocks=-1 is too small"),
        ({"window": 0}, "window=0 is too small"),
        ({"num_sinks": 1}, "num_sinks=1 has no effect without a window"),
        ({"hash_fn": hash}, "hash_fn returns 0: it must turn bytes into bytes"),
    ],
)
def test_a_manager_refuses_impossible_sizes(options, message):
    with pytest.raises(ValueError, match=message):
        BlockManager(**{"num_blocks": 2, "block_size": 2, **options})


def test_bad_arguments_change_nothing():
    shadow = Shadow()
    shadow.admit("a", [1, 2, 3])
    before = shadow.state()
    manager = shadow.manager
    for message, call in {
        "'a' is live": lambda: manager.allocate("a", [1]),
        "'b' has 0 tokens": lambda: manager.allocate("b", []),
        "'a' is live: free": lambda: manager.fork("a", "a"),
        "nothing to append to 'a'": lambda: manager.append("a", []),
        "num_tokens=-1 is too small": lambda: manager.can_append("a", -1),
        "upto=4 is outside 0..3": lambda: manager.computed("a", 4),
        "tokens must be integers of 64 bits": lambda: manager.allocate("b", [2**63]),
        "tokens must be integers": lambda: manager.append("a", [0.5]),
        "block 8 is outside 0..7": lambda: manager.ref_count(8),
    }.items():
        with pytest.raises(ValueError, match=message.replace(".", r"\.")):
            call()
        assert shadow.state() == before


# ---- random walks


STEPS = [
    "admit",
    "admit",
    "part",
    "append",
    "append",
    "free",
    "fork",
    "cut",
    "out",
    "in",
    "compute",
    "compute",
]


def walk(shadow, rng, num_steps):
    """Random operations; two tokens and prompts made from earlier ones, so that prefixes meet."""
    prompts, num_host_blocks = [[0]], shadow.manager.num_free_host
    for step in range(num_steps):
        resident = [name for name in shadow.live if not shadow.manager.is_swapped_out(name)]
        swapped = [name for name in shadow.live if name not in resident]
        name = rng.choice(resident) if resident else None
        match rng.choice(STEPS):
            case "admit" | "part" as how:
                prompt = rng.choice(prompts)[: rng.randrange(1, 20)] or [1]
                prompt = prompt + [rng.randrange(2) for _ in range(rng.randrange(0, 5))]
                prompts = [*prompts[-4:], prompt]
                salt = rng.choice([None, None, "x"])
                if shadow.allocate(step, prompt, salt) is not None and how == "admit":
                    shadow.compute(step)
            case "append" if name is not None:
                compute = rng.random() < 0.8
                shadow.append(name, [rng.randrange(2) for _ in range(rng.randrange(1, 4))], compute=compute)
                prompts.append(shadow.live[name][:])
            case "free" if shadow.live:
                shadow.free(rng.choice(list(shadow.live)))
            case "fork" if name is not None and shadow.manager.num_computed(name) == len(shadow.live[name]):
                shadow.fork(name, step)
            case "cut" if name is not None:
                num_tokens = max(0, len(shadow.live[name]) - rng.randrange(0, 6))
                try:
                    shadow.truncate(name, num_tokens)
                except ValueError:
                    assert shadow.window is not None
            case "out" if name is not None:
                shadow.swap_out(name)
            case "in" if swapped:
                shadow.swap_in(rng.choice(swapped))
            case "compute" if name is not None:
                left = len(shadow.live[name]) - shadow.manager.num_computed(name)
                shadow.compute(name, shadow.manager.num_computed(name) + rng.randrange(left + 1))
    for name in list(shadow.live):
        shadow.free(name)
    assert shadow.manager.num_free == shadow.manager.num_blocks
    assert shadow.manager.num_free_host == num_host_blocks


@pytest.mark.parametrize("window", [None, 1, 3, 6])
@pytest.mark.parametrize("hash_name", list(HASHES))
def test_random_walks_keep_every_invariant(window, hash_name):
    seen = Counter()
    for seed in range(40):
        rng = random.Random(f"{seed} {window} {hash_name}")
        shadow = Shadow(
            num_blocks=rng.randrange(2, 16),
            block_size=rng.choice([1, 2, 3, 4]),
            num_host_blocks=rng.randrange(0, 6),
            hash_fn=HASHES[hash_name],
            window=window,
            num_sinks=rng.randrange(0, 4) if window else 0,
        )
        walk(shadow, rng, 60)
        seen += shadow.seen

    wanted = {"hit", "refusal", "host refusal", "device to device", "device to host", "host to device"}
    assert wanted <= set(seen), f"the walks never reached {wanted - set(seen)}"


def test_new_blocks_are_the_ends_of_tables_and_copies_are_counted():
    manager = BlockManager(8, 2)
    manager.allocate("a", [1, 2, 3])
    manager.computed("a", 3)
    manager.fork("a", "b")
    manager.append("b", [4, 5])

    assert manager.new_blocks([("b", 1), ("a", 2), ("b", 0)]) == [
        list(manager.table("b")[1:]),
        [],
        list(manager.table("b")),
    ]
    assert manager.num_copies == 1
    manager.take_copies()
    assert manager.num_copies == 0
    with pytest.raises(UnknownSequence):
        manager.new_blocks([("a", 0), ("nobody", 0)])
