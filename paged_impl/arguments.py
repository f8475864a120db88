"""Checks of arguments that any caller may get wrong: a ValueError with the name, the value and the limit."""

from __future__ import annotations

from numbers import Integral, Real

MOST = 2**31 - 1
"""Block ids and lengths are 32 bits wide in the tables that kernels read."""


def require_integer(name: str, value: object) -> None:
    """Raise ValueError unless the value is a whole number (True is none)."""
    if type(value) is not int and (isinstance(value, bool) or not isinstance(value, Integral)):
        raise ValueError(f"{name}={value!r}: expected a whole number")


def require_between(name: str, value: int, least: int, most: int = MOST) -> None:
    """Raise ValueError unless the value is a whole number from `least` to `most`."""
    require_integer(name, value)
    if value < least:
        raise ValueError(f"{name}={value} is too small: give at least {least}")
    if value > most:
        raise ValueError(f"{name}={value} is too large: give at most {most}")


def is_below(value: object, most: float) -> bool:
    """Whether it is a number whose size is below `most`. NaN is not."""
    size: object = abs(value) if isinstance(value, Real) else most
    return size < most  # type: ignore[operator]
