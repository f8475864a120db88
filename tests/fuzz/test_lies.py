"""What `check-target` says of an adapter that declares or offers what it does not do."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fuzz import check, check_repeat, messages
from properties.attention.targets.plain import PlainTorch
from properties.blocks.operations import Geometry
from properties.blocks.spec import SPEC
from properties.contract import Level
from properties.protocol import Copy
from properties.specs import spec_of
from properties.targets import Target
from properties.targets.engine_ours import OurEngine
from properties.targets.ours import OurBlocks
from tests.targets import zoo


def declares(make: type[Any], **changes: object) -> type[Any]:
    return type(make.__name__, (make,), {"capabilities": msgspec.structs.replace(make.capabilities, **changes)})


def without(make: type[Any], *names: str) -> type[Any]:
    return type(make.__name__, (make,), dict.fromkeys(names))


@pytest.fixture(autouse=True)
def _few_cases_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of these designs, which reach every state early."""
    monkeypatch.setattr(check, "ENOUGH_CASES", 50)


def used(make: type[Any], num_cases: int = 60, level: Level = "blocks") -> messages.Checked:
    """The part of `check-target` that uses the adapter, in this process; for so many cases, not for a time."""
    frames: list[bytes] = []
    check._use(
        Target("mine", level, make),
        spec_of(level),
        lambda number: number < num_cases,
        check.Whereabouts(),
        frames.append,
    )
    return msgspec.json.decode(frames[-1], type=messages.Checked)


class NoWindow(OurBlocks):
    capabilities = msgspec.structs.replace(OurBlocks.capabilities, promises=frozenset())

    def open(self, config: Geometry) -> None:
        super().open(msgspec.structs.replace(config, window=None, num_sinks=0))


class NeverReportsCopies(zoo.CopiesEverythingAtTheFork):
    """It shares nothing and computes the child again, and offers copies() all the same."""

    def copies(self) -> list[Copy]:
        return []


class NeverForks(zoo.CopiesOnWrite):
    def fork(self, parent: str, child: str) -> None:
        raise zoo.NoRoom("forks are not supported")


class Tolerant(OurBlocks):
    """A free of an unknown name does nothing."""

    def free(self, name: str) -> None:
        if name in self.manager._sequences:
            super().free(name)


class Moody(OurBlocks):
    """It does nothing for names before N."""

    def free(self, name: str) -> None:
        if name in self.manager._sequences or name > "N":
            super().free(name)


class Small(OurBlocks):
    def open(self, config: Geometry) -> None:
        if config.num_blocks > 50:
            raise ValueError("at most 50 blocks")
        super().open(config)


class FewSizes(OurBlocks):
    def open(self, config: Geometry) -> None:
        if config.block_size == 256:
            raise ValueError("blocks of 256 are not supported")
        super().open(config)


@pytest.mark.parametrize(
    ("make", "problem", "remedy"),
    [
        (declares(zoo.NoCache, prefix_cache=True), "never a prefix hit", "declare prefix_cache=False"),
        (NeverReportsCopies, "never a copy on write", "or leave copies out"),
        (NeverForks, "never a fork", "leave fork out"),
        (Tolerant, "frees of sequences that are not live were accepted", "declare unknown_free='ignored'"),
        (declares(OurBlocks, unknown_free="ignored"), "were refused", "declare unknown_free='refused'"),
        (Moody, "frees of sequences that are not live were accepted", "declare unknown_free=None: it does either"),
        (Small, "a pool of 64: open raised ValueError: at most 50 blocks", "declare in capabilities the block_sizes"),
        (FewSizes, "with blocks of 256", "declare in capabilities the block_sizes"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_lie_is_a_problem(make: type[Any], problem: str, remedy: str) -> None:
    found = [fix for what, fix in used(make).problems if problem in what]

    assert found
    assert remedy in found[0]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (without(zoo.CopiesOnWrite, "copies"), "fork is offered without copies()"),
        (without(OurBlocks, "copies"), "swap_out, swap_in without copies: swap_out is never called"),
        (zoo.NoCache, "allocate without computed: allocate is never called"),
        (NoWindow, "window=True is declared, and slots() never said -1"),
        (declares(zoo.Sound, recomputes_hits=True), "no hit covered a whole prompt"),
        (declares(zoo.Sound, eviction="released"), "judged only with the promise EVICT-2P"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_what_is_only_useless_is_a_note(make: type[Any], says: str) -> None:
    assert any(says in note for note in used(make).notes)


@pytest.mark.parametrize("make", [OurBlocks, zoo.CopiesOnWrite, zoo.Slides], ids=lambda make: make.__name__)
def test_nothing_is_said_of_sound_ones(make: type[Any]) -> None:
    checked = used(make)

    assert checked.problems == ()
    assert not [note for note in checked.notes if "declared" in note or "was never" in note or "not seen" in note]


@pytest.mark.parametrize(("make", "enough"), [(OurEngine, 50), (PlainTorch, 10)], ids=["OurEngine", "PlainTorch"])
def test_nothing_is_said_of_their_windows_either(make: Any, enough: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine's window releases slots under another name, and a kernel's none."""
    monkeypatch.setattr(check, "ENOUGH_CASES", enough)

    checked = used(make, enough, make.level)

    assert checked.problems == ()
    assert not [note for note in checked.notes if "declared" in note]


def test_a_few_cases_say_nothing() -> None:
    checked = used(declares(zoo.NoCache, prefix_cache=True), 3)

    assert checked.problems == ()
    assert any("not seen in" in note and "a prefix hit" in note for note in checked.notes)


def test_a_slow_adapter_is_not_repeated_for_minutes() -> None:
    target = Target("mine", "blocks", OurBlocks)
    hurried = check_repeat.digests(target, SPEC, list(range(20)), 5.0, check.Whereabouts(), 0.0)

    assert len(hurried) == check_repeat.LEAST_REPEATED


def test_swaps_without_copies_are_not_driven() -> None:
    """The copies say what came back; without them everything that did would count as never written."""
    found = SPEC.maker(
        lambda n: 0, Geometry(block_size=1, num_blocks=3), OurBlocks.capabilities, frozenset({"swap_out"})
    )

    assert "swap_out" not in {kind.__struct_config__.tag for kind in found.kinds}
    assert "SWAP-1" not in SPEC.applicable(OurBlocks.capabilities, frozenset({"swap_out", "swap_in"}))
    assert "SWAP-1" in SPEC.applicable(OurBlocks.capabilities, frozenset({"swap_out", "swap_in", "copies"}))


class Explodes(OurBlocks):
    @property
    def lookup(self) -> Any:  # type: ignore[override]
        raise SystemExit(70)


@pytest.mark.parametrize(
    ("make", "problem"),
    [(Explodes, "looking at its attributes raised SystemExit: 70"), (lambda: None, "NoneType has no method open")],
)
def test_an_adapter_that_cannot_be_looked_at(make: Any, problem: str) -> None:
    frames: list[bytes] = []
    check._static(Target("mine", "blocks", make), SPEC, frames.append)
    checked = msgspec.json.decode(frames[-1], type=messages.Checked)

    assert any(problem in what for what, _ in checked.problems)
