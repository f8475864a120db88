"""The scheduler: what a person can read off a few steps. Everything else is found by the properties."""

from __future__ import annotations

import pytest

from paged_impl.block_manager import BlockManager
from paged_impl.errors import RequestRefused
from paged_impl.scheduler import Limits, ScheduledStep, Scheduler


def scheduler(num_blocks: int = 8, block_size: int = 2, budget: int = 8, rows: int = 4, host: int = 0) -> Scheduler:
    return Scheduler(BlockManager(num_blocks, block_size, num_host_blocks=host), Limits(budget, rows))


def ranges(step: ScheduledStep) -> list[tuple[str, int, int, bool]]:
    return [(str(row.name), row.start, row.stop, row.samples) for row in step.rows]


def run(engine: Scheduler, token: int = 7) -> list[tuple[str, int, int, bool]]:
    step = engine.schedule()
    engine.finish(step, [token] * sum(row.samples for row in step.rows))
    return ranges(step)


def test_a_prompt_is_computed_in_chunks_beside_a_decode() -> None:
    engine = scheduler(budget=4)
    engine.submit("A", [1, 2, 3], 9)
    run(engine)
    engine.submit("B", [4, 5, 6, 7, 8], 1)

    assert run(engine) == [("A", 3, 4, True), ("B", 0, 3, False)]
    assert run(engine) == [("A", 4, 5, True), ("B", 3, 5, True)]
    assert engine.live() == ["A"]


def test_a_second_prompt_hits_what_the_first_has_computed() -> None:
    engine = scheduler()
    engine.submit("A", [1, 2, 3, 4, 5], 3)
    run(engine)
    engine.submit("B", [1, 2, 3, 4, 9], 1)

    assert ("B", 4, 5, True) in run(engine)


def test_equal_prompts_in_one_step_share_nothing() -> None:
    engine = scheduler(budget=16)
    engine.submit("A", [1, 2, 3, 4, 5], 1)
    engine.submit("B", [1, 2, 3, 4, 5], 1)

    assert ranges(engine.schedule()) == [("A", 0, 5, True), ("B", 0, 5, True)]


@pytest.mark.parametrize("host", [0, 8])
def test_the_younger_is_preempted_and_comes_back_with_all_its_tokens(host: int) -> None:
    engine = scheduler(num_blocks=4, host=host, budget=16)
    engine.submit("A", [1, 2, 3], 5)
    run(engine)
    engine.submit("B", [4, 5, 6], 4)
    seen = [run(engine) for _ in range(40) if engine.live()]
    back = [row for step in seen for row in step if row[0] == "B"]

    assert not engine.live()
    assert back[-1][3] is True
    assert sum(samples for _, _, _, samples in back) == 4
    assert all(step for step in seen)


def test_what_can_never_fit_is_refused_and_a_full_pool_is_not() -> None:
    engine = scheduler(num_blocks=4)
    with pytest.raises(RequestRefused, match="need 5 blocks of 2 at the end, and the pool has 4"):
        engine.submit("A", [1] * 8, 2)
    engine.submit("A", [1] * 8, 1)
    with pytest.raises(RequestRefused, match="'A' is live"):
        engine.submit("A", [1], 1)

    assert run(engine) == [("A", 0, 8, True)]
    assert not engine.live()


@pytest.mark.parametrize(("tokens", "new"), [([], 1), ([1], 0)])
def test_a_request_without_work_is_refused(tokens: list[int], new: int) -> None:
    with pytest.raises(ValueError, match="at least 1 of each"):
        scheduler().submit("A", tokens, new)


def test_limits_are_checked() -> None:
    with pytest.raises(ValueError, match="max_rows=0"):
        Limits(1, 0)


def test_steps_in_flight_hold_other_requests_and_finish_in_any_order() -> None:
    engine = scheduler(rows=1)
    engine.submit("A", [1, 2], 2)
    engine.submit("B", [3, 4], 2)
    first, second, third = engine.schedule(), engine.schedule(), engine.schedule()

    assert ranges(first) == [("A", 0, 2, True)]
    assert ranges(second) == [("B", 0, 2, True)]
    assert not third.rows
    engine.finish(second, [8])
    engine.finish(first, [9])
    assert engine.tokens("A").tolist() == [1, 2, 9]
    assert engine.tokens("B").tolist() == [3, 4, 8]


def test_a_step_is_finished_once_with_the_right_number_of_tokens() -> None:
    engine = scheduler()
    engine.submit("A", [1, 2], 2)
    step = engine.schedule()
    with pytest.raises(ValueError, match="0 tokens for a step that samples 1"):
        engine.finish(step, [])
    engine.finish(step, [5])
    with pytest.raises(ValueError, match="not in flight"):
        engine.finish(step, [5])

    assert engine.tokens("A").tolist() == [1, 2, 5]


def test_a_request_cancelled_in_flight_gets_nothing_and_its_name_is_free() -> None:
    engine = scheduler()
    engine.submit("A", [1, 2], 2)
    step = engine.schedule()
    engine.cancel("A")
    engine.submit("A", [3, 4, 5], 2)

    assert engine.finish(step, [9]) == []
    assert engine.tokens("A").tolist() == [3, 4, 5]
    assert engine.manager.num_free == 8


def test_the_oldest_gets_on_whatever_comes_after_it() -> None:
    engine = scheduler(num_blocks=4, budget=4, rows=2)
    engine.submit("old", [1] * 3, 5)
    for number in range(20):
        engine.submit(f"young{number}", [number, 2, 3, 4], 2)
        run(engine)

    assert "old" not in engine.live()


def test_a_fork_shares_what_is_computed_and_the_first_to_write_copies_the_last_block() -> None:
    engine = scheduler()
    engine.submit("A", [1, 2, 3], 3)
    run(engine)
    free = engine.manager.num_free
    engine.fork("A", "B", 2)

    assert engine.manager.num_free == free
    assert engine.table("B") == engine.table("A")
    step = engine.schedule()
    assert ranges(step) == [("A", 3, 4, True), ("B", 3, 4, True)]
    assert [(copy.src_block, copy.dst_block) for copy in step.copies] == [(1, 2)]
    assert set(step.admitted) == {"A", "B"}  # A's table has another block, B's is new
    engine.finish(step, [8, 9])
    assert (engine.tokens("A").tolist(), engine.tokens("B").tolist()) == ([1, 2, 3, 7, 8], [1, 2, 3, 7, 9])


def test_a_fork_of_a_request_that_is_not_computed_waits_like_any_other() -> None:
    engine = scheduler(budget=2)
    engine.submit("A", [1, 2, 3, 4, 5], 2)
    run(engine)
    engine.fork("A", "B", 2)
    while engine.live():
        run(engine)

    assert engine.manager.num_free == 8


def test_a_fork_that_cannot_be_changes_nothing() -> None:
    engine = scheduler()
    engine.submit("A", [1, 2, 3], 3)
    step = engine.schedule()
    with pytest.raises(ValueError, match="1 steps of 'A' are in flight"):
        engine.fork("A", "B", 2)
    engine.finish(step, [7])
    with pytest.raises(RequestRefused, match="is live"):
        engine.fork("A", "A", 2)
    with pytest.raises(RequestRefused, match="can never be served"):
        engine.fork("A", "B", 99)
    with pytest.raises(KeyError):
        engine.fork("Z", "B", 2)

    assert engine.live() == ["A"]
    assert engine.manager.num_free == 6
