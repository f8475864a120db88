"""Whose fault is an exception: the adapter's own code, or the implementation behind it?"""

from __future__ import annotations

import opcode
import reprlib
import sysconfig
import traceback
from pathlib import Path
from types import CodeType, TracebackType

from properties import protocol
from properties.timelimit import TimedOut

_STDLIB = sysconfig.get_path("stdlib")
_OURS = f"{Path(__file__).parent}/"
_FUZZ = f"{Path(__file__).parent.parent}/fuzz/"
_HERE = f"{_OURS}blocks"
_HELPERS = protocol.__file__
"""What raises here was given something wrong by the adapter that called it."""


MOST_SAID = 300
"""Characters of an exception's own text that are repeated."""


def clean(text: str, most: int = MOST_SAID) -> str:
    """One line that any terminal, file and JSON takes: no line breaks, control characters or lone surrogates, and not long.

    >>> clean("two\\nlines \\ud800 ")
    'two lines \\\\ud800'
    """
    if len(text) <= most and text.isprintable():
        return text
    line = " ".join(text[: 4 * most].split()).encode("utf-8", "backslashreplace").decode()
    line = "".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in line)
    return line if len(line) <= most else f"{line[: most - 3]}..."


def said(error: BaseException) -> str:
    """An exception in words, whatever its own text does: `KeyError: 'A'`."""
    try:
        text = str(error)
    except BaseException as second:
        passes(second)
        text = f"(its text cannot be had: str() raised {type(second).__name__})"
    return f"{type(error).__name__}: {clean(text)}" if text else type(error).__name__


_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 60
_SHORT.maxlist = _SHORT.maxtuple = 8


def shown(value: object, most: int = 100) -> str:
    """A value as Python shows it, short, whatever its own `repr` does."""
    try:
        return clean(_SHORT.repr(value), most)
    except BaseException as error:  # of a number of a million digits too
        passes(error)
        return f"<{type(value).__name__} that cannot be shown>"


def passes(error: BaseException) -> None:
    """Raise what is not the target's doing: our time limit, the user's Ctrl-C, a test runner that ends a test.

    A KeyboardInterrupt that a `raise` statement raised is the target's own: the user's arrives between two instructions.
    """
    ours = isinstance(error, TimedOut) or type(error).__module__.partition(".")[0] in ("_pytest", "hypothesis")
    if ours or (isinstance(error, KeyboardInterrupt) and not _was_raised(error)):
        raise error


def _was_raised(error: BaseException) -> bool:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None or not 0 <= trace.tb_lasti < len(trace.tb_frame.f_code.co_code):
        return False
    return opcode.opname[trace.tb_frame.f_code.co_code[trace.tb_lasti]] in ("RAISE_VARARGS", "RERAISE")


def _codes_of(code: CodeType) -> set[CodeType]:
    found = {code}
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found |= _codes_of(constant)
    return found


def adapter_codes(target: object) -> set[CodeType]:
    """The code objects of every method that the adapter's classes define."""
    found: set[CodeType] = set()
    for cls in type(target).__mro__[:-1]:
        for member in vars(cls).values():
            function = getattr(member, "fget", None) or getattr(member, "__func__", member)
            code = getattr(function, "__code__", None)
            if isinstance(code, CodeType):
                found |= _codes_of(code)
    return found


def _innermost_code(trace: TracebackType | None) -> CodeType | None:
    """The code of the deepest frame outside the standard library and the helpers for adapters."""
    code = None
    while trace is not None:
        here = trace.tb_frame.f_code
        standard = here.co_filename.startswith((_STDLIB + "/", "<frozen")) and "site-packages" not in here.co_filename
        if not standard and here.co_filename != _HELPERS:
            code = here
        trace = trace.tb_next
    return code


def is_adapter_fault(error: BaseException, target: object) -> bool:
    """Whether the exception was raised by a line of the adapter itself, not by the implementation that it calls."""
    code = _innermost_code(error.__traceback__)
    called_wrongly = code is not None and code.co_filename.startswith(
        _HERE
    )  # no frame of the target: a wrong signature
    return called_wrongly or code in adapter_codes(target)


_TARGETS_OWN = ("/targets/__init__.py", "/targets/naming.py", "/targets/interface.py")


def _is_theirs(file: str) -> bool:
    """Whether a file is part of a target: not of the machinery that called it, or imported it."""
    if file.startswith(_OURS):
        return "/targets/" in file and not file.endswith(_TARGETS_OWN)
    return not file.startswith((_FUZZ, "<frozen", f"{_STDLIB}/importlib/"))


def strayed(error: BaseException) -> bool:
    """Whether an exception was raised by a target's code that nobody had called: a signal handler, a timer, a hook."""
    frames = traceback.extract_tb(error.__traceback__)
    last = frames[-1].filename if frames else _OURS
    return _is_theirs(last) and not last.startswith(_STDLIB) and "site-packages" not in last


_LIBRARIES = ("/site-packages/torch/", "/site-packages/numpy/", "/site-packages/msgspec/")
"""What we call ourselves."""


def is_own(error: BaseException) -> bool:
    """Whether an error is pagefault's own: raised by a line of ours, or by a library that a line of ours called.

    Never that of a machine which has no room or no files left.
    """
    if isinstance(error, OSError | MemoryError | RecursionError):
        return False
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    files = [file for file in files if not any(library in file for library in _LIBRARIES)]
    files = [file for file in files if not file.startswith(f"{_STDLIB}/") or "site-packages" in file]
    return bool(files) and not _is_theirs(files[-1])


def last_lines(error: BaseException, most: int = 3) -> str:
    """Where an exception came from, innermost last: `file.py:12 in take; file.py:40 in allocate`."""
    frames = list(traceback.extract_tb(error.__traceback__))
    theirs = [f for f in frames if _is_theirs(f.filename)]
    frames = (theirs or frames)[-most:]
    return "; ".join(f"{frame.filename.rsplit('/', 1)[-1]}:{frame.lineno} in {frame.name}" for frame in frames)
