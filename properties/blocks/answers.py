"""The one reader of what adapters return: whole numbers, truth values, copies, names. What is something else is refused.

Accepted are lists, tuples, other sequences and iterators of Python's, numpy's and torch's whole numbers, read to a bound:
an adapter may return anything, an endless generator included. Every refusal names the method, the value and what is expected.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping, Set, Sized
from functools import partial
from itertools import islice
from operator import index
from typing import Any, TypeVar

from properties.blame import shown
from properties.contract import AdapterError
from properties.protocol import Copy

MOST_ENTRIES = 1 << 28
"""Entries of an answer that says its length; more blocks or slots than any pool has."""
MOST_READ = 1 << 22
"""Entries of an answer that does not, since every one must be read to know that it ends."""

WHOLE = "a whole number"
NUMBERS = "a sequence of whole numbers"
COPIES = "a list of Copy(src, dst, ...)"
PAIRS = "(position, slot) pairs"
NAMES = "the names of the requests that have not ended"

LARGEST = (1 << 63) - 1
"""What any id, count or length fits into, in every language a target may be written in."""

_INTS, _NAMES = frozenset({int}), frozenset({str})
T = TypeVar("T")


class WrongKind(AdapterError):
    """An answer of the wrong kind; `why` says what is wrong with it where its type does not."""

    def __init__(self, method: str, answer: object, expected: str, why: str = "") -> None:
        what = f"{method} returned {shown(answer)} ({type(answer).__name__})"
        super().__init__(f"{what}: {why}" if why else what, f"return {expected}")
        self.why = why


def whole(method: str, answer: Any, expected: str = WHOLE) -> int:
    """An answer as a whole number. Raises `AdapterError`."""
    if type(answer) is int and -LARGEST <= answer <= LARGEST:
        return answer
    found = _plain(answer)
    if isinstance(found, bool):
        raise WrongKind(method, answer, expected, "a truth value is no number")
    try:
        number = index(found)
    except TypeError:
        raise WrongKind(method, answer, expected) from None
    if not -LARGEST <= number <= LARGEST:
        raise WrongKind(method, answer, expected, "it does not fit 64 bits")
    return number


def truth(method: str, answer: Any) -> bool:
    """An answer as yes or no. Raises `AdapterError`."""
    found = _plain(answer)
    if found is True or found is False:
        return found
    raise WrongKind(method, answer, "True or False")


def are_plain(answer: list[Any] | tuple[Any, ...]) -> bool:
    """Whether every entry is one of Python's own whole numbers and fits 64 bits: the usual answer, told quickly."""
    if not _INTS.issuperset(map(type, answer)):
        return False
    try:
        array("q", answer)
    except OverflowError:
        return False
    return True


def ids(method: str, answer: Any) -> list[int]:
    """As `wholes`, for an answer whose order says nothing."""
    return wholes(method, answer, ordered=False)


def wholes(method: str, answer: Any, *, ordered: bool = True, expected: str = NUMBERS) -> list[int]:
    """An answer as a new list of whole numbers. `ordered`: a set says nothing. Raises `AdapterError`."""
    if (type(answer) is tuple or type(answer) is list) and are_plain(answer):
        return list(answer)
    if ordered and isinstance(answer, Set):
        raise WrongKind(method, answer, expected, "a set has no order")
    return each(method, answer, partial(whole, method), expected)


def listed(method: str, answer: Any, expected: str) -> list[Any]:
    """The entries of any answer that has some, none of them looked at. Raises `AdapterError`."""
    answer_, found = answer, _plain(answer)
    if isinstance(found, str | bytes | bytearray | Mapping) or not isinstance(found, Iterable):
        raise WrongKind(method, answer_, expected)
    if isinstance(found, Sized):
        if len(found) > MOST_ENTRIES:
            raise WrongKind(method, answer_, expected, f"{len(found):,} entries, at most {MOST_ENTRIES:,} are read")
        return list(islice(found, MOST_ENTRIES))
    items = list(islice(found, MOST_READ + 1))
    if len(items) > MOST_READ:
        raise WrongKind(method, answer_, expected, f"it does not end within {MOST_READ:,} entries")
    return items


def _plain(answer: Any) -> Any:
    """A numpy array, a tensor or a scalar of either as Python's own values; anything else as it is."""
    return answer.tolist() if hasattr(answer, "dtype") and callable(getattr(answer, "tolist", None)) else answer


def each(method: str, answer: Any, read: Callable[[Any], T], expected: str) -> list[T]:
    """Each entry of an answer as `read` makes it. Raises `AdapterError` where that is no `read`able one."""
    found = []
    for number, item in enumerate(listed(method, answer, expected)):
        try:
            found.append(read(item))
        except (TypeError, ValueError, WrongKind) as error:
            why = getattr(error, "why", "")
            what = f"its entry {number} is {shown(item)} ({type(item).__name__}){why and f', and {why}'}"
            raise WrongKind(method, answer, expected, what) from None
    return found


def copies(method: str, answer: Any) -> list[Copy]:
    """An answer as copies to perform. Raises `AdapterError`."""
    if (type(answer) is list or type(answer) is tuple) and not answer:
        return []
    return each(method, answer, lambda item: _copy(method, Copy(*item)), COPIES)


def _copy(method: str, copy: Copy) -> Copy:
    for space in (copy.src_space, copy.dst_space):
        if space not in ("device", "host"):
            raise AdapterError(
                f"{method} returned a copy in the unknown memory space {shown(space)}", 'use "device" or "host"'
            )
    if copy.unit not in ("block", "slot"):
        raise AdapterError(f"{method} returned a copy of the unknown unit {shown(copy.unit)}", 'use "block" or "slot"')
    return copy._replace(src=whole(method, copy.src), dst=whole(method, copy.dst))


def pairs(method: str, answer: Any) -> list[tuple[int, int]]:
    """An answer as pairs of whole numbers. Raises `AdapterError`."""

    def pair(item: Any) -> tuple[int, int]:
        first, second = item
        return whole(method, first, PAIRS), whole(method, second, PAIRS)

    return each(method, answer, pair, PAIRS)


def names(method: str, answer: Any) -> list[str]:
    """An answer as names. Raises `AdapterError`."""
    if (type(answer) is list or type(answer) is tuple) and _NAMES.issuperset(map(type, answer)):
        return list(answer)

    def name(item: Any) -> str:
        if not isinstance(item, str):
            raise TypeError
        return item

    return each(method, answer, name, NAMES)
