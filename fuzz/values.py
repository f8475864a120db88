"""Option values: read, checked, and refused in one line that names the value, the limit and the remedy."""

from __future__ import annotations

import re
import stat
from pathlib import Path

from properties.contract import UsageError

LONGEST_S = 30 * 24 * 3600.0
MOST_CASES = 10**12
MOST_SEED = 2**63 - 1
_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)(s|m|h|d|)")


def seconds(text: str, option: str, *, longest_s: float = LONGEST_S) -> float:
    """A length of time, in seconds.

    >>> seconds("60s", "--time"), seconds("8h", "--time"), seconds("1h30m", "--time"), seconds("2.5", "--time")
    (60.0, 28800.0, 5400.0, 2.5)
    """
    parts = _PART.findall(text.strip().lower())
    remedy = f"give more than 0 and at most {plain_seconds(longest_s)}, for example 60s or 8h"
    if not parts or "".join(number + unit for number, unit in parts) != text.strip().lower():
        raise UsageError(f"{option} {clipped(text)!r} is no length of time: {remedy}")
    total = sum(float(number) * _UNITS[unit] for number, unit in parts)
    if not 0 < total <= longest_s:
        raise UsageError(f"{option} {clipped(text)} is out of range: {remedy}")
    return total


DEFAULT_LIMIT_S = 10.0
"""Seconds that one call may take if nobody says otherwise, and its level is none of slow calls."""
DEFAULT_LIMIT = f"{DEFAULT_LIMIT_S:g}s"


def call_limit(text: str) -> float:
    """The value of --call-limit, in seconds."""
    return seconds(text, "--call-limit", longest_s=3600.0)


def clipped(text: str, most: int = 60) -> str:
    """A value as it is shown in a message.

    >>> clipped("9" * 1000, 10)
    '9999999999... (1000 characters)'
    """
    return text if len(text) <= most else f"{text[:most]}... ({len(text)} characters)"


def whole(text: str, option: str, least: int, most: int, example: str) -> int:
    """A whole number from `least` to `most`."""
    remedy = f"give a whole number from {least} to {most}, for example {example}"
    try:
        number = int(text)
    except ValueError:
        raise UsageError(f"{option} {clipped(text)!r} is no whole number: {remedy}") from None
    if not least <= number <= most:
        raise UsageError(f"{option} {clipped(text)} is out of range: {remedy}")
    return number


def choice(text: str, option: str, choices: tuple[str, ...]) -> str:
    """One of a few words."""
    if text not in choices:
        raise UsageError(f"{option} {clipped(text)!r} is unknown: give {' or '.join(choices)}")
    return text


def existing_file(text: str, option: str) -> Path:
    """A file that can be read."""
    if not text.strip():
        raise UsageError(f"{option} is empty: give a file")
    path = Path(text)
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        raise UsageError(f"{option} {clipped(text, 200)}: no such file (looked for {path.absolute()})") from None
    except (OSError, ValueError) as error:  # a loop of links, a name too long, a folder that may not be entered
        raise UsageError(
            f"{option} {clipped(text, 200)}: {getattr(error, 'strerror', None) or error}. Give a file"
        ) from None
    if stat.S_ISDIR(mode):
        raise UsageError(f"{option} {clipped(text, 200)} is a folder: give a file")
    if not stat.S_ISREG(mode):
        raise UsageError(f"{option} {text} is no plain file: give a file")
    return path


def plain_seconds(value: float) -> str:
    """A length of time as a person writes it.

    >>> plain_seconds(75), plain_seconds(28800), plain_seconds(2.5), plain_seconds(0.05), plain_seconds(3.7e-06)
    ('1m15s', '8h', '2.5s', '0.05s', '0s')
    """
    if value < 1:
        return f"{value:.2f}".rstrip("0").rstrip(".") + "s"
    if value < 60:
        return f"{value:.3g}s"
    minutes, rest = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [(days, "d"), (hours, "h"), (minutes, "m"), (rest, "s")]
    return "".join(f"{number}{unit}" for number, unit in parts if number)


def case_path(text: str) -> Path:
    """The path of a case file, which may not be there."""
    if not text.strip():
        raise UsageError("CASE is empty: give a case file, as a campaign writes them (pagefault-out/latest/findings)")
    return Path(text)
