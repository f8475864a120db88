"""Typed access to an adapter: every answer is checked before the referee believes it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any, NoReturn, TypeVar

from properties.blame import is_adapter_fault, last_lines, passes, said
from properties.blocks import answers
from properties.contract import FILL_IN, AdapterError
from properties.protocol import REQUIRED, Capabilities, Copy, missing, offered

T = TypeVar("T")

_NOT_BEGUN = (GeneratorType, CoroutineType, AsyncGeneratorType)
"""What a method returns whose body has a `yield`, or that is `async`: nothing of it has been done."""
_REFUSAL = "if this means 'no room', list the exception in capabilities.refusals; else mend the adapter"
_OPEN = "declare in capabilities the block_sizes and num_blocks that it accepts, or mend open"


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

    def call(self, method: str, *args: object, **kwargs: object) -> Any:
        """Call a method on legal use. Raises `Refused` for a declared refusal, `Crashed` or `AdapterError` else."""
        try:
            answer = getattr(self.target, method)(*args, **kwargs)
        except BaseException as error:
            self.blame(method, error)
        if answer is not None and isinstance(answer, _NOT_BEGUN):
            self._never_began(method, answer)
        return answer

    def _never_began(self, method: str, answer: Any) -> NoReturn:
        if not isinstance(answer, AsyncGeneratorType):
            answer.close()  # or Python complains when it is forgotten
        raise answers.WrongKind(method, answer, "when the work is done: no `yield` and no `async`", "it never ran")

    def blame(self, method: str, error: BaseException) -> NoReturn:
        """Raise what an exception of that method means: `Refused`, `Crashed` or `AdapterError`.

        `sys.exit()` and its like in a target are exceptions as any other; what is not the target's doing passes.
        """
        passes(error)
        if isinstance(error, self.refusals):
            raise Refused(said(error)) from error
        if isinstance(error, AdapterError):
            raise error
        what = f"{method} raised {said(error)} ({last_lines(error)})"
        blank = isinstance(error, NotImplementedError)
        if blank and method == "open":
            raise AdapterError(what, FILL_IN) from error  # wherever it was raised: nothing is there to be tested
        if is_adapter_fault(error, self.target):
            raise AdapterError(
                f"{what}, in the adapter's own code, on legal use",
                FILL_IN if blank else _OPEN if method == "open" else _REFUSAL,
            ) from error
        raise Crashed(what) from error

    def attempt(self, method: str, *args: object) -> BaseException | None:
        """Call a method that may refuse in any way: what it raised, None where it was accepted."""
        try:
            getattr(self.target, method)(*args)
        except BaseException as error:
            passes(error)
            return error
        return None

    def read(self, method: str, reader: Callable[..., T], *args: object, **kwargs: object) -> T:
        """Call a method and read its answer. Raises as `call`, and `AdapterError` for an answer of the wrong kind."""
        try:
            return reader(method, getattr(self.target, method)(*args, **kwargs))
        except BaseException as error:
            self.blame(method, error)

    def number(self, method: str, *args: object, **kwargs: object) -> int:
        """Call a method whose answer is a whole number."""
        return self.read(method, answers.whole, *args, **kwargs)

    def truth(self, method: str, *args: object, **kwargs: object) -> bool:
        """Call a method whose answer is yes or no."""
        return self.read(method, answers.truth, *args, **kwargs)

    def ids(self, method: str, *args: object) -> list[int]:
        """Call a method whose answer is a collection of whole numbers, in any order."""
        return self.read(method, answers.ids, *args)

    def whole(self, method: str, answer: Any) -> tuple[int, ...]:
        """An answer that was had already, as whole numbers. Raises `AdapterError` where it is something else."""
        return tuple(answers.wholes(method, answer))

    def ref_counts(self, num_blocks: int, usable: Collection[int]) -> list[int]:
        """The stored reference count of every block; 0 for those that are not usable, which are not asked for."""
        count = self.target.ref_count
        try:
            answer = [count(block) if block in usable else 0 for block in range(num_blocks)]
            return answer if answers.are_plain(answer) else [answers.whole("ref_count", item) for item in answer]
        except BaseException as error:
            self.blame("ref_count", error)

    def slots(self, name: str, known: Sequence[int]) -> Sequence[int]:
        """The slots of a sequence; the same object as `known` where nothing changed."""
        try:
            answer = self.target.slots(name)
            if answer is known or (type(answer) is tuple and answer == known):
                return known
            slots = tuple(answers.wholes("slots", answer))
        except BaseException as error:
            self.blame("slots", error)
        return known if slots == known else slots

    def table(self, name: str, known: tuple[int, ...] | None) -> tuple[int, ...]:
        """The block table of a sequence; the same object as `known` where nothing changed."""
        try:
            answer = self.target.table(name)
            if type(answer) is list:
                answer = tuple(answer)
            if type(answer) is tuple and answer == known:
                return known
            return tuple(answers.wholes("table", answer))
        except BaseException as error:
            self.blame("table", error)

    def copies(self) -> list[Copy]:
        """Copies to perform now; none where the target does not offer them."""
        return self.read("copies", answers.copies) if "copies" in self.offers else []

    def read_pairs(self, name: str) -> list[tuple[int, int]]:
        """The (position, slot) pairs that attention reads."""
        return self.read("read_slots", answers.pairs, name)
