"""Adapters that break the protocol get the verdict ADAPTER with a remedy; implementations that fail get a finding."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy
import pytest
import torch

from properties.drive import drive
from properties.engine.operations import Cancel, DriveToIdle, EngineGeometry, Launch, Resubmit, Submit
from properties.engine.protocol import EngineCapabilities, Row, Step, StepBatch
from properties.engine.spec import SPEC
from properties.protocol import Copy
from properties.targets.engine_ours import OurEngine
from properties.trial import EVERYTHING, Verdict, run_trace

GEOMETRY = EngineGeometry(block_size=2, num_blocks=6, max_tokens_per_step=8, max_rows=3)
TRACE = (Submit("A", (1, 2, 3), (1, 1)), Launch(), Submit("B", (1, 2, 3), (1,)), Launch(), DriveToIdle())


def judged(
    target: Callable[[], Any], operations: Sequence[Any] = TRACE, geometry: EngineGeometry = GEOMETRY
) -> Verdict:
    return run_trace(SPEC, target, geometry, operations, tolerate=EVERYTHING)


def changed(change: Callable[[Step], Any]) -> Callable[[], OurEngine]:
    """Our engine whose `step` returns something else."""

    class Changed(OurEngine):
        batch = None  # type: ignore[assignment]

        def step(self) -> Step:
            return change(super().step())

    return Changed


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda step: None, "step returned None"),
        (lambda step: step._replace(rows=[("A", 0)]), "the row"),
        (lambda step: step._replace(rows=[Row("A", 3, 1, False)]), "backward"),
        (lambda step: step._replace(rows=[Row("A", -1, 1, False)]), "negative"),
        (
            lambda step: step._replace(rows=[Row("nobody", 0, 1, False)]),
            "was never submitted. Remedy: return the names that submit was given; if an earlier case",
        ),
        (lambda step: step._replace(rows=[("A", "x", 1, False)]), "the row"),
        (lambda step: step._replace(rows=[Row("A", None, 1, False)]), "the row"),  # type: ignore[arg-type]
        (lambda step: step._replace(rows=[Row("A", 0.0, 1, False)]), "the row"),  # type: ignore[arg-type]
        (lambda step: step._replace(rows=[Row([], 0, 1, False)]), "the row"),  # type: ignore[arg-type]
        (lambda step: step._replace(rows=[Row("A", 0, 1, None)]), "the row"),  # type: ignore[arg-type]
        (lambda step: step._replace(rows=None), "no lists"),  # type: ignore[arg-type]
        (lambda step: step._replace(rows=itertools.repeat(Row("A", 0, 1, False))), "does not end"),  # type: ignore[arg-type]
        (lambda step: step._replace(rows=step.rows[0]), "no lists"),
        (lambda step: step._replace(rows="A"), "step returned 'A' (str)"),  # type: ignore[arg-type]
        (lambda step: step._replace(copies=None), "no lists"),  # type: ignore[arg-type]
        (lambda step: step._replace(copies=[(1,)]), "step, as copies, returned [(1,)] (list): its entry 0"),
        (lambda step: step._replace(copies=[Copy(0, 1, "disk")]), "unknown memory space"),  # type: ignore[arg-type]
    ],
)
def test_steps_that_make_no_sense_are_the_adapters_fault(change: Callable[[Step], Any], says: str) -> None:
    verdict = judged(changed(change))

    assert verdict.adapter is not None
    assert says in str(verdict.adapter)
    assert "Remedy: " in str(verdict.adapter)


@pytest.mark.parametrize(
    ("change", "clause"),
    [
        (lambda step: step._replace(rows=[*step.rows, *step.rows]), "BATCH-2"),
        (lambda step: step._replace(rows=[row._replace(stop=row.stop + 9) for row in step.rows]), "BATCH-2"),
        (lambda step: step._replace(copies=[Copy(99, 0)]), "ALLOC-1"),
    ],
)
def test_steps_that_a_faulty_engine_could_return_are_findings(change: Callable[[Step], Any], clause: str) -> None:
    verdict = judged(changed(change))

    assert verdict.adapter is None
    assert verdict.broke(clause)


def preparing(**fields: Callable[[Any], Any]) -> Callable[[], OurEngine]:
    """Our engine, some fields of whose batch are something else."""

    class Prepares(OurEngine):
        def batch(self, step: Step) -> StepBatch:
            batch = super().batch(step)
            return batch._replace(**{name: change(getattr(batch, name)) for name, change in fields.items()})

    return Prepares


@pytest.mark.parametrize("change", [numpy.array, torch.tensor, tuple, iter])
def test_a_batch_may_hold_numbers_of_any_library(change: Callable[[Any], Any]) -> None:
    verdict = judged(preparing(positions=change, slot_mapping=change, cu_seqlens_q=change, block_tables=change))

    assert (verdict.adapter, verdict.breaches) == (None, [])
    assert len(verdict.applied) == len(TRACE)


@pytest.mark.parametrize(
    ("name", "change", "says"),
    [
        ("positions", lambda value: 3, "batch, as positions, returned 3 (int)"),
        ("positions", lambda value: torch.ones(2), "its entry 0 is 1.0 (float)"),
        ("input_ids", lambda value: "tokens", "returned 'tokens' (str)"),
        ("slot_mapping", set, "a set has no order"),
        ("slot_mapping", lambda value: [None, *value], "its entry 0 is None"),
        ("cu_seqlens_q", lambda value: [[0, 1]], "its entry 0 is [0, 1] (list)"),
        ("cu_seqlens_k", lambda value: [True, *value], "a truth value is no number"),
        ("max_seqlen_q", lambda value: [value], "batch, as max_seqlen_q, returned [3] (list). Remedy: return a whole"),
        ("max_seqlen_k", float, "returned 3.0 (float)"),
        ("context_lens", lambda value: itertools.count(), "does not end"),
        ("block_tables", lambda value: [1, 2], "batch, as block_tables, returned 1 (int)"),
        ("block_tables", lambda value: 5, "Remedy: return a sequence of block tables"),
    ],
)
def test_a_batch_of_anything_else_is_the_adapters_fault(name: str, change: Callable[[Any], Any], says: str) -> None:
    verdict = judged(preparing(**{name: change}))

    assert says in str(verdict.adapter)


class SlotsOutsideThePool(OurEngine):
    def slots(self, name: str) -> Sequence[int]:
        return [slot + 100 for slot in super().slots(name)]


def test_slots_outside_the_pool_are_a_finding() -> None:
    verdict = judged(SlotsOutsideThePool)

    assert verdict.broke("ALLOC-1")
    assert "outside the pool of 6 blocks" in verdict.message("ALLOC-1")


class FinishRefuses(OurEngine):
    def finish(self, step: Step, tokens: Sequence[int]) -> None:
        self.engine.submit("A", [1], 1)  # the implementation refuses: the name is in use


def test_a_finish_that_is_refused_is_a_crash() -> None:
    verdict = judged(FinishRefuses)

    assert verdict.broke("CRASH-1")
    assert "only submit may refuse" in verdict.message("CRASH-1")


class NeverSchedules(OurEngine):
    def step(self) -> Step:
        return Step()

    batch = None  # type: ignore[assignment]


def test_a_scheduler_that_schedules_nothing_is_stopped_and_found() -> None:
    verdict = judged(NeverSchedules)

    assert verdict.broke("LIVE-1")
    assert "steps in a row came back empty" in verdict.message("LIVE-1")
    assert "A (3 tokens, 0 computed, 2 to sample) holds no block" in verdict.message("LIVE-1")


class PreemptsForEver(OurEngine):
    """Each step computes the first token again: rows, but never a token."""

    batch = None  # type: ignore[assignment]

    def step(self) -> Step:
        name = str(self.engine.scheduler.live()[0])
        if not self.engine.scheduler.table(name):
            self.engine.step()
        return Step([Row(name, 0, 1, False)])

    def finish(self, step: Step, tokens: Sequence[int]) -> None:
        """Nothing comes of it."""


def test_steps_that_lead_nowhere_are_found() -> None:
    verdict = judged(PreemptsForEver)

    assert verdict.broke("LIVE-1")
    assert "did not bring a single token" in verdict.message("LIVE-1")


def without(name: str) -> type[OurEngine]:
    return type("Lacking", (OurEngine,), {name: None})


@pytest.mark.parametrize("name", ["open", "submit", "step", "slots", "finish", "live"])
def test_a_missing_method_is_named(name: str) -> None:
    verdict = judged(without(name))

    assert verdict.adapter is not None
    assert f"lacks {name}" in str(verdict.adapter)


@pytest.mark.parametrize("name", ["cancel", "batch", "ref_count", "free_blocks", "cached_blocks"])
def test_an_optional_method_may_be_missing(name: str) -> None:
    verdict = judged(without(name), (*TRACE[:-1], Cancel("B"), DriveToIdle()))

    assert verdict.adapter is None
    assert not verdict.breaches


class NoCapabilities(OurEngine):
    capabilities = None  # type: ignore[assignment]


class KeepsState(OurEngine):
    def live(self) -> Sequence[str]:
        return ["left over"]


class LiveIsAString(OurEngine):
    def live(self) -> Sequence[str]:
        return "A"


class LiveIsNone(OurEngine):
    def live(self) -> Sequence[str]:
        return None  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("target", "says"),
    [
        (NoCapabilities, "declares no capabilities"),
        (KeepsState, "right after open()"),
        (LiveIsAString, "live returned 'A'"),
        (LiveIsNone, "live returned None"),
    ],
)
def test_other_breaches_of_the_protocol(target: type[OurEngine], says: str) -> None:
    verdict = judged(target)

    assert verdict.adapter is not None
    assert says in str(verdict.adapter)


def test_operations_without_a_meaning_are_passed_over() -> None:
    class Plain(OurEngine):
        capabilities = EngineCapabilities(
            refusals=OurEngine.capabilities.refusals, chunked_prefill=True, salts=True, cached_overlaps_free=True
        )

    verdict = judged(
        Plain, (Launch(), Cancel("A"), Resubmit("A"), Submit("A", (1,) * 99, (1,)), Submit("A", (), (1,)), *TRACE)
    )

    assert verdict.illegal == 5
    assert not verdict.breaches


def test_several_steps_in_flight_with_cancel_and_reuse() -> None:
    geometry = EngineGeometry(block_size=1, num_blocks=5, max_tokens_per_step=4, max_rows=1, max_in_flight=3)
    trace = (
        Submit("A", (1, 2), (1, 1)),
        Launch(hold=True),
        Cancel("A"),
        Submit("B", (3, 4), (1, 1)),
        Launch(hold=True),
        DriveToIdle(),
    )
    verdict = judged(OurEngine, trace, geometry)

    assert not verdict.breaches
    assert verdict.state.marks["a cancel in flight"] == 1


class Hangs(OurEngine):
    def step(self) -> Step:
        time.sleep(30)
        return super().step()


def test_a_step_that_hangs_is_a_finding() -> None:
    verdict = run_trace(SPEC, Hangs, GEOMETRY, TRACE, limit_s=0.2)

    assert verdict.adapter is None
    assert "step did not return within the time limit" in verdict.message("CRASH-2")


class LiveFails(OurEngine):
    def live(self) -> Sequence[str]:
        return self.engine.no_such_method()  # type: ignore[attr-defined,no-any-return]


class CloseFails(OurEngine):
    def close(self) -> None:
        raise SystemExit(70)


@pytest.mark.parametrize(("make", "says"), [(LiveFails, "live raised AttributeError"), (CloseFails, "SystemExit: 70")])
def test_a_question_right_after_open_and_close_must_not_fail(make: type[OurEngine], says: str) -> None:
    assert says in str(judged(make).adapter)
    assert says in str(drive(SPEC, make, 0)[1].adapter)


class TableAsSlots(OurEngine):
    batch = None  # type: ignore[assignment]
    table = None  # type: ignore[assignment]

    def slots(self, name: str) -> Sequence[int]:
        return self.engine.scheduler.table(name)


def test_a_table_in_the_place_of_slots_is_told_in_words() -> None:
    geometry = EngineGeometry(block_size=3, num_blocks=6, max_tokens_per_step=8, max_rows=3)
    verdict = judged(TableAsSlots, (Submit("A", (1, 2, 3, 4, 5), (1,)), Launch()), geometry)

    assert "These look like block ids, one for each 3 tokens" in verdict.message("ALLOC-2")
    assert "return slots_from_table" in verdict.message("ALLOC-2")
