"""A time limit for the code of a target: a hang in Python becomes an exception, and so a finding (CRASH-2).

Code that hangs inside a C extension cannot be stopped from within; campaigns run targets in a process that they kill.
"""

from __future__ import annotations

import gc
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from properties.starved import silence, thread_waited_s

TRACE_LIMIT_S = 10.0
"""Seconds for one trace, which usually takes milliseconds; slow machines and first imports stay far below it."""


class TimedOut(BaseException):
    """The target did not return in time. Not an `Exception`, so that no `except Exception` in a target swallows it."""


NEARLY = 0.05
"""Part of a limit that is not waited for any more."""
LATER_S = 0.01
"""Seconds after which an alarm comes again that came where an exception would be lost."""


class _Alarm:
    """The handler of the alarm: raises, unless the limit is not over yet, or what it raises would be lost."""

    def __init__(self, limit_s: float) -> None:
        self.limit_s, self.started, self.waited_s = limit_s, time.monotonic(), thread_waited_s()

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        left_s = self.limit_s - silence(time.monotonic() - self.started, thread_waited_s() - self.waited_s)
        if left_s > NEARLY * self.limit_s:
            signal.setitimer(signal.ITIMER_REAL, left_s, self.limit_s)
        elif _is_collecting(frame):
            # A long collection ends in its callbacks, Hypothesis' among them: there the alarm is heard first.
            signal.setitimer(signal.ITIMER_REAL, LATER_S, LATER_S)
        else:
            raise TimedOut


def _is_collecting(frame: FrameType | None) -> bool:
    """Whether a callback of the garbage collector is running, which loses what is raised in it."""
    callbacks = {getattr(callback, "__code__", None) for callback in gc.callbacks}
    while frame is not None:
        if frame.f_code in callbacks:
            return True
        frame = frame.f_back
    return False


@contextmanager
def time_limit(limit_s: float) -> Iterator[None]:
    """Raise `TimedOut` in this thread after `limit_s`; without effect outside the main thread and without SIGALRM.

    Time in which this thread waited for a processor does not count.
    It is raised again each `limit_s`: what is raised in a destructor, or in the callback of a weak reference, is lost.
    An alarm that somebody else has set is left alone.
    """
    usable = threading.current_thread() is threading.main_thread() and hasattr(signal, "setitimer")
    if not usable or signal.getitimer(signal.ITIMER_REAL)[0] > 0:
        yield
        return
    before = signal.signal(signal.SIGALRM, _Alarm(limit_s))
    signal.setitimer(signal.ITIMER_REAL, limit_s, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
