"""What adapters return and raise: read with care, refused in one clear line, and never more than the adapter's own fault."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy
import pytest
import torch

from properties.blame import said, shown
from properties.blocks import answers
from properties.blocks.operations import Admit, Append, Drain, Fork, Free, FreeAgain, Geometry, Lookup, Truncate
from properties.blocks.spec import SPEC
from properties.contract import AdapterError
from properties.protocol import Copy
from properties.targets.ours import OurBlocks
from properties.trial import EVERYTHING, Verdict, run_trace

GEOMETRY = Geometry(block_size=2, num_blocks=6)
TRACE = (
    Admit("A", (0, 1, 2)),
    Lookup((0, 1, 2)),
    Fork("A", "B"),
    Append("B", (1,)),
    Truncate("B", 2),
    Free("A"),
    FreeAgain("A"),
    Drain(),
)


def judged(make: Callable[[], Any]) -> Verdict:
    return run_trace(SPEC, make, GEOMETRY, TRACE, tolerate=EVERYTHING)


def answering(method: str, change: Callable[[Any], Any]) -> type[OurBlocks]:
    """Our manager, one method of which returns something else."""

    def changed(self: Any, *args: Any, **kwargs: Any) -> Any:
        return change(getattr(super(made, self), method)(*args, **kwargs))

    made = type("Changed", (OurBlocks,), {method: changed})
    return made


class Endless(Sequence[int]):
    """Says that it has more entries than any memory."""

    def __len__(self) -> int:
        return 1 << 40

    def __getitem__(self, index: Any) -> Any:
        return 0


class Shy:
    """Nothing can be had of it, not even its `repr`."""

    def __repr__(self) -> str:
        raise ValueError("not for you")

    __str__ = __repr__


SOUND: list[tuple[str, Callable[[Any], Any]]] = [
    ("slots", list),
    ("slots", iter),
    ("slots", numpy.array),
    ("slots", torch.tensor),
    ("slots", lambda slots: [numpy.int64(slot) for slot in slots]),
    ("slots", lambda slots: [torch.tensor(slot) for slot in slots]),
    ("slots", lambda slots: (slot for slot in slots)),
    ("table", torch.tensor),
    ("admit", numpy.int32),
    ("admit", torch.tensor),
    ("ref_count", numpy.int16),
    ("free_blocks", frozenset),
    ("cached_blocks", iter),
    ("can_admit", numpy.bool_),
    ("can_append", torch.tensor),
    ("copies", tuple),
    ("copies", lambda copies: (tuple(copy) for copy in copies)),
    ("copies", lambda copies: [Copy(numpy.int64(c.src), torch.tensor(c.dst)) for c in copies]),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("method", "change"), SOUND)
def test_numbers_of_any_library_are_numbers(method: str, change: Callable[[Any], Any]) -> None:
    verdict = judged(answering(method, change))

    assert (verdict.adapter, verdict.breaches) == (None, [])
    assert len(verdict.applied) == len(TRACE)


WRONG: list[tuple[str, Callable[[Any], Any], str]] = [
    ("slots", lambda slots: None, "slots returned None (NoneType). Remedy: return a sequence of whole numbers"),
    ("slots", str, "slots returned '(0, 1, 2, 3)' (str)"),
    ("slots", bytes, r"slots returned b'\x00\x01\x02\x03' (bytes)"),
    ("slots", set, "slots returned {0, 1, 2, 3} (set): a set has no order"),
    ("slots", lambda slots: dict.fromkeys(slots, 0), "(dict)"),
    ("slots", lambda slots: [True, *slots[1:]], "its entry 0 is True (bool)"),
    ("slots", lambda slots: [slots], "its entry 0 is (0, 1, 2, 3) (tuple)"),
    ("slots", lambda slots: [*slots[:1], 1.0], "its entry 1 is 1.0 (float)"),
    ("slots", lambda slots: [*slots[:1], Shy()], "its entry 1 is <Shy"),
    ("slots", lambda slots: Shy(), "slots returned <Shy"),
    ("slots", lambda slots: 7, "slots returned 7 (int)"),
    ("slots", lambda slots: torch.tensor(7), "slots returned tensor(7) (Tensor)"),
    ("slots", lambda slots: torch.ones(2), "its entry 0 is 1.0 (float)"),
    ("slots", lambda slots: torch.ones(2, 2, dtype=torch.long), "its entry 0 is [1, 1] (list)"),
    ("slots", lambda slots: numpy.ones(2, dtype=bool), "its entry 0 is True (bool)"),
    ("slots", lambda slots: itertools.count(), "it does not end within 4,194,304 entries"),
    (
        "slots",
        lambda slots: [10**5000, *slots[1:]],
        "its entry 0 is <int that cannot be shown> (int), and it does not fit 64 bits",
    ),
    ("slots", lambda slots: range(1 << 40), "1,099,511,627,776 entries, at most 268,435,456 are read"),
    ("slots", lambda slots: Endless(), "1,099,511,627,776 entries"),
    ("table", set, "a set has no order"),
    ("table", lambda table: dict(enumerate(table)), "table returned {0: 0, 1: 1} (dict)"),
    ("cached_blocks", lambda blocks: dict(enumerate(blocks)), "cached_blocks returned {"),
    ("free_blocks", len, "free_blocks returned 6 (int)"),
    ("admit", lambda hits: None, "admit returned None (NoneType). Remedy: return a whole number"),
    ("admit", bool, "a truth value is no number"),
    ("admit", lambda hits: [hits], "admit returned [0] (list)"),
    ("admit", lambda hits: torch.tensor([1, 2]), "(Tensor)"),
    ("admit", lambda hits: torch.tensor(True), "a truth value is no number"),
    ("admit", lambda hits: 10**5000, "it does not fit 64 bits"),
    ("lookup", lambda hits: -1, "lookup returned -1 of 3 tokens"),
    ("can_admit", lambda yes: 1, "can_admit returned 1 (int). Remedy: return True or False"),
    ("can_admit", lambda yes: numpy.array([True]), "(ndarray)"),
    ("copies", lambda copies: None, "copies returned None (NoneType). Remedy: return a list of Copy"),
    ("copies", lambda copies: itertools.repeat(Copy(0, 1)), "does not end within"),
    ("copies", lambda copies: [(0,)], "its entry 0 is (0,) (tuple)"),
    ("copies", lambda copies: [5], "its entry 0 is 5 (int)"),
    ("copies", lambda copies: [Copy("0", 1)], "its entry 0 is Copy(src='0'"),  # type: ignore[arg-type]
    ("copies", lambda copies: [Copy(0, 1, "disk")], "unknown memory space"),  # type: ignore[arg-type]
    ("copies", lambda copies: [Copy(0, 1, unit="page")], "unknown unit"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("method", "change", "says"), WRONG)
def test_anything_else_is_refused_in_words(method: str, change: Callable[[Any], Any], says: str) -> None:
    verdict = judged(answering(method, change))

    assert says in str(verdict.adapter)
    assert f"{method} returned" in str(verdict.adapter) or f"{method}(" in str(verdict.adapter)
    assert "Remedy: " in str(verdict.adapter)
    assert len(str(verdict.adapter)) < 400


def test_pairs_of_another_kind() -> None:
    assert answers.pairs("read_slots", [[0, numpy.int64(3)], (1, 4)]) == [(0, 3), (1, 4)]
    with pytest.raises(AdapterError, match=r"read_slots returned \[\(0, 1, 2\)\] \(list\): its entry 0"):
        answers.pairs("read_slots", [(0, 1, 2)])
    with pytest.raises(AdapterError, match=r"its entry 0 is \(0, True\) \(tuple\), and a truth value is no number"):
        answers.pairs("read_slots", [(0, True)])


def test_slots_outside_the_pool_are_a_finding_and_numbers_without_end_are_none() -> None:
    verdict = judged(answering("slots", lambda slots: [1 << 40, *slots[1:]]))

    assert verdict.adapter is None
    assert "outside the pool" in verdict.message("ALLOC-1")


def test_an_answer_that_changes_its_type_later_is_found_then() -> None:
    calls = itertools.count()
    verdict = judged(answering("slots", lambda slots: str(slots) if next(calls) == 5 else slots))

    assert "slots returned '(" in str(verdict.adapter)
    assert verdict.applied  # the first ones were fine


# ---- exceptions ------------------------------------------------------------------------------------------------------


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")

    __repr__ = __str__


EXCEPTIONS = [
    (Mute(), "Mute: (its text cannot be had: str() raised RuntimeError)"),
    (ValueError("\ud800 alone"), r"ValueError: \ud800 alone"),
    (ValueError("two\nlines\x1b[31m"), r"ValueError: two lines\x1b[31m"),
    (ValueError("long " * 1_000_000), "..."),
    (ValueError(Shy()), "cannot be had"),
    (ValueError(), "ValueError ("),
    (SystemExit(3), "SystemExit: 3"),
    (SystemExit(), "SystemExit"),
    (KeyboardInterrupt(), "KeyboardInterrupt"),
    (GeneratorExit(), "GeneratorExit"),
    (type("Stop", (BaseException,), {})("mine"), "Stop: mine"),
    (ExceptionGroup("several", [ValueError("one")]), "ExceptionGroup: several"),
]


def raising(method: str, error: BaseException) -> type[OurBlocks]:
    def raises(self: Any, *args: Any, **kwargs: Any) -> Any:
        raise error

    return type("Raises", (OurBlocks,), {method: raises})


@pytest.mark.parametrize("method", ["__init__", "open", "admit", "append", "slots", "ref_count", "table", "free"])
@pytest.mark.parametrize(("error", "says"), EXCEPTIONS, ids=[type(error).__name__ for error, _ in EXCEPTIONS])
def test_whatever_an_adapter_raises_is_one_clear_line(method: str, error: BaseException, says: str) -> None:
    verdict = judged(raising(method, error))
    text = str(verdict.adapter)

    assert says in text
    assert re.match(r"[\w()=, ]*(raised|failed)|making the adapter raised|right after open|open\(", text)
    assert len(text.splitlines()) == 1
    assert len(text) < 800
    text.encode()


class Manager:
    """An implementation that is not the adapter's own code."""

    def fails(self) -> None:
        raise SystemExit("the manager gives up")


exec(compile("def fails():\n    raise SystemExit('the manager gives up')", "manager.py", "exec"))


def test_an_implementation_that_exits_is_a_finding() -> None:
    class Exits(OurBlocks):
        def append(self, name: str, tokens: Sequence[int]) -> None:
            globals()["fails"]()

    verdict = judged(Exits)

    assert verdict.adapter is None
    assert "append raised SystemExit: the manager gives up" in verdict.message("CRASH-1")


@pytest.mark.parametrize("method", ["open", "append", "free", "fork", "truncate"])
def test_a_method_that_never_began_is_named(method: str) -> None:
    def yields(self: Any, *args: Any) -> Iterator[None]:
        yield getattr(super(made, self), method)(*args)

    async def waits(self: Any, *args: Any) -> None:
        getattr(super(made, self), method)(*args)

    for body in (yields, waits):
        made = type("NeverRuns", (OurBlocks,), {method: body})
        verdict = judged(made)

        assert f"{method} returned <" in str(verdict.adapter)
        assert "it never ran. Remedy: return when the work is done: no `yield` and no `async`" in str(verdict.adapter)


def test_an_error_in_the_middle_of_an_answer_is_an_error_of_the_call() -> None:
    def breaks_off(slots: Sequence[int]) -> Iterator[int]:
        yield slots[0]
        raise KeyError("B")

    verdict = judged(answering("slots", breaks_off))

    assert "slots raised KeyError: 'B'" in str(verdict.adapter or verdict.message("CRASH-1"))


def test_the_users_own_interrupt_still_ends_everything() -> None:
    """A signal arrives between two instructions; nothing `raise`d it."""
    import os
    import signal

    class Interrupted(OurBlocks):
        def append(self, name: str, tokens: Sequence[int]) -> None:
            os.kill(os.getpid(), signal.SIGINT)
            for _ in range(1000):
                pass

    with pytest.raises(KeyboardInterrupt):
        judged(Interrupted)


def test_values_are_shown_short_whatever_they_are() -> None:
    assert shown(list(range(1000))) == "[0, 1, 2, 3, 4, 5, 6, 7, ...]"
    assert len(shown("x" * 10**6)) < 100
    assert shown(10**100_000).startswith("<int that cannot be shown>")
    assert said(ValueError("plain")) == "ValueError: plain"
