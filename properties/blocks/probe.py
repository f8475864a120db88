"""Typed access to an adapter: every answer is checked before the referee believes it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import index
from typing import Any, NoReturn

from properties.blame import is_adapter_fault, last_lines
from properties.contract import AdapterError
from properties.protocol import REQUIRED, Capabilities, Copy, missing, offered


class Crashed(Exception):
    """The implementation raised something undeclared on a legal call. `args[0]` is the explanation in words."""


class Refused(Exception):
    """The implementation refused with one of its declared exceptions."""


class Probe:
    """Calls an adapter. Raises `AdapterError` where the adapter breaks the protocol, `Refused` and `Crashed` else."""

    def __init__(self, target: Any) -> None:
        self.target = target
        lacks = missing(target)
        if lacks:
            raise AdapterError(
                f"{type(target).__name__} lacks {', '.join(lacks)}",
                f"a blocks target needs {', '.join(REQUIRED)}; `pagefault new-target blocks FILE` writes a template",
            )
        capabilities = getattr(target, "capabilities", None)
        if not isinstance(capabilities, Capabilities):
            raise AdapterError(
                f"{type(target).__name__}.capabilities is {type(capabilities).__name__}",
                "set `capabilities = Capabilities(...)` from properties.protocol on the class",
            )
        self.capabilities: Capabilities = capabilities
        self.offers = offered(target)
        self.refusals = self.capabilities.refusals
        self.raised: tuple[type[BaseException], ...] = (Exception, *self.refusals)

    def call(self, method: str, *args: object, **kwargs: object) -> Any:
        """Call a method on legal use. Raises `Refused` for a declared refusal, `Crashed` or `AdapterError` else."""
        try:
            return getattr(self.target, method)(*args, **kwargs)
        except self.raised as error:
            self.blame(method, error)

    def blame(self, method: str, error: BaseException) -> NoReturn:
        """Raise what an exception of that method means: `Refused`, `Crashed` or `AdapterError`."""
        if isinstance(error, self.refusals):
            raise Refused(f"{type(error).__name__}: {error}") from error
        if isinstance(error, AdapterError):
            raise error
        what = f"{method} raised {type(error).__name__}: {error} ({last_lines(error)})"
        if is_adapter_fault(error, self.target):
            raise AdapterError(
                f"{what}, in the adapter's own code, on legal use",
                "if this means 'no room', list the exception in capabilities.refusals; else mend the adapter",
            ) from error
        raise Crashed(what) from error

    def attempt(self, method: str, *args: object) -> BaseException | None:
        """Call a method that may refuse in any way: what it raised, None where it was accepted."""
        try:
            getattr(self.target, method)(*args)
        except self.raised as error:
            return error
        return None

    def number(self, method: str, *args: object, **kwargs: object) -> int:
        """Call a method whose answer is a whole number."""
        answer = self.call(method, *args, **kwargs)
        if type(answer) is int:
            return answer
        return _whole(method, answer)

    def truth(self, method: str, *args: object, **kwargs: object) -> bool:
        """Call a method whose answer is yes or no."""
        answer = self.call(method, *args, **kwargs)
        if answer is True or answer is False:
            return answer
        raise _wrong(method, answer, "True or False")

    def ids(self, method: str, *args: object) -> list[int]:
        """Call a method whose answer is a collection of whole numbers."""
        answer = self.call(method, *args)
        _check_iterable(method, answer)
        try:
            return list(map(index, answer))
        except TypeError:
            raise _wrong(method, answer, "a sequence of whole numbers") from None

    def whole(self, method: str, answer: Any) -> tuple[int, ...]:
        """An answer as whole numbers. Raises `AdapterError` where it is something else."""
        return _whole_all(method, answer)

    def ref_counts(self, num_blocks: int) -> list[int]:
        """The stored reference count of every block."""
        count = self.target.ref_count
        try:
            answer = [count(block) for block in range(num_blocks)]
        except self.raised as error:
            self.blame("ref_count", error)
        return answer if set(map(type, answer)) <= {int} else list(_whole_all("ref_count", answer))

    def slots(self, name: str, known: Sequence[int]) -> Sequence[int]:
        """The slots of a sequence; the same object as `known` where nothing changed."""
        try:
            answer = self.target.slots(name)
        except self.raised as error:
            self.blame("slots", error)
        if answer is known or (type(answer) is tuple and answer == known):
            return known
        slots = _whole_all("slots", answer)
        return known if slots == known else slots

    def copies(self) -> list[Copy]:
        """Copies to perform now; none where the target does not offer them."""
        if "copies" not in self.offers:
            return []
        answer = self.call("copies")
        try:
            return [Copy(*item) for item in answer] if answer else []
        except TypeError:
            raise _wrong("copies", answer, "a list of Copy(src, dst, ...)") from None


def _wrong(method: str, answer: object, expected: str) -> AdapterError:
    return AdapterError(f"{method} returned {answer!r:.80} ({type(answer).__name__})", f"return {expected}")


def _whole(method: str, answer: object) -> int:
    if isinstance(answer, bool):
        raise _wrong(method, answer, "a whole number, not a truth value")
    try:
        return index(answer)  # type: ignore[arg-type]
    except TypeError:
        raise _wrong(method, answer, "a whole number") from None


def _check_iterable(method: str, answer: object) -> None:
    if type(answer) is list or type(answer) is tuple:
        return  # the usual answers, without the slow question for an abstract base class
    if isinstance(answer, str | bytes) or not isinstance(answer, Iterable):
        raise _wrong(method, answer, "a sequence of whole numbers")


def _whole_all(method: str, answer: Any) -> tuple[int, ...]:
    _check_iterable(method, answer)
    try:
        return tuple(map(index, answer))
    except TypeError:
        raise _wrong(method, answer, "a sequence of whole numbers") from None
