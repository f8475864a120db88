"""The engine referee itself: what it takes on trust it may take on trust, and what it says can be acted on."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest

from fuzz.faults import Fault, all_faults
from properties.drive import drive
from properties.engine.operations import DriveToIdle, EngineGeometry, Launch, Submit
from properties.engine.reads import first_wrong
from properties.engine.referee import EngineReferee
from properties.engine.replay import judge_history
from properties.engine.spec import SPEC
from properties.minimise import breaks, minimise, trimmed
from properties.report import steps_in_words
from properties.targets.engine_ours import OurEngine
from properties.trial import EVERYTHING, run_trace


class Distrustful(EngineReferee):
    """Looks at every position of every request after every step, and compares with what the referee says."""

    checked = 0

    def _after(self, *, looked: bool = False) -> None:
        super()._after(looked=looked)
        for request in self.state.requests.values():
            type(self).checked += 1
            if first_wrong(self.state, request, 0, request.computed) is not None:
                assert "CONTENT-1" in self.state.broken, f"{request.name} reads something wrong, and nothing was said"


def test_content_is_judged_as_it_changes_and_nothing_is_missed() -> None:
    spec = dataclasses.replace(SPEC, referee=Distrustful)
    for fault in [fault for fault in all_faults().values() if fault.level == "engine"]:
        for seed in range(12):
            _, verdict = drive(spec, fault.make, seed, tolerate=EVERYTHING)
            assert verdict.adapter is None
    assert Distrustful.checked > 10_000


QUICK = (
    "decode-slot-one-too-far",
    "chunk-reads-to-the-end",
    "the-hash-leaves-out-the-parent",
    "cancel-in-flight-leaks",
)


@pytest.mark.parametrize("fault", [all_faults()[id] for id in QUICK], ids=lambda fault: fault.id)
def test_a_finding_shrinks_to_a_few_steps(fault: Fault) -> None:
    fails = breaks(SPEC, fault.make, fault.catches)
    for seed in range(200):
        geometry, verdict = drive(SPEC, fault.make, seed, tolerate=EVERYTHING)
        if verdict.broke(fault.catches):
            break
    trace = trimmed(SPEC, fault.make, (geometry, tuple(verdict.applied)), fault.catches)
    geometry, operations = minimise(SPEC, trace, fails)

    assert fails(geometry, operations)
    assert len(operations) <= 8
    assert geometry.num_blocks <= 6
    assert not any("{" in line for line in steps_in_words(operations)), "an operation without words"


def test_the_explanation_names_request_position_step_and_the_history_of_the_block() -> None:
    fault = all_faults()["the-hash-leaves-out-the-parent"]
    for seed in range(200):
        _, verdict = drive(SPEC, fault.make, seed, tolerate=EVERYTHING)
        if verdict.broke("HASH-1"):
            break
    message = verdict.message("HASH-1")

    for part in ("request ", ", position ", " behind ", "is read by the row [", "the value written by sequence", "at step",
                 "History of device block", "handed to", "were taken from the cache"):  # fmt: skip
        assert part in message


def test_deleting_operations_keeps_the_meaning_of_the_rest() -> None:
    for seed in range(10):
        geometry, verdict = drive(SPEC, OurEngine, seed)
        operations = verdict.applied
        for index in range(0, len(operations), 7):
            shorter = run_trace(SPEC, OurEngine, geometry, [*operations[:index], *operations[index + 1 :]])
            assert not shorter.breaches
            assert shorter.adapter is None


def history(*lines: str) -> Sequence[bytes]:
    opening = (
        '{"event":"open","format":"pagefault history","version":1,"block_size":2,"num_blocks":4,'
        '"max_tokens_per_step":8,"max_rows":2,"max_in_flight":2}'
    )
    return [line.encode() + b"\n" for line in (opening, *lines, '{"event":"close"}')]


SUBMIT = '{"event":"submit","name":"A","tokens":[1,2,3],"max_new_tokens":3}'
FIRST = '{"event":"step","step":1,"rows":[["A",0,3,true]],"tables":{"A":[3,1]}}'
SECOND = '{"event":"step","step":2,"rows":[["A",3,4,true]],"input_ids":[-1]}'
THIRD = '{"event":"step","step":3,"rows":[["A",4,5,true]],"tables":{"A":[3,1,0]}}'


def finish(number: int, token: int) -> str:
    return f'{{"event":"finish","step":{number},"tokens":[{token}]}}'


def test_a_step_may_compute_a_token_that_is_not_known_yet() -> None:
    verdict = judge_history(history(SUBMIT, FIRST, SECOND, finish(1, 8), THIRD, finish(2, 9), finish(3, 7)))

    assert (verdict.error, verdict.cut, verdict.breaches, verdict.live) == (None, None, [], [])


def test_in_such_a_history_a_wrong_id_is_found() -> None:
    known = SECOND.replace("[-1]", "[5]")
    verdict = judge_history(history(SUBMIT, FIRST, known, finish(1, 8), finish(2, 9)))

    assert [breach.property for breach, _ in verdict.breaches] == ["BATCH-1"]
    assert "the input ids of the step say 5, and 8 is right" in verdict.breaches[0][0].message


def test_a_prefix_hit_in_a_history_is_believed_only_if_it_is_true() -> None:
    again = '{"event":"submit","name":"B","tokens":[1,2,9],"max_new_tokens":1}'
    other = '{"event":"submit","name":"B","tokens":[5,2,9],"max_new_tokens":1}'
    hit = '{"event":"step","step":2,"rows":[["B",2,3,true]],"tables":{"B":[3,2]}}'
    right, wrong = (
        judge_history(history(SUBMIT, FIRST, finish(1, 8), second, hit, finish(2, 4))) for second in (again, other)
    )

    assert not right.breaches
    assert {breach.property for breach, _ in wrong.breaches} == {"HASH-1", "CONTENT-1"}


def test_an_idle_engine_is_not_asked_for_steps() -> None:
    asked: list[int] = []

    class Counting(OurEngine):
        def step(self) -> Any:
            assert self.live(), "step() with nothing to do"
            asked.append(1)
            return super().step()

    geometry = EngineGeometry(block_size=2, num_blocks=4, max_tokens_per_step=8, max_rows=2)
    verdict = run_trace(
        SPEC, Counting, geometry, [Launch(), Submit("A", (1,), (1,)), Launch(), Launch(), DriveToIdle()]
    )

    assert not verdict.breaches
    assert verdict.illegal == 2
    assert asked


def test_a_step_is_told_with_its_rows_and_a_submit_with_its_refusal() -> None:
    """A reader cannot see from "step" what the target scheduled."""
    geometry = EngineGeometry(block_size=2, num_blocks=4, max_tokens_per_step=4, max_rows=2)
    submits = [Submit("A", (0, 1, 2), (3, 4)), Submit("B", (0, 1), (5,)), Submit("C", tuple(range(9)), (1,))]
    operations = [*submits, Launch(), Launch(), DriveToIdle()]
    verdict = run_trace(SPEC, OurEngine, geometry, operations)

    refused, first, second, last = steps_in_words(operations, outcomes=verdict.state.outcomes)[2:]

    assert verdict.breaches == []
    assert "(refused: " in refused
    assert first.endswith("step (A [0, 3) samples, B [0, 1))")
    assert second.endswith("step (A [3, 4) samples, B [1, 2) samples)")
    assert "fill [0, 4)" in last


def test_many_steps_of_one_operation_are_told_by_the_last() -> None:
    geometry = EngineGeometry(block_size=2, num_blocks=8, max_tokens_per_step=4, max_rows=2)
    operations = [Submit("A", (0,), (1,) * 9), DriveToIdle()]
    verdict = run_trace(SPEC, OurEngine, geometry, operations)

    told = verdict.state.outcomes[2]

    assert told.startswith("9 steps; then fill [0, 4); then ")
    assert told.count("fill") == 4
