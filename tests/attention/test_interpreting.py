"""The interpreter replaces the language once a launch, and not in each call of a device function; the results are the same."""

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from types import FunctionType, ModuleType

import pytest
import torch

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("kernels are compiled in this process, so nothing is interpreted", allow_module_level=True)

import triton
import triton.language as tl
from triton.runtime import interpreter

from properties.attention.guarding.guard import guarded
from properties.attention.guarding.interpreting import language_replaced_once

LOAD = tl.core.load
"""As Triton is imported: what a device function replaces stays so."""


@triton.jit
def half_of(value):
    return tl.where(value > 0, value / 2, tl.zeros_like(value))


@triton.jit
def halves_kernel(numbers, target, SIZE: tl.constexpr):
    lane = tl.arange(0, SIZE)
    value = tl.load(numbers + lane)
    for _ in range(10):
        value = half_of(value) + tl.sum(value, 0)
    tl.store(target + lane, value)


@triton.jit
def products_kernel(numbers, wide: tl.int64, narrow, target, SIZE: tl.constexpr):
    number = tl.load(numbers + tl.arange(0, SIZE))
    tl.store(target + tl.arange(0, SIZE), number * wide + number * narrow)


def halves() -> torch.Tensor:
    target = torch.empty(8)
    halves_kernel[(1,)](torch.arange(-3.0, 5.0), target, 8)
    return target


def test_results_are_those_of_the_plain_interpreter() -> None:
    plain = halves()
    with language_replaced_once():
        assert torch.equal(halves(), plain)
        assert torch.equal(halves(), plain)  # what a launch replaces is undone at its end
    assert torch.equal(halves(), plain)
    assert plain.count_nonzero()


@pytest.mark.parametrize(("within", "most", "least"), [(language_replaced_once, 3, 1), (nullcontext, 99, 20)])
def test_the_language_is_looked_through_once(
    within: Callable[[], AbstractContextManager[None]], most: int, least: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    halves()  # what Triton's own library calls is replaced for good
    replaced, plain = [], interpreter._patch_lang
    monkeypatch.setattr(interpreter, "_patch_lang", lambda function: replaced.append(function) or plain(function))
    with within():
        halves()

    assert least <= len(replaced) <= most


@pytest.fixture
def replaced(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[object, str, object]]]:
    """What a launch that sees the whole language replaces: (owner, name, original)."""
    monkeypatch.setattr(tl, "load", LOAD)
    monkeypatch.setattr(tl.core, "load", LOAD)
    with language_replaced_once():
        launch = interpreter._patch_lang(function_that_sees(tl, tl.core))
        yield launch._changes
        launch.restore()


def function_that_sees(*parts: ModuleType) -> Callable[[], None]:
    return FunctionType((lambda: None).__code__, {f"part_{n}": part for n, part in enumerate(parts)})


@pytest.mark.parametrize(
    ("owner", "name"),
    [(tl, "load"), (tl.core, "load"), (tl.core.tensor, "__add__"), (tl, "reduce"), (tl.core, "reduce")],
)
def test_what_is_original_again_is_replaced_again(
    owner: object, name: str, replaced: list[tuple[object, str, object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device function replaces for good what the launch does not see, and a launch within a hook undoes what it did."""
    function = function_that_sees(tl, tl.core)
    assert not interpreter._patch_lang(function)._changes
    monkeypatch.setattr(owner, name, next(old for of, what, old in replaced if of is owner and what == name))
    again = interpreter._patch_lang(function)

    assert (owner, name) in [(of, what) for of, what, _ in again._changes]
    again.restore()


def test_a_part_that_comes_into_sight_is_replaced(
    replaced: list[tuple[object, str, object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first call of a function adds the interpreter's names to its module, `tl` among them."""
    function = function_that_sees(tl.core)
    assert not interpreter._patch_lang(function)._changes
    monkeypatch.setattr(tl, "load", next(old for of, what, old in replaced if of is tl and what == "load"))
    assert not interpreter._patch_lang(function)._changes
    function.__globals__["tl"] = tl
    again = interpreter._patch_lang(function)

    assert (tl, "load") in [(of, what) for of, what, _ in again._changes]
    again.restore()


def test_where_the_language_is_replaced_between_launches_nothing_is_changed() -> None:
    """What is replaced can then not be told from what is not."""
    before = interpreter._patch_lang
    for_good = before(function_that_sees(tl))
    with language_replaced_once():
        assert interpreter._patch_lang is before
    for_good.restore()


def test_an_interpreter_of_another_make_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(interpreter, "_LangPatchScope")
    before = interpreter._patch_lang
    with language_replaced_once():
        assert interpreter._patch_lang is before


@pytest.mark.parametrize("by_name", [False, True])
def test_a_number_that_is_annotated_so_has_64_bits_as_when_it_is_compiled(by_name: bool) -> None:
    numbers, target = torch.tensor([3, 2**20], dtype=torch.int32), torch.zeros(2, dtype=torch.int64)

    with guarded():
        if by_name:
            products_kernel[(1,)](numbers, narrow=1, SIZE=2, target=target, wide=2**20)
        else:
            products_kernel[(1,)](numbers, 2**20, 1, target, 2)
        assert target.tolist() == [3 * 2**20 + 3, 2**40 + 2**20]
        with pytest.raises(interpreter.InterpreterError, match="int32 overflow"):
            products_kernel[(1,)](numbers, 1, 2**20, target, 2)
