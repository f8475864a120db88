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
from properties.blocks.operations import Admit, Append, Fork, Free
from properties.cache.operations import BatchStep, CacheGeometry
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
FLOAT32_8 = msgspec.structs.replace(FLOAT32, num_blocks=8)


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


# ---- zeros in slots that hold nothing for anybody


class ClearsWhatIsReleased(SharingCache):
    """A block that no lookup can find is cleared as soon as nobody holds it."""

    def released(self, block: int) -> None:
        if block not in self.found.values():
            self.kv[:, :, block] = 0


class ClearsWhatItTakes(SharingCache):
    def taken(self, block: int) -> None:
        self.kv[:, :, block] = 0


class ClearsInTheWrite(SharingCache):
    """The rest of a block is cleared as its first token is written, layer by layer."""

    def write(self, layer: int, rows: Sequence[Row], keys: Tensor, values: Tensor) -> None:
        super().write(layer, rows, keys, values)
        for name, _, stop in rows:
            rest = self.slots(name)[stop:]
            self.flat(layer)[:, list(rest)] = 0


class ClearsEveryLayerInTheFirst(ClearsInTheWrite):
    """Slots of later layers, which this very step fills, are cleared too."""

    def write(self, layer: int, rows: Sequence[Row], keys: Tensor, values: Tensor) -> None:
        for name, start, _ in rows if layer == 0 else ():
            for other in range(self.config.num_layers):
                self.flat(other)[:, list(self.slots(name)[start:])] = 0
        super().write(layer, rows, keys, values)


class Compacts(ClearsWhatIsReleased):
    """The highest block moves into the lowest hole when a sequence ends; where it lay is cleared."""

    fork = None  # type: ignore[assignment]
    cached_blocks = None  # type: ignore[assignment]
    capabilities = msgspec.structs.replace(
        SharingCache.capabilities, prefix_cache=False, cached_overlaps_free=False, block_sizes=(1, 2)
    )

    def commit(self, rows: Sequence[Row]) -> None:
        """Nothing is published."""

    def free(self, name: str) -> None:
        super().free(name)
        tables = [held.table for held in self.held.values()]
        high, hole = max((block for table in tables for block in table), default=-1), min(self.free_list, default=0)
        if hole < high:
            self.free_list.remove(hole)
            self.refs[hole] = 1
            self.copy(high, hole)
            self.performed.append(Copy(high, hole))
            table = next(table for table in tables if high in table)
            table[table.index(high)] = hole
            self.release(high)


class ClearsTheFirstLayerInTheWrite(ClearsInTheWrite):
    def write(self, layer: int, rows: Sequence[Row], keys: Tensor, values: Tensor) -> None:
        (ClearsInTheWrite if layer == 0 else SharingCache).write(self, layer, rows, keys, values)


class HitsInsideABlock(ClearsWhatItTakes):
    """A hit may end inside a block: that block is copied into the sequence's own."""

    def allocate(self, name: str, tokens: Sequence[int]) -> int:
        cached = super().allocate(name, tokens)
        for key, block in self.found.items():
            same = [a == b for a, b in zip(key, tokens[:-1], strict=False)]
            hit = [*same, False].index(False)
            if len(key) == cached + self.size and hit > cached:
                own = self.table(name)[cached // self.size]
                self.copy(block, own)
                self.performed.append(Copy(block, own))
                return hit
        return cached


HABITS = (
    ClearsWhatIsReleased,
    ClearsWhatItTakes,
    ClearsInTheWrite,
    ClearsEveryLayerInTheFirst,
    HitsInsideABlock,
    Compacts,
)


def hides(target: type[SharingCache], *names: str) -> type[SharingCache]:
    """The same cache without some of its optional methods."""
    return type(f"{target.__name__}WithLess", (target,), dict.fromkeys(names))


@pytest.mark.parametrize("habit", HABITS)
def test_clearing_what_nobody_needs_is_no_finding(habit: type[SharingCache]) -> None:
    clean(habit, a_freed_block_was_reused=50)


@pytest.mark.parametrize("habit", [ClearsWhatIsReleased, ClearsWhatItTakes])
def test_nor_is_it_where_nobody_says_what_is_cached(habit: type[SharingCache]) -> None:
    clean(hides(habit, "cached_blocks"), 10, a_freed_block_was_reused=20)


def two_sequences(*then: Any) -> tuple[Any, ...]:
    """B holds three tokens in blocks 1 and 2, A one; then something happens."""
    return (Admit("A", (9,)), Admit("B", (1, 2, 3)), *then)


def test_what_a_step_has_planned_holds_nothing_yet() -> None:
    """A takes a block, and clears it; then C has its tail copied; then both are written."""
    steps = two_sequences(Append("A", (8,)), Fork("B", "C"), BatchStep(("A", "C"), ((5,), (4,))))

    verdict = run_trace(SPEC, ClearsWhatItTakes, FLOAT32_8, steps)

    assert (verdict.adapter, verdict.breaches) == (None, [])
    assert verdict.state.marks["a copy on write"] == 1


class ClearsASlotTooMany(ClearsWhatIsReleased):
    """The first of the block behind goes with it."""

    def released(self, block: int) -> None:
        super().released(block)
        self.kv[:, :, (block + 1) % self.config.num_blocks, 0] = 0


class ClearsKeysOfALayerTooMany(ClearsWhatIsReleased):
    def released(self, block: int) -> None:
        super().released(block)
        self.kv[-1, 0, block + 1, 0] = 0


class ClearsWhatIsCached(SharingCache):
    def released(self, block: int) -> None:
        self.kv[:, :, block] = 0


class ClearsOneSlotOfWhatIsCached(SharingCache):
    def released(self, block: int) -> None:
        self.kv[-1, 1, block, -1] = 0


class ClearsItsOwnBlock(SharingCache):
    """Also what lies before the token that is written."""

    def write(self, layer: int, rows: Sequence[Row], keys: Tensor, values: Tensor) -> None:
        for name, start, _ in rows:
            self.kv[layer, :, self.table(name)[start // self.size]] = 0
        super().write(layer, rows, keys, values)


class ClearsWhatItWrote(SharingCache):
    def write(self, layer: int, rows: Sequence[Row], keys: Tensor, values: Tensor) -> None:
        super().write(layer, rows, keys, values)
        if layer == 0:
            self.flat(layer)[1, self.slots(rows[-1].name)[rows[-1].stop - 1]] = 0


class ClearsAfterTheCopy(SharingCache):
    def copy(self, src: int, dst: int) -> None:
        self.kv[:, :, dst] = 0


class ClearsTheValuesOfACopy(ClearsWhatItTakes):
    """As if only keys were copied."""

    def copy(self, src: int, dst: int) -> None:
        self.kv[:, 0, dst] = self.kv[:, 0, src]


class ClearsTheValuesOfAHit(HitsInsideABlock):
    def copy(self, src: int, dst: int) -> None:
        self.kv[:, 0, dst] = self.kv[:, 0, src]


class Scribbles(SharingCache):
    """Something else than zeros, in a slot that nobody holds."""

    def released(self, block: int) -> None:
        self.kv[:, :, block] = 0
        self.kv[0, 0, block, 0, 0, 0] = 1.0


class ClearsTheOtherLayer(SharingCache):
    """What an earlier step wrote in the layer that is written next."""

    def write(self, layer: int, rows: Sequence[Row], keys: Tensor, values: Tensor) -> None:
        super().write(layer, rows, keys, values)
        if layer == 0 and rows[0].start:
            self.flat(1)[:, self.slots(rows[0].name)[0]] = 0


FORKED = (Fork("B", "C"), Append("C", (4,)))
FOLLOWERS = (Admit("C", (1, 2, 3)), Admit("D", (1, 2, 7)))


@pytest.mark.parametrize(
    ("target", "steps", "clause"),
    [
        (ClearsASlotTooMany, two_sequences(Free("A")), "CONTENT-1"),
        (ClearsKeysOfALayerTooMany, two_sequences(Free("A")), "CONTENT-1"),
        (ClearsWhatIsCached, two_sequences(Free("B")), "STORE-1"),
        (ClearsOneSlotOfWhatIsCached, two_sequences(Free("B")), "STORE-1"),
        (ClearsItsOwnBlock, two_sequences(Append("A", (8,))), "STORE-1"),
        (ClearsWhatItWrote, two_sequences(), "STORE-1"),
        (ClearsTheOtherLayer, two_sequences(Append("B", (4,))), "STORE-1"),
        (ClearsAfterTheCopy, two_sequences(*FORKED), "COW-2"),
        (ClearsTheValuesOfACopy, two_sequences(*FORKED), "COW-2"),
        (ClearsTheValuesOfAHit, two_sequences(Admit("C", (1, 7, 7))), "COW-2"),
        (Scribbles, two_sequences(Free("A")), "STORE-1"),
        (hides(ClearsWhatIsCached, "cached_blocks"), two_sequences(Free("B"), *FOLLOWERS), "READ-1"),
    ],
)
def test_zeros_where_somebody_needs_something_else_are_a_finding(
    target: type[SharingCache], steps: Sequence[Any], clause: str
) -> None:
    assert run_trace(SPEC, SharingCache, FLOAT32_8, steps).breaches == []

    verdict = run_trace(SPEC, target, FLOAT32_8, steps)

    assert verdict.adapter is None
    assert clause in {breach.property for breach in verdict.breaches}


@pytest.mark.parametrize(
    "habit", [ClearsWhatIsReleased, ClearsWhatItTakes, ClearsInTheWrite, ClearsTheFirstLayerInTheWrite]
)
def test_poison_comes_back_where_zeros_were_put(habit: type[SharingCache]) -> None:
    """A read that lets the rest of the last block in is still told to depend on what nobody owns."""

    class Leaks(habit):  # type: ignore[misc, valid-type]
        def read(self, layer: int, rows: Sequence[Row], queries: Tensor) -> Tensor:
            rest = self.slots(rows[-1].name)[rows[-1].stop :]
            out: Tensor = super().read(layer, rows, queries) + 0 * self.flat(layer)[1, list(rest)].sum()
            return out

    steps = two_sequences(Free("A"), Append("B", (4,)), Append("B", (5,)))
    verdict = run_trace(SPEC, Leaks, FLOAT32_8, steps)

    assert [breach.property for breach in verdict.breaches] == ["READ-2"]
    assert "It is right where the values of slots that no sequence owns are zero" in verdict.message("READ-2")


@pytest.mark.parametrize("habit", HABITS)
def test_after_a_step_every_slot_that_nobody_owns_holds_poison(habit: type[SharingCache]) -> None:
    made: list[SharingCache] = []

    def make() -> SharingCache:
        made.append(habit())
        return made[0]

    verdict = run_trace(SPEC, make, FLOAT32_8, two_sequences(Append("B", (4, 5)), Free("A")))
    held = {slot for seq in verdict.state.live.values() for slot in seq.slots[: seq.computed]}
    held |= {block * 2 + offset for block in verdict.state.cached or () for offset in range(2)}
    poisoned = made[0].kv.isnan().flatten(4).all(4).all(1).all(0).flatten()

    assert verdict.breaches == []
    assert len(held) >= 5
    assert set(poisoned.nonzero().flatten().tolist()) == set(range(16)) - held
