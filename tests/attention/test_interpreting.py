"""The interpreter replaces the language once a launch, and not in each call of a device function; the results are the same."""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import pytest
import torch

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("kernels are compiled in this process, so nothing is interpreted", allow_module_level=True)

import triton
import triton.language as tl
from triton.runtime import interpreter

from properties.attention.interpreting import language_replaced_once


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


def test_an_interpreter_of_another_make_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(interpreter, "_LangPatchScope")
    before = interpreter._patch_lang
    with language_replaced_once():
        assert interpreter._patch_lang is before
