"""A time limit for the code of a target: a hang in Python becomes an exception, and so a finding (CRASH-2).

Code that hangs inside a C extension cannot be stopped from within; campaigns run targets in a process that they kill.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

TRACE_LIMIT_S = 10.0
"""Seconds for one trace, which usually takes milliseconds; slow machines and first imports stay far below it."""


class TimedOut(BaseException):
    """The target did not return in time. Not an `Exception`, so that no `except Exception` in a target swallows it."""


def _expired(signum: int, frame: FrameType | None) -> None:
    raise TimedOut


@contextmanager
def time_limit(limit_s: float) -> Iterator[None]:
    """Raise `TimedOut` in this thread after `limit_s`; without effect outside the main thread and without SIGALRM.

    An alarm that somebody else has set is left alone.
    """
    usable = threading.current_thread() is threading.main_thread() and hasattr(signal, "setitimer")
    if not usable or signal.getitimer(signal.ITIMER_REAL)[0] > 0:
        yield
        return
    before = signal.signal(signal.SIGALRM, _expired)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
