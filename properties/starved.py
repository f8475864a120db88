"""How long work waited for a processor. On a busy machine a call that is right takes many times as long: while it cannot run,
it does not hang."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

MOST = 10
"""A silence counts at least one part in so many, however busy the machine is said to be."""


def waited_s(pid: int) -> float:
    """Seconds that a process was ready to run and had no processor: of the thread that waited longest.

    0.0 where the system does not say (Linux does, in /proc/PID/task/TID/schedstat) or the process is gone.
    """
    most = 0.0
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            most = max(most, _waited_s(task / "schedstat"))
    return most


def thread_waited_s() -> float:
    """As `waited_s`, of this thread."""
    return _waited_s(Path("/proc/thread-self/schedstat"))


def silence(wall_s: float, waited_s: float) -> float:
    """What a silence of `wall_s` seconds, `waited_s` of them without a processor, counts as.

    >>> silence(12.0, 9.0), silence(12.0, 12.0)
    (3.0, 1.2)
    """
    return max(wall_s - max(0.0, waited_s), wall_s / MOST)


def _waited_s(file: Path) -> float:
    with suppress(OSError, ValueError, IndexError):
        return int(file.read_bytes().split()[1]) / 1e9
    return 0.0
