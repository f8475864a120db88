"""Caches with habits that are legal, their broken twins, and adapters that show the wrong tensors."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor

from paged_ref.layouts import Layout
from properties.attention.target import Pool
from properties.blocks.operations import Admit, Append, Fork
from properties.cache.operations import CacheGeometry
from properties.cache.protocol import Row
from properties.drive import drive
from properties.protocol import Copy
from properties.specs import spec_of
from properties.targets.cache_ours import OurCache
from properties.trial import run_trace
from tests.cache.sharing_cache import SharingCache

SPEC = spec_of("cache")
GEOMETRY = CacheGeometry(block_size=2, num_blocks=4, num_layers=2, num_kv_heads=1, dtype="float16")
FLOAT32 = msgspec.structs.replace(GEOMETRY, dtype="float32")


# ---- pools that are not those that open was asked for


def shows(change: Callable[[Pool], Any]) -> type[OurCache]:
    """Our target with its pools shown otherwise."""

    class Shows(OurCache):
        def pools(self) -> list[Pool]:
            return [change(pool) for pool in super().pools()]

    return Shows


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda p: replace(p, key_cache=p.key_cache.float()), "keys of layer 0 in torch.float32, and open() was asked"),
        (lambda p: replace(p, value_cache=p.value_cache.float()), "values of layer 0 in torch.float32, and open()"),
        (lambda p: replace(p, value_cache=p.value_cache.to("meta")), "values of layer 0 on meta, and open() was asked"),
        (lambda p: replace(p, value_cache=p.value_cache[:-1]), "value caches of shape [(3, 2, 1, 16), (3, 2, 1, 16)]"),
        (lambda p: replace(p, key_cache=p.key_cache.transpose(0, 1)), "key caches of shape [(2, 4, 1, 16)"),
        (lambda p: replace(p, layout=Layout.VLLM), "key caches of shape [(4, 2, 1, 16)"),
        (lambda p: replace(p, key_cache=None), "keys of layer 0 as NoneType"),
        (lambda p: (p.key_cache, p.value_cache), "gives tuple without a Layout"),
    ],
)
def test_pools_of_another_kind_are_the_adapter_s_fault(change: Callable[[Pool], Any], says: str) -> None:
    verdict = run_trace(SPEC, shows(change), GEOMETRY, [Admit("A", (1, 2))])

    assert verdict.breaches == []
    assert says in str(verdict.adapter)
    assert "Remedy: " in str(verdict.adapter)


def test_the_pools_that_open_was_asked_for_are_taken() -> None:
    verdict = run_trace(SPEC, shows(lambda pool: pool), GEOMETRY, [Admit("A", (1, 2))])

    assert (verdict.adapter, verdict.breaches) == (None, [])
    assert verdict.state.judged["STORE-1"] == GEOMETRY.num_layers


# ---- a read that returns one buffer for all of its calls


class Leaks(OurCache):
    """What lies in the last block behind the tokens reaches the output."""

    def read(self, layer: int, rows: Sequence[Row], queries: Tensor) -> Tensor:
        out, at = super().read(layer, rows, queries).clone(), 0
        for row in rows:
            behind = [slot for slot in self.slots(row.name)[row.stop :] if slot >= 0]
            values = super().pools()[layer].value_cache.flatten(0, 1)[behind]
            out[at : at + row.stop - row.start] += (0 * values.sum()).to(out.dtype)
            at += row.stop - row.start
        return out


def in_one_buffer(cache: type[OurCache]) -> type[OurCache]:
    """The same cache, whose reads all return the same memory."""

    class Reuses(cache):  # type: ignore[misc, valid-type]
        def read(self, layer: int, rows: Sequence[Row], queries: Tensor) -> Tensor:
            if not hasattr(self, "buffer"):
                self.buffer = torch.full((1 << 15,), math.nan, dtype=queries.dtype)
            out: Tensor = super().read(layer, rows, queries)
            return self.buffer[: out.numel()].view(out.shape).copy_(out)

    return Reuses


def test_the_clue_is_drawn_from_the_output_that_was_wrong() -> None:
    """Later calls, which find the cause, may write over it."""
    for target in (Leaks, in_one_buffer(Leaks)):
        verdict = run_trace(SPEC, target, GEOMETRY, [Admit("A", (1,))])

        assert [breach.property for breach in verdict.breaches] == ["READ-2"]
        assert "Clue: every value is NaN" in verdict.message("READ-2")


def test_a_sound_cache_with_one_buffer_is_clean() -> None:
    verdicts = [drive(SPEC, in_one_buffer(OurCache), seed)[1] for seed in range(4)]

    assert [(v.adapter, v.breaches) for v in verdicts] == [(None, [])] * 4
    assert sum(v.state.judged["READ-1"] for v in verdicts) > 100


# ---- copies


def clean(target: Callable[[], Any], num_traces: int = 20, **marks: int) -> None:
    """No finding in so many traces, which reached what is named at least so often."""
    verdicts = [drive(SPEC, target, seed)[1] for seed in range(num_traces)]

    assert [(v.adapter, v.breaches) for v in verdicts] == [(None, [])] * num_traces
    for mark, least in marks.items():
        assert sum(v.state.marks[mark.replace("_", " ")] for v in verdicts) >= least


def test_a_cache_that_shares_and_copies_is_clean() -> None:
    clean(SharingCache, a_fork=10, a_copy_on_write=1, a_prefix_hit=10, a_freed_block_was_reused=50)


@pytest.mark.parametrize("pools", [True, False])
def test_a_fork_whose_copies_nobody_can_see_is_the_adapter_s_fault(pools: bool) -> None:
    class Silent(SharingCache):
        copies = None  # type: ignore[assignment]

    if not pools:
        Silent.pools = None  # type: ignore[assignment, method-assign]
    verdict = run_trace(SPEC, Silent, FLOAT32, [Admit("A", (1, 2, 3)), Fork("A", "B"), Append("B", (4,))])

    assert verdict.breaches == []
    assert "Silent offers fork without copies" in str(verdict.adapter)
    assert "Remedy: offer copies()" in str(verdict.adapter)


def test_a_copy_that_is_not_made_is_still_a_finding() -> None:
    class Forgets(SharingCache):
        def copy(self, src: int, dst: int) -> None:
            """Nothing arrives."""

    class Hides(Forgets):
        def copies(self) -> list[Copy]:
            return []

    steps = [Admit("A", (1, 2, 3)), Fork("A", "B"), Append("B", (4,))]

    assert run_trace(SPEC, Forgets, FLOAT32, steps).broke("COW-2")
    assert run_trace(SPEC, Hides, FLOAT32, steps).broke("CONTENT-1")
    assert run_trace(SPEC, SharingCache, FLOAT32, steps).breaches == []
