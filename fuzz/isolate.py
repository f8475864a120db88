"""Run a piece of work in a forked process, so that its death or hang is an answer.

The parent has imported the target but never used it, so that each fork is as good as a fresh process and takes
milliseconds where an import takes seconds.
"""

from __future__ import annotations

import os
import select
import signal
import struct
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field

from properties.lifeline import die_with_parent, memory_hint, signal_name
from properties.starved import silence, waited_s

BEAT = b""
"""An empty frame: the work goes on."""
_DONE = b"\x00done"
"""The last frame: a target that calls `os._exit(0)` must not pass for one that came to its end."""

SOON_S = 0.2
"""Seconds of silence after which it is asked what a process waits for: most answer sooner, and asking takes time."""
Emit = Callable[[bytes], None]


@dataclass
class Ended:
    """How the work ended. `frames` is what it emitted, beats left out; `beats` their number.

    `died` is "" for a normal end, else how it died, in words; `hung` says that it was killed for silence, and `late` that
    it was killed at its deadline.
    """

    frames: list[bytes] = field(default_factory=list)
    beats: int = 0
    died: str = ""
    hung: bool = False
    late: bool = False
    done: bool = False
    signal: int = 0

    @property
    def failed(self) -> bool:
        """Whether the process died or hung."""
        return bool(self.died) or self.hung


def in_fork(
    work: Callable[[Emit], None],
    *,
    limit_s: float,
    deadline: float | None = None,
    on_frame: Callable[[bytes], None] | None = None,
) -> Ended:
    """Run `work(emit)` in a fork. It hangs if it emits nothing for `limit_s`; `deadline` is on the monotonic clock.

    Time in which it waited for a processor does not count to `limit_s`.
    """
    reader, writer = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        _work_and_exit(work, writer)
    os.close(writer)
    ended = Ended()
    try:
        _listen(reader, ended, _Patience(pid, limit_s), deadline, on_frame)
    except BaseException:  # Ctrl-C: a target that hangs in native code does not hear it
        ended.late = True
        raise
    finally:
        os.close(reader)
        if ended.hung or ended.late:
            os.kill(pid, signal.SIGKILL)
        _reap(pid, ended, limit_s)
    return ended


def _work_and_exit(work: Callable[[Emit], None], writer: int) -> None:
    status = 70  # EX_SOFTWARE: an exception that nobody expected
    try:
        die_with_parent()
        work(lambda frame: _write_all(writer, struct.pack("<I", len(frame)) + frame))
        _write_all(writer, struct.pack("<I", len(_DONE)) + _DONE)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)  # no atexit handlers, no flushing of what the parent has buffered


def _write_all(file: int, data: bytes) -> None:
    while data:
        data = data[os.write(file, data) :]


class _Patience:
    """How long a process may still be silent. What it waits for a processor is asked once it is silent for a while."""

    def __init__(self, pid: int, limit_s: float) -> None:
        self.pid, self.limit_s = pid, limit_s
        self.heard()

    def heard(self) -> None:
        """It said something."""
        self.heard_at = time.monotonic()
        self.before_s: float | None = None

    def left_s(self) -> float:
        """Seconds to wait for it until this is asked again; 0.0 where it has hung."""
        silent_s = time.monotonic() - self.heard_at
        if self.before_s is None:
            first_s = min(SOON_S, self.limit_s / 4)
            if silent_s < first_s:
                return first_s - silent_s
            self.before_s = waited_s(self.pid)
        return max(0.0, self.limit_s - silence(silent_s, waited_s(self.pid) - self.before_s))


def _listen(
    reader: int, ended: Ended, patience: _Patience, deadline: float | None, on_frame: Callable[[bytes], None] | None
) -> None:
    pending = b""
    while True:
        left_s = patience.left_s()
        wait_s = left_s if deadline is None else min(left_s, deadline - time.monotonic())
        ready, _, _ = select.select([reader], [], [], max(wait_s, 0))
        if not ready:
            ended.late = deadline is not None and time.monotonic() >= deadline
            ended.hung = not ended.late and not left_s
            if ended.late or ended.hung:
                return
            continue
        data = os.read(reader, 1 << 16)
        if not data:
            return
        patience.heard()
        pending = _split(pending + data, ended, on_frame)


def _split(data: bytes, ended: Ended, on_frame: Callable[[bytes], None] | None) -> bytes:
    while len(data) >= 4:
        (size,) = struct.unpack_from("<I", data)
        if len(data) < 4 + size:
            break
        frame, data = data[4 : 4 + size], data[4 + size :]
        if frame == BEAT:
            ended.beats += 1
            continue
        if frame == _DONE:
            ended.done = True
            continue
        ended.frames.append(frame)
        if on_frame is not None:
            on_frame(frame)
    return data


def _reap(pid: int, ended: Ended, limit_s: float) -> None:
    """Wait for the end; a process that closed its pipe and lives on is killed."""
    stop = time.monotonic() + limit_s
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            break
        if time.monotonic() > stop:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            ended.hung = True
            return
        time.sleep(0.0005)
    if not (ended.hung or ended.late):
        code = os.waitstatus_to_exitcode(status)
        ended.died, ended.signal = describe_exit(code), max(0, -code)
        if not code and not ended.done:
            ended.died = "the process ended itself with exit status 0"


def describe_exit(code: int) -> str:
    """How a process ended, in words; "" for a normal end.

    >>> describe_exit(-11)
    'the process was killed by SIGSEGV (signal 11)'
    >>> describe_exit(3), describe_exit(0)
    ('the process ended itself with exit status 3', '')
    """
    if code == 0:
        return ""
    if code > 0:
        return f"the process ended itself with exit status {code}"
    return f"the process was killed by {signal_name(-code) or 'a signal'} (signal {-code}{memory_hint(-code)})"
