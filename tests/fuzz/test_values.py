"""Option values: what is read, and what is refused in one line with the value, the limit and the remedy."""

from __future__ import annotations

import doctest

import pytest

from fuzz import isolate, loop, outcome, progress, values
from fuzz.as_test import as_python
from properties.contract import UsageError


@pytest.mark.parametrize("text", ["0", "0s", "-5s", "abc", "", "5x", "1h 30m", "31d", "1e9", "nan", "inf", "s", "--"])
def test_lengths_of_time_that_are_refused(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        values.seconds(text, "--time")

    assert repr(text) in str(caught.value) or f"--time {text}" in str(caught.value)
    assert "at most 30d, for example 60s or 8h" in str(caught.value)


@pytest.mark.parametrize("text", ["0", "-1", "257", "two", "1.5", "", "99999999999999999999"])
def test_whole_numbers_that_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"from 1 to 256, for example 2"):
        values.whole(text, "--workers", 1, 256, "2")


def test_the_limits_themselves_are_taken() -> None:
    assert values.whole("1", "--workers", 1, 256, "2") == 1
    assert values.whole("256", "--workers", 1, 256, "2") == 256
    assert values.seconds("30d", "--time") == values.LONGEST_S


@pytest.mark.parametrize("module", [values, isolate, loop, outcome, progress])
def test_examples_of_docstrings(module: object) -> None:
    result = doctest.testmod(module)  # type: ignore[arg-type]

    assert result.attempted > 0
    assert result.failed == 0


def test_a_struct_as_python_leaves_defaults_out() -> None:
    from properties.blocks.operations import Admit, Geometry

    assert as_python(Admit("A", (0, 1))) == "Admit(name='A', tokens=(0, 1))"
    assert eval(as_python(Geometry(block_size=2, num_blocks=3, window=4))) == Geometry(
        block_size=2, num_blocks=3, window=4
    )


@pytest.mark.parametrize("elapsed_s", [0.2 * number for number in range(200)])
def test_progress_never_shows_more_time_than_there_is(elapsed_s: float) -> None:
    shown = progress.time_in_words(elapsed_s, 15.0)
    gone, _, total = shown.partition(" of ")

    assert shown.startswith("15s are up, confirming for ") or (total == "15s" and values.seconds(gone, "x") <= 15)
    assert ("are up" in shown) == (elapsed_s > 15.5)
