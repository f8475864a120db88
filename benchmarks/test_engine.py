"""Speed of batch preparation and of a recorded workload. Run: pytest benchmarks/test_engine.py --benchmark-only"""

from __future__ import annotations

import random
from typing import Any

import pytest

from paged_impl.batch import BatchPreparer
from paged_impl.block_manager import BlockManager
from paged_impl.engine import Engine
from paged_impl.scheduler import Limits, ScheduledRow

NUM_SEQUENCES, NUM_TOKENS, BLOCK_SIZE = 256, 8192, 16
MOST_US = 200
"""Microseconds that preparing one decode step may take, on one core."""


def filled() -> tuple[BatchPreparer, list[ScheduledRow]]:
    """256 sequences of about 8K tokens, their blocks scattered, one decode row each."""
    preparer = BatchPreparer(NUM_SEQUENCES, NUM_TOKENS + 4096, BLOCK_SIZE)
    draw = random.Random(0)
    blocks = list(range(NUM_SEQUENCES * (NUM_TOKENS // BLOCK_SIZE + 2)))
    draw.shuffle(blocks)
    rows = []
    for number in range(NUM_SEQUENCES):
        name, length = f"r{number}", NUM_TOKENS - number % BLOCK_SIZE
        preparer.add(name)
        preparer.add_tokens(name, range(length))
        preparer.set_table(name, [blocks.pop() for _ in range(-(-length // BLOCK_SIZE))])
        rows.append(ScheduledRow(name, length - 1, length, True))
    return preparer, rows


def test_prepare_one_decode_step(benchmark: Any) -> None:
    preparer, rows = filled()

    def step() -> None:
        assert not preparer.behind(rows)
        preparer.prepare(rows)

    benchmark(step)
    if benchmark.stats:
        assert benchmark.stats["median"] * 1e6 <= MOST_US


def test_prepare_a_sequence_of_decode_steps(benchmark: Any) -> None:
    """What one token for every sequence costs: the sampled tokens, new blocks where they are needed, the arrays."""
    preparer, rows = filled()
    spare = iter(range(10**6, 10**9))

    def setup() -> tuple[tuple[list[ScheduledRow]], dict[str, Any]]:
        return (
            [
                ScheduledRow(row.name, preparer.num_tokens(row.name), preparer.num_tokens(row.name) + 1, True)
                for row in rows
            ],
        ), {}

    def step(now: list[ScheduledRow]) -> None:
        preparer.add_sampled([(row.name, 5) for row in now])
        for row in preparer.behind(now):
            preparer.add_blocks(row.name, [next(spare)])
        preparer.prepare(now)

    benchmark.pedantic(step, setup=setup, rounds=200)
    if benchmark.stats:
        assert benchmark.stats["median"] * 1e6 <= MOST_US


@pytest.mark.parametrize("num_requests", [64])
def test_engine_steps(benchmark: Any, num_requests: int) -> None:
    """A whole small run: admission, decode, the end; scheduler, manager and batch preparation together."""

    def run() -> None:
        engine = Engine(BlockManager(4096, BLOCK_SIZE), Limits(2048, 64), max_tokens=1024, num_lanes=64)
        for number in range(num_requests):
            engine.submit(number, [number, *range(200)], 32)
        while engine.scheduler.live():
            step = engine.step()
            engine.batch(step)
            engine.finish(step, [7] * sum(row.samples for row in step.rows))

    benchmark.pedantic(run, rounds=3)
