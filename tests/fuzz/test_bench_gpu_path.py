"""What `pagefault bench` does on a GPU, with graphs and events replaced by stand-ins; and our kernels' prepared calls."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

from fuzz.bench import runner, timing
from fuzz.bench.cases import parse
from fuzz.bench.check import make_check
from fuzz.bench.contenders import Prepared, Scene, TargetContender, make_contender
from fuzz.bench.result import Ceilings, Row
from tests.fuzz.bench_targets import Right, StoresOneSlotFurther, Zeros

CASES = ("3x37x4/2/16/p4", "2x21x4/2/16/p4/q9", "50x2/16/p4")


class _Graph:
    """Replays the first recorded call, as a graph of the same kernels would."""

    def __init__(self, replay: Callable[[], object]) -> None:
        self.replay = replay


def _record(calls: Sequence[timing.Call], min_calls: int = 8) -> timing.Recording:
    """A recording of which a replay writes the first result anew."""
    first = calls[0]()

    def replay() -> None:
        again = calls[0]()
        if first is not None:
            first.out.copy_(again.out)  # type: ignore[attr-defined]

    return timing.Recording(_Graph(replay), len(calls), first)  # type: ignore[arg-type]


def _record_nothing(calls: Sequence[timing.Call], min_calls: int = 8) -> timing.Recording:
    """A recording that missed the work: it went to another stream, or to the host."""
    return timing.Recording(_Graph(lambda: None), len(calls), calls[0]())  # type: ignore[arg-type]


def _refuse_to_record(calls: Sequence[timing.Call], min_calls: int = 8) -> timing.Recording:
    raise RuntimeError("operation not permitted when stream is capturing")


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("synchronize", "empty_cache"):
        monkeypatch.setattr(torch.cuda, name, lambda: None)
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", lambda mode: None)
    monkeypatch.setattr(timing, "events_us", lambda calls, num_calls: 50.0)
    monkeypatch.setattr(timing, "replayed_us", lambda recording, replays: 20.0)
    scenes = runner.make_scenes
    monkeypatch.setattr(runner, "make_scenes", lambda case, device: scenes(case, "cpu"))


def _run(target: object, text: str) -> Row:
    contender = TargetContender("it", target)  # type: ignore[arg-type]
    [row] = runner.run_case(parse(text, "float32"), [contender], "cuda", Ceilings(), lambda line: None)
    return row


@pytest.mark.parametrize("text", CASES)
def test_a_right_call_is_replayed(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "record", _record)
    row = _run(Right(), text)

    assert (row.state, row.how, row.us) == ("timed", "graph", 20.0)


def test_the_last_call_of_a_recording_is_the_first_that_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls may share one output: what stands in it after a replay is that of the last one."""
    made: list[str] = []

    @contextmanager
    def stream(_: object = None) -> Iterator[None]:
        yield

    stand_in = SimpleNamespace(wait_stream=lambda other: None)
    for name in ("Stream", "current_stream"):
        monkeypatch.setattr(torch.cuda, name, lambda: stand_in)
    for name in ("stream", "graph"):
        monkeypatch.setattr(torch.cuda, name, stream)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", object)

    def call(name: str) -> Callable[[], str]:
        return lambda: made.append(name) or name  # type: ignore[func-returns-value]

    recording = timing.record([call(name) for name in "abc"], min_calls=8)

    assert made == ["a", "b", "c", *"bcabcabca"[1:]]
    assert (recording.num_calls, recording.result) == (8, "a")


@pytest.mark.parametrize("text", CASES)
def test_a_graph_without_the_work_is_found(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "record", _record_nothing)
    row = _run(Right(), text)

    assert (row.state, row.us) == ("wrong", None)
    assert row.why.startswith("replayed from a CUDA graph, ")


@pytest.mark.parametrize("text", CASES)
def test_a_call_that_cannot_be_captured_is_timed_between_events(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "record", _refuse_to_record)
    row = _run(Right(), text)

    assert (row.state, row.how, row.us) == ("timed", "events", 50.0)


@pytest.mark.parametrize(("target", "text"), [(Zeros, CASES[0]), (Zeros, CASES[1]), (StoresOneSlotFurther, CASES[2])])
def test_a_wrong_call_is_never_recorded(target: type, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "record", lambda *arguments: pytest.fail("it was recorded"))

    assert _run(target(), text).state == "wrong"


def test_waiting_calls_are_not_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    modes: list[str] = []
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)
    monkeypatch.setattr(timing, "record", lambda *arguments: pytest.fail("it was recorded"))

    def waits() -> None:
        raise RuntimeError("called a synchronizing CUDA operation")

    assert runner._record([waits], 8) is None
    assert modes == ["error", "default"]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("name", ["ours-triton", "ours-gather", "torch-flex-attention"])
def test_prepared_calls_of_built_in_targets_are_right(name: str, dtype: str) -> None:
    if name == "ours-triton" and os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("there is a GPU: kernels take no CPU tensors (TRITON_INTERPRET=1 runs it)")
    contender = make_contender(name, "cpu")
    checked = 0
    for text in CASES:
        case = parse(text, dtype)
        if contender.why_not(case) is None:
            scene = runner.make_scenes(case, "cpu")[0]
            prepared = contender.prepare(scene)
            assert not prepared.plain
            assert make_check(scene).verdict(contender, prepared).wrong is None
            checked += 1
    assert checked == (2 if name == "torch-flex-attention" else 3)


def test_the_check_leaves_the_inputs_as_they_were() -> None:
    contender = TargetContender("right", Right())
    scene: Scene = runner.make_scenes(parse(CASES[0], "float32"), "cpu")[0]
    check = make_check(scene)
    before = scene.inputs.k_cache.clone(), scene.batch.q.clone()  # type: ignore[union-attr]
    prepared: Prepared = contender.prepare(scene)

    assert check.verdict(contender, prepared).wrong is None
    assert torch.equal(scene.inputs.k_cache, before[0])
    assert torch.equal(scene.batch.q, before[1])  # type: ignore[union-attr]
