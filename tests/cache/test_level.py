"""The cache level itself: what it generates, how it judges targets that offer less, and what it says of adapters."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch import Tensor

from fuzz.faults import all_faults
from paged_impl.cache import PagedKVCache
from paged_impl.step import Step
from paged_ref.layouts import Layout, pack_keys, pack_values
from paged_ref.trie import TokenRuns
from properties.attention.budget import on_device
from properties.attention.target import Pool
from properties.blocks.operations import Admit, Append, Free, Resume
from properties.cache.generate import accepts, choose_geometry
from properties.cache.legality import why_illegal
from properties.cache.mirror import contents_of, fill_slots, slots_that_differ
from properties.cache.operations import BatchStep, CacheGeometry
from properties.cache.payload import Payload
from properties.cache.protocol import Row, offered
from properties.case import Case, decode, encode, fingerprint
from properties.drive import below_of, drive
from properties.report import operation_in_words
from properties.specs import spec_of
from properties.targets import Target, Unavailable
from properties.targets.cache_ours import OurCache, OurTritonCache
from properties.trial import EVERYTHING, run_trace
from tests.cache.plain_cache import ForgetsTheNewest, PlainTarget, WithANullBlock

SPEC = spec_of("cache")
GEOMETRY = CacheGeometry(block_size=2, num_blocks=4, num_layers=2)


# ---- what is generated


def test_a_sequence_has_come_back_only_where_its_resume_had_a_meaning() -> None:
    unscaled = all_faults()["cache-scale-is-forgotten"]
    trace = [Admit("A", (0, 1)), Resume("A"), Append("A", (1,)), Free("A")]
    verdict = run_trace(SPEC, unscaled.make, GEOMETRY, trace, tolerate=EVERYTHING)

    assert verdict.broke("READ-1")
    assert not verdict.broke("PREEMPT-1")
    assert verdict.state.judged["PREEMPT-1"] == 0


def test_equal_runs_have_equal_kv_and_others_do_not() -> None:
    geometry = CacheGeometry(block_size=2, num_blocks=4, num_layers=2, num_kv_heads=2, seed=5)
    first, second = TokenRuns(), TokenRuns()
    second.extend(second.root(), [9, 9])  # other numbers for the same runs
    ours, theirs = Payload(geometry, first), Payload(geometry, second)
    run = first.extend(first.root(), [1, 2])

    fused = ours.fused(run, 1)

    assert torch.equal(fused, theirs.fused(second.extend(second.root(), [1, 2]), 1))
    others = [
        ours.fused(run, 0),
        ours.fused(first.extend(first.root(), [2, 2]), 1),
        ours.fused(first.extend(first.root("salt"), [1, 2]), 1),
        Payload(replace(geometry, seed=6), first).fused(run, 1),
    ]
    for other in others:
        assert not bool((fused == other).flatten(1).all(1).any()), "some position has the KV of another run"
    keys, values, queries = ours.split(fused)
    assert [len(t[0]) for t in (keys, values, queries)] == [2, 2, 2]


def test_drawn_geometries_are_accepted_and_others_are_not() -> None:
    caps = OurCache.capabilities
    drawn = [choose_geometry(below_of(seed), caps, offered(OurCache())) for seed in range(200)]

    assert all(accepts(caps, geometry) for geometry in drawn)
    assert {geometry.poison_k for geometry in drawn} == set(caps.withstands)
    assert {geometry.dtype for geometry in drawn} == set(caps.dtypes)
    assert {geometry.device for geometry in drawn} == {"cpu"}, "the device is chosen by the user, not drawn"
    for change in ({"num_layers": 9}, {"head_size": 17}, {"device": "xpu"}, {"num_sinks": 1}, {"ratio": 11}):
        assert not accepts(caps, replace(drawn[0], **change))


def test_a_batch_has_a_meaning_while_one_of_its_sequences_is_there() -> None:
    verdict = run_trace(SPEC, OurCache, GEOMETRY, [Admit("A", (1, 2)), BatchStep(("A", "Z"), ((3,), (4,)), 1)])

    assert verdict.outcomes["done"] == 2
    assert verdict.state.live["A"].tokens == [1, 2, 3]
    assert "none of Z can grow" in str(why_illegal(verdict.state, BatchStep(("Z",), ((1,),))))
    assert "2 sequences, 1 runs" in str(why_illegal(verdict.state, BatchStep(("A", "Z"), ((1,),))))


def test_a_batch_computes_a_chunk_of_what_was_allocated() -> None:
    from properties.blocks.operations import Allocate

    ops = [Allocate("A", (1, 2, 3, 4, 5)), Admit("B", (7,)), BatchStep(("A", "B"), ((0, 0), (8,)))]
    verdict = run_trace(SPEC, OurCache, GEOMETRY, ops)

    assert verdict.breaches == []
    assert (verdict.state.live["A"].computed, verdict.state.live["B"].computed) == (2, 2)
    assert verdict.state.marks["a ragged batch"] == 2, "the step, in both layers"


def test_a_case_survives_its_file_and_is_said_in_words() -> None:
    ops = (Admit("A", (1, 2)), BatchStep(("A",), ((3, 4),), 2), Free("A"))
    case = Case(level="cache", target="cache-ours", property="READ-1", message="m", geometry=GEOMETRY, operations=ops)

    read = decode(encode(case))

    assert (read.geometry, read.operations) == (GEOMETRY, ops)
    assert fingerprint(read) == fingerprint(case)
    assert operation_in_words(ops[1]) == "one step over A (tokens 3 4) and 2 padding tokens"


def test_smaller_traces_are_of_the_level_and_differ() -> None:
    geometry = replace(GEOMETRY, dtype="float16", strided=True, poison_k="huge")
    ops = (Admit("A", (1, 2)), BatchStep(("A", "B"), ((3, 4), (1,)), 2), Append("A", (3,)))

    smaller = [trace for trace, _ in zip(SPEC.shrink(geometry, ops), range(400), strict=False)]

    assert all(isinstance(trace[0], CacheGeometry) and trace != (geometry, ops) for trace in smaller)
    assert {trace[0].dtype for trace in smaller} == {"float16", "float32"}
    assert (Admit("A", (1, 2)), BatchStep(("A",), ((3, 4),), 2), Append("A", (3,))) in [trace[1] for trace in smaller]


def test_the_same_seed_gives_the_same_trace() -> None:
    first, second = (drive(SPEC, OurCache, 11) for _ in range(2))

    assert (first[0], first[1].applied) == (second[0], second[1].applied)


# ---- memory


@pytest.mark.parametrize("layout", list(Layout))
def test_slots_are_filled_and_compared_in_every_layout(layout: Layout) -> None:
    keys, values = torch.randn(3, 2, 2, 16), torch.randn(3, 2, 2, 16)
    pool = Pool(pack_keys(keys, layout), pack_values(values, layout), layout)

    fill_slots(pool, torch.tensor([1, 4]), [torch.nan, 7.0])

    keys.flatten(0, 1)[[1, 4]] = torch.nan
    values.flatten(0, 1)[[1, 4]] = 7.0
    found = contents_of(pool)
    assert slots_that_differ(found[0], keys.flatten(0, 1)).tolist() == []
    assert slots_that_differ(found[1], values.flatten(0, 1)).tolist() == []
    found[1][5, 1, 3] += 1.0
    assert slots_that_differ(found[1], values.flatten(0, 1)).tolist() == [5]
    assert slots_that_differ(torch.tensor([[[-0.0]]]), torch.tensor([[[0.0]]])).tolist() == [0], "bits, not numbers"


# ---- targets that offer less, or lie otherwise in memory


def without(*names: str) -> type[OurCache]:
    """Our target with some optional methods hidden."""

    class Less(OurCache):
        def __getattribute__(self, name: str) -> Any:
            return None if name in names else super().__getattribute__(name)

    return Less


class _Hnd(PagedKVCache):
    """The heads of a block lie before its tokens."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.pools = self.pools.transpose(3, 4).contiguous().transpose(3, 4)


class _HndTarget(OurCache):
    def cache_class(self) -> type[PagedKVCache]:
        return _Hnd

    def pools(self) -> list[Pool]:
        layers = [self.cache.layer(layer) for layer in range(self.cache.shape.num_layers)]
        return [Pool(k.transpose(1, 2), v.transpose(1, 2), Layout.HND) for k, v in layers]


BOOKS = ("table", "ref_count", "free_blocks", "lookup", "can_admit", "can_append", "predict_admit", "predict_append")
SOUND: dict[str, Callable[[], Any]] = {
    "its pools": without("pools"),
    "what is cached": without("cached_blocks"),
    "forks, swaps and truncation": without("fork", "swap_out", "swap_in", "truncate", "copies", "preempt"),
    "its books": without(*BOOKS),
    "its books, pools and what is cached": without(*BOOKS, "pools", "cached_blocks"),
    "blocks with heads first": _HndTarget,
    "sharing, beside a null block": WithANullBlock,
}


@pytest.mark.parametrize("what", SOUND)
def test_a_sound_target_stays_clean_without(what: str) -> None:
    rows = 0
    for seed in range(8):
        _, verdict = drive(SPEC, SOUND[what], seed)
        assert (verdict.adapter, verdict.breaches) == (None, [])
        rows += verdict.state.judged["READ-1"]
    assert rows > 200


def test_a_stranger_s_plain_cache_is_clean_and_its_broken_twin_is_not() -> None:
    verdicts = [drive(SPEC, PlainTarget, seed)[1] for seed in range(12)]
    broken = [drive(SPEC, ForgetsTheNewest, seed)[1] for seed in range(3)]

    assert [(v.adapter, v.breaches) for v in verdicts] == [(None, [])] * 12
    assert sum(v.state.judged["READ-1"] for v in verdicts) > 300
    assert any(v.broke("READ-1") and "Clue" in v.message("READ-1") for v in broken)


class _ReadsOneTokenTooMany(PagedKVCache):
    def _attend(self, caches: Any, query: Tensor, step: Step, scale: float) -> Tensor:
        return super()._attend(caches, query, dataclasses.replace(step, context_lens=step.context_lens + 1), scale)


class _ReadsTooMuch(OurTritonCache):
    def cache_class(self) -> type[PagedKVCache]:
        return _ReadsOneTokenTooMany


@pytest.mark.skipif(
    torch.cuda.is_available(), reason="kernels are compiled here, and the guard watches interpreted ones"
)
@pytest.mark.usefixtures("triton_runs")
def test_the_guard_names_the_line_that_reads_a_foreign_slot() -> None:
    geometry = CacheGeometry(block_size=3, num_blocks=2, poison_k="zero", poison_v="zero")

    verdict = run_trace(SPEC, _ReadsTooMuch, geometry, [Admit("A", (1,))])

    assert [breach.property for breach in verdict.breaches] == ["READ-2"]
    assert "pages.py:" in verdict.message("READ-2")
    assert "slots that no sequence owns" in verdict.message("READ-2")


@pytest.mark.usefixtures("triton_runs")
def test_through_the_triton_kernels() -> None:
    """Interpreted where there is no GPU: a few short traces."""
    rows, short = 0, dataclasses.replace(SPEC, num_steps=12)
    for seed in (1, 2, 3, 4):
        _, verdict = drive(short, OurTritonCache, seed)
        assert (verdict.adapter, verdict.breaches) == (None, [])
        rows += verdict.state.judged["READ-1"]
    assert rows > 50


def test_a_device_that_is_not_there_or_not_declared_is_said() -> None:
    with pytest.raises(Unavailable, match="runs on cpu, not on cuda"):
        on_device(Target("plain", "cache", PlainTarget), "cuda").make()
    assert on_device(Target("ours", "cache", OurCache), "cpu").make().capabilities.devices == ("cpu",)
    if not torch.cuda.is_available():
        with pytest.raises(Unavailable, match="sees none here"):
            on_device(Target("ours", "cache", OurCache), "cuda").make()


# ---- adapters


class _NoRead(OurCache):
    read = None  # type: ignore[assignment]


class _ReadsTooLittle(OurCache):
    def read(self, layer: int, rows: Any, queries: Tensor) -> Tensor:
        return super().read(layer, rows, queries)[:-1]


class _ReadsInDouble(OurCache):
    def read(self, layer: int, rows: Any, queries: Tensor) -> Tensor:
        return super().read(layer, rows, queries).double()


class _ShowsOneLayer(OurCache):
    def pools(self) -> list[Pool]:
        return super().pools()[:1]


@pytest.mark.parametrize(
    ("adapter", "problem"),
    [
        (_NoRead, "_NoRead lacks read"),
        (_ReadsTooLittle, r"read returned \(1, 1, 16\) for queries \(2, 1, 16\)"),
        (_ReadsInDouble, "read returned torch.float64"),
        (_ShowsOneLayer, "pools() gives key caches"),
    ],
)
def test_a_wrong_adapter_is_no_finding(adapter: type[OurCache], problem: str) -> None:
    verdict = run_trace(SPEC, adapter, GEOMETRY, [Admit("A", (1, 2))])

    assert verdict.breaches == []
    assert verdict.adapter is not None
    assert problem.replace("\\", "") in str(verdict.adapter)


def test_a_target_may_read_part_of_what_it_computes() -> None:
    """Rows of one step may be read apart: the step in flight is another one."""
    target = OurCache()
    target.open(GEOMETRY)
    target.allocate("A", [1, 2, 3])
    k = torch.randn(3, 1, 16)
    target.write(0, [Row("A", 0, 3)], k, k)
    target.write(1, [Row("A", 0, 3)], k, k)

    alone = target.read(0, [Row("A", 0, 1)], k[:1])
    target.commit([Row("A", 0, 3)])

    torch.testing.assert_close(alone, k[:1])
    torch.testing.assert_close(target.read(0, [Row("A", 0, 3)], k[:3])[:1], k[:1])
