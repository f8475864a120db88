"""Triton's interpreter without the work that it does again and again: the same results in three quarters of the time.

Each call of a device function, and a launch makes thousands, looks through the whole of `triton.language` for what is to
be interpreted; but for the first call of a launch there is nothing left to find (seen in Triton 3.6.0, 3.7.1 and 3.9.0).
Where the internals are not as expected nothing is changed.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any


@contextmanager
def language_replaced_once() -> Iterator[None]:
    """Within the block a launch replaces the functions of the language once. Not thread-safe, like the interpreter."""
    from triton.runtime import interpreter

    saved = getattr(interpreter, "_patch_lang", None)
    if saved is None or not _as_expected(interpreter):
        yield
        return
    interpreter._patch_lang = _where_needed(saved, interpreter)
    try:
        yield
    finally:
        interpreter._patch_lang = saved


def _as_expected(interpreter: Any) -> bool:
    """Whether it can be told what is replaced: between launches the methods of a tensor never are."""
    language = getattr(interpreter, "tl", None)
    return hasattr(interpreter, "_LangPatchScope") and language is not None and _is_original(language, language.core)


def _where_needed(method: Callable[..., Any], interpreter: Any) -> Callable[..., Any]:
    """The interpreter's replacing, left out where there is nothing to replace; there is nothing to undo then."""
    language = interpreter.tl

    def replaced(function: Any) -> Any:
        # Looked up each time: the first call of a function adds the interpreter's own names to its module.
        seen = [value for value in function.__globals__.values() if value is language or value is language.core]
        if not seen or any(_is_original(language, part) for part in seen):
            return method(function)
        return interpreter._LangPatchScope()

    return replaced


def _is_original(language: Any, part: ModuleType) -> bool:
    """Whether something is not replaced of what a function uses that sees this part of the language.

    What a part holds is replaced together, and so is what the parts share, the tensors and the reductions. A launch undoes
    what it replaced, a device function does not: either of the two may be replaced alone.
    """
    one_of_each = (part.load, language.core.tensor.__add__, language.reduce, language.core.reduce)
    return any(language.core.is_builtin(function) for function in one_of_each)
