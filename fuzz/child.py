"""The supervisor's side of a child process: start, READY, commands, replies, death and silence."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from fuzz import journal, messages
from fuzz.isolate import describe_exit
from properties.starved import silence, waited_s

READY_LIMIT_S = 180.0
"""Seconds that a target may take to be imported: big engines take a minute on a slow disk."""
LAST_WORDS = 4000
"""Bytes of a child's own output that are kept."""

_UNSEEN: tuple[int, bytes] = (-1, b"")


class Child:
    """A running `python -m fuzz.worker`. Its output is read and thrown away, but for the end of it."""

    def __init__(self, target: str, device: str = "cpu", campaign_options: list[str] | None = None) -> None:
        self.target = target
        commands_read, self._commands = os.pipe()
        self._replies, replies_write = os.pipe()
        self.process = subprocess.Popen(
            _command(target, device, commands_read, replies_write) + (campaign_options or []),
            pass_fds=(commands_read, replies_write),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is for the supervisor, which then ends its children in order
            env=_environment(device),
        )
        os.close(commands_read)
        os.close(replies_write)
        assert self.process.stdout is not None  # a pipe was asked for
        self.output = self.process.stdout.fileno()
        for file in (self._replies, self.output):
            os.set_blocking(file, False)
        self._pending = b""
        self._words = b""
        self.deaf = False
        self.started = time.monotonic()
        self.ready: messages.Ready | None = None
        self.making: messages.Making | None = None
        self.making_at, self.making_waited_s = self.started, 0.0
        self.num_moves, self.longest_s = 0, 0.0
        """How often the journal was seen to change, and the longest time between two such moments."""
        self._seen = _UNSEEN
        self._seen_at, self._seen_waited_s = self.started, 0.0

    def fileno(self) -> int:
        """The file descriptor to wait for."""
        return self._replies

    def send(self, command: messages.Message) -> None:
        """Send a command; a child that is gone is noticed when its replies end."""
        self._seen, self._seen_at, self._seen_waited_s = _UNSEEN, *self._now()
        with contextlib.suppress(BrokenPipeError):
            os.write(self._commands, messages.encode(command))

    def replies(self) -> Iterator[messages.Reply]:
        """The replies that have come in. Never blocks."""
        self.drain_output()
        data, self.deaf = _drain(self._replies)
        data = self._pending + data
        *lines, self._pending = data.split(b"\n")
        for line in lines:
            try:
                reply = messages.decode_reply(line)
            except msgspec.DecodeError:
                continue  # the target wrote into a pipe that is not its own
            if isinstance(reply, messages.Ready):
                self.ready = reply
            elif isinstance(reply, messages.Making):
                self.making, self.making_at, self.making_waited_s = reply, *self._now()
                continue
            yield reply

    def drain_output(self) -> bool:
        """Read what the target printed, so that it never waits for us. Whether more can come."""
        words, closed = _drain(self.output)
        self._words = (self._words + words)[-LAST_WORDS:]
        return not closed

    def poll(self) -> str | None:
        """How the process ended, in words ("" for a normal end); None while it lives."""
        code = self.process.poll()
        if (
            code is None and self.deaf
        ):  # its pipe is closed: it is about to end, or the target closed what is not its own
            try:
                code = self.process.wait(2.0)
            except subprocess.TimeoutExpired:
                return "the target closed the pipe that its process reports through"
        return None if code is None else describe_exit(code)

    def silent_s(self, path: Path) -> float:
        """Seconds since the journal last changed, without those in which it waited for a processor."""
        seen, now = journal.progress(path), self._now()
        silent_s = silence(now[0] - self._seen_at, now[1] - self._seen_waited_s)
        if seen != self._seen:
            if self._seen != _UNSEEN:  # what lies before the first operation of a slice is no call
                self.num_moves, self.longest_s = self.num_moves + 1, max(self.longest_s, silent_s)
            self._seen, (self._seen_at, self._seen_waited_s), silent_s = seen, now, 0.0
        return silent_s

    def making_s(self) -> float:
        """Seconds since it began to make the adapter, or to import the target, counted as in `silent_s`."""
        now, waited_s = self._now()
        return silence(now - self.making_at, waited_s - self.making_waited_s)

    def _now(self) -> tuple[float, float]:
        """The time, and what it has waited for a processor until now."""
        return time.monotonic(), waited_s(self.process.pid)

    def last_words(self) -> str:
        """The end of what the child printed."""
        self.drain_output()
        return self._words.decode(errors="replace").strip()

    def stop(self) -> None:
        """End the process and give back its pipes. Never fails."""
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)  # its forks too
        self.process.wait()
        for file in (self._commands, self._replies):
            os.close(file)
        assert self.process.stdout is not None
        self.process.stdout.close()


OURS_FIRST = (
    "import sys; root = sys.argv.pop(1); sys.path.insert(0, root); import fuzz; sys.path.append(sys.path.pop(0)); "
)
"""Finds this very pagefault first, then leaves its folder last of all on the path: no folder hides us, and we hide nothing."""
_MAIN = OURS_FIRST + "from fuzz.worker import main; main()"


def _command(target: str, device: str, commands: int, replies: int) -> list[str]:
    import fuzz

    root = str(Path(fuzz.__file__).parent.parent)
    base = [sys.executable, "-P", "-c", _MAIN, root, "--target", target, "--device", device]
    return [*base, "--commands", str(commands), "--replies", str(replies)]


def _environment(device: str) -> dict[str, str]:
    """What makes children alike: a fixed order of sets, and one thread, since campaigns spread over processes.

    Without a GPU Triton's kernels are interpreted, which must be said before Triton is imported.
    """
    interpreted = {"TRITON_INTERPRET": "1"} if device == "cpu" else {}
    return {"OMP_NUM_THREADS": "1", **interpreted, **os.environ, "PYTHONHASHSEED": "0"}


def _drain(file: int) -> tuple[bytes, bool]:
    """What has come in, and whether the other end is closed."""
    parts: list[bytes] = []
    while True:
        try:
            part = os.read(file, 1 << 16)
        except BlockingIOError:
            return b"".join(parts), False
        if not part:
            return b"".join(parts), True
        parts.append(part)


class Ended(Exception):
    """A child ended or was silent for too long instead of answering. `str()` says how, in words."""


def ask(child: Child, command: messages.Message | None, timeout_s: float) -> messages.Reply:
    """Send a command and wait for its reply; with None, wait for READY. Raises `Ended`."""
    if command is not None:
        child.send(command)
    stop = time.monotonic() + timeout_s
    with selectors.DefaultSelector() as selector:
        selector.register(child, selectors.EVENT_READ)
        selector.register(child.output, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select(min(0.2, max(0.0, stop - time.monotonic()))):
                if key.fileobj == child.output and not child.drain_output():
                    selector.unregister(child.output)
            for reply in child.replies():
                return reply
            how = child.poll()
            if how is not None:
                raise Ended(how or "the process ended without an answer")
            if time.monotonic() > stop:
                raise Ended(f"the process gave no answer within {timeout_s:g} s")


def start(target: str, device: str = "cpu") -> Child:
    """A child for single jobs, with the target loaded. Raises `UsageError` where it cannot be."""
    from properties.contract import UsageError

    child = Child(target, device)
    try:
        reply = ask(child, None, READY_LIMIT_S)
    except Ended as how:
        words = child.last_words()
        child.stop()
        raise UsageError(
            f"target {target!r}: while it was imported, {how}. Its last output: {words[-300:] or 'none'}"
        ) from None
    if isinstance(reply, messages.Unusable):
        child.stop()
        from properties.targets import Unavailable

        raise (Unavailable if reply.why == "unavailable" else UsageError)(reply.message)
    return child


def try_to_make(child: Child, limit_s: float = READY_LIMIT_S) -> str:
    """Why the target's adapter cannot be made; "" if it can. In a fork of the child, which stays as it is.

    It may take `limit_s` beside what it imports, and READY_LIMIT_S with that.
    """
    try:
        reply = ask(child, messages.Make(limit_s=limit_s), READY_LIMIT_S + limit_s)
    except Ended as how:
        return str(how)
    return reply.problem if isinstance(reply, messages.Made) else getattr(reply, "message", "")
