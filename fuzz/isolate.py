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

BEAT = b""
"""An empty frame: the work goes on."""
_DONE = b"\x00done"
"""The last frame: a target that calls `os._exit(0)` must not pass for one that came to its end."""

_UNRETURNED = "it did not return within"
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


def unreturned(limit_s: float) -> str:
    """The words for a call that was stopped after `limit_s` seconds."""
    return f"{_UNRETURNED} {limit_s:g} s"


def is_unreturned(words: str) -> bool:
    """Whether they are, or end with, those of `unreturned`."""
    return _UNRETURNED in words


def in_fork(
    work: Callable[[Emit], None],
    *,
    limit_s: float,
    deadline: float | None = None,
    on_frame: Callable[[bytes], None] | None = None,
) -> Ended:
    """Run `work(emit)` in a fork. It hangs if it emits nothing for `limit_s`; `deadline` is on the monotonic clock."""
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
        _listen(reader, ended, limit_s, deadline, on_frame)
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


def _listen(
    reader: int, ended: Ended, limit_s: float, deadline: float | None, on_frame: Callable[[bytes], None] | None
) -> None:
    pending = b""
    while True:
        now = time.monotonic()
        wait = limit_s if deadline is None else min(limit_s, deadline - now)
        ready, _, _ = select.select([reader], [], [], max(wait, 0))
        if not ready:
            ended.late = deadline is not None and time.monotonic() >= deadline and wait < limit_s
            ended.hung = not ended.late
            return
        data = os.read(reader, 1 << 16)
        if not data:
            return
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
