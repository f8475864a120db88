"""Whose fault is an exception: the adapter's own code, or the implementation behind it?"""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import Path
from types import CodeType, TracebackType

from properties import protocol

_STDLIB = sysconfig.get_path("stdlib")
_HERE = str(Path(__file__).parent / "blocks")
_HELPERS = protocol.__file__
"""What raises here was given something wrong by the adapter that called it."""


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


def last_lines(error: BaseException, most: int = 3) -> str:
    """Where an exception came from, innermost last: `file.py:12 in take; file.py:40 in allocate`."""
    frames = traceback.extract_tb(error.__traceback__)[-most:]
    return "; ".join(f"{frame.filename.rsplit('/', 1)[-1]}:{frame.lineno} in {frame.name}" for frame in frames)
