"""Speed of the block manager. Run: pytest benchmarks/test_block_manager.py --benchmark-columns=min,median,ops

`rounds` and `iterations` are fixed where a round changes the state of the manager.
"""

from array import array

import pytest

from paged_impl.block_manager import BlockManager

PROMPT_TOKENS = 12_000  # the mean prompt of a recorded conversation workload


def test_life_of_a_short_sequence_on_a_tiny_pool(benchmark):
    """Admit, one append, free: what a fuzzer does all day."""
    manager = BlockManager(8, 4)

    def life():
        manager.allocate("a", [1, 2, 3, 4, 5, 6])
        manager.computed("a", 6)
        manager.append("a", [7])
        manager.computed("a", 7)
        manager.free("a")

    benchmark(life)


@pytest.mark.parametrize("block_size", [16, 512])
def test_admission_of_a_new_prompt(benchmark, block_size):
    """Hash, take, publish, and evict an earlier prompt for it."""
    num_blocks = 2 * PROMPT_TOKENS // block_size
    manager = BlockManager(num_blocks, block_size)
    numbers = iter(range(1_000_000))

    def new_prompt():
        first = next(numbers) * PROMPT_TOKENS
        return (array("q", range(first, first + PROMPT_TOKENS)),), {}

    def admit(prompt):
        manager.allocate("a", prompt)
        manager.computed("a", PROMPT_TOKENS)
        manager.free("a")

    benchmark.extra_info["tokens"] = PROMPT_TOKENS
    benchmark.pedantic(admit, setup=new_prompt, rounds=50)

    assert manager.num_evictable > num_blocks // 2


@pytest.mark.parametrize("block_size", [16, 512])
def test_admission_of_a_cached_prompt(benchmark, block_size):
    """Hash, verify, revive."""
    manager = BlockManager(2 * PROMPT_TOKENS // block_size, block_size)
    prompt = array("q", range(PROMPT_TOKENS))
    manager.allocate("a", prompt)
    manager.computed("a", PROMPT_TOKENS)
    manager.free("a")

    def admit():
        num_cached = manager.allocate("a", prompt)
        manager.free("a")
        return num_cached

    assert benchmark(admit) == (PROMPT_TOKENS - 1) // block_size * block_size


@pytest.mark.parametrize("num_blocks", [1_000, 1_000_000])
def test_the_size_of_the_pool_costs_nothing(benchmark, num_blocks):
    """Take, publish, release and revive with every other block cached and free: the same time in any pool."""
    manager = BlockManager(num_blocks, 1)
    manager.allocate("a", array("q", range(num_blocks)))
    manager.computed("a", num_blocks)
    manager.free("a")
    numbers = iter(range(-1, -1_000_000_000, -1))

    def turn():
        manager.allocate("a", [next(numbers), next(numbers), 0])
        manager.computed("a", 3)
        manager.free("a")

    benchmark(turn)


def test_decode_step_of_256_sequences(benchmark):
    """Append one token to each, and publish: 1 in 16 of them fills a block."""
    manager = BlockManager(60_000, 16)
    for name in range(256):
        manager.allocate(name, [name] * (1_000 + name))
        manager.computed(name, 1_000 + name)

    def step():
        for name in range(256):
            manager.append(name, [name])
            manager.computed(name, manager.num_tokens(name))

    benchmark.pedantic(step, rounds=200)


def test_fork_and_diverge(benchmark):
    """Fork a sequence of 64 blocks; the child writes into the shared tail, and ends."""
    manager = BlockManager(80, 16)
    manager.allocate("parent", list(range(1_020)))
    manager.computed("parent", 1_020)

    def fork():
        manager.fork("parent", "child")
        manager.append("child", [7])
        manager.free("child")
        return manager.take_copies()

    assert len(benchmark(fork)) == 1
