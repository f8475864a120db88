"""A workload in a process of its own: a call that hangs, or that kills the process, becomes a finding (CRASH-2)."""

from __future__ import annotations

import mmap
import os
import threading
import time
from collections.abc import Callable
from typing import Literal

import msgspec

from fuzz.isolate import BEAT, Emit, Ended, in_fork
from fuzz.workload_base import Tell, Watch
from fuzz.workload_pool import WorkloadResult
from properties.blame import last_lines
from properties.contract import AdapterError, Breach, UsageError
from properties.wording import unreturned

BEAT_S = 0.1
"""Seconds between two signs of life."""
GRACE_S = 5.0
"""Silence beyond the call limit: our own work between two calls may hold the interpreter for a while."""
SNAPSHOT_S = 1.0
"""Seconds between two accounts of what was seen so far, which are all that is left of a process that dies."""
WIDTH = 160
SIGKILL = 9

Kind = Literal["so far", "hung", "done", "adapter", "usage"]
Work = Callable[[Tell, Watch], WorkloadResult]


class Account(msgspec.Struct, frozen=True):
    """What the process says. `problem` is why there is no result, or which call hangs."""

    kind: Kind
    result: WorkloadResult | None = None
    problem: str = ""


class Board:
    """The call that is under way, where both processes can see it."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, WIDTH)
        self.since = 0.0

    def begin(self, method: str, name: str) -> None:
        self._memory[:] = f"!{method} of {name:.80}".encode()[:WIDTH].ljust(WIDTH)
        self.since = time.monotonic()

    def end(self) -> None:
        self.since = 0.0
        self._memory[0:1] = b" "

    def call(self) -> str:
        """The call under way, "" between calls."""
        text = self._memory[:].decode(errors="replace").rstrip()
        return text[1:] if text.startswith("!") else ""


def run_isolated(work: Work, name: str, limit_s: float, tell: Tell) -> WorkloadResult:
    """Do `work(tell, watch)` in a fork, in which no call may take longer than `limit_s`. `tell` is called here.

    Raises `UsageError` where there is no result: a wrong adapter, or a process that was killed for want of memory.
    """
    board = Board()
    latest = Account("so far")

    def heard(frame: bytes) -> None:
        nonlocal latest
        latest = msgspec.json.decode(frame, type=Account)
        if latest.result is not None:
            tell(latest.result)

    ended = in_fork(
        lambda emit: _Child(work, board, limit_s, emit).run(),
        limit_s=limit_s + GRACE_S,
        on_frame=heard,
    )
    return _concluded(latest, ended, board, name, limit_s)


def _concluded(latest: Account, ended: Ended, board: Board, name: str, limit_s: float) -> WorkloadResult:
    result = latest.result
    if latest.kind == "done" and result is not None:
        return result
    if latest.kind == "usage":
        raise UsageError(latest.problem)
    if latest.kind == "adapter":
        raise UsageError(f"verdict ADAPTER for {name}: {latest.problem}")
    hung = latest.kind == "hung" or ended.hung
    call = board.call()
    if not hung and ended.signal == SIGKILL:
        raise UsageError(
            f"{name}: {ended.died}. Give a smaller pool (--blocks), larger blocks (--block-size) or fewer requests (--requests)"
        )
    how = unreturned(limit_s) if hung else ended.died
    if result is None:
        raise UsageError(
            f"verdict ADAPTER for {name}: {call or 'between two calls'}: {how}. Remedy: make and open it without waiting"
        )
    result.breaches.append(Breach("CRASH-2", f"{call or 'between two calls'}: {how}", result.num_operations))
    result.ended = "a call did not return" if hung else "its process ended"
    return result


class _Child:
    """The side of the fork."""

    def __init__(self, work: Work, board: Board, limit_s: float, emit: Emit) -> None:
        self.work = work
        self.board = board
        self.limit_s = limit_s
        self.emit = emit
        self.lock = threading.Lock()
        self.result: WorkloadResult | None = None
        self.told_at = 0.0
        self.told_breaches = 0

    def run(self) -> None:
        """The work, watched by a thread; one last account says how it ended."""
        os.dup2(2, 1)  # what a target prints must not stand among the results
        threading.Thread(target=self._watch, daemon=True).start()
        try:
            last = Account("done", self.work(self._tell, self.board))
        except KeyboardInterrupt:
            return
        except UsageError as error:
            last = Account("usage", problem=str(error))
        except AdapterError as error:
            last = Account("adapter", problem=str(error))
        except BaseException as error:  # SystemExit too: a target that ends the process must not pass for a clean run
            last = Account(
                "adapter",
                problem=f"{self.board.call() or 'it'} raised {type(error).__name__}: {error} ({last_lines(error)}). "
                "`pagefault check-target` looks at each call by itself",
            )
        self._say(last)

    def _tell(self, result: WorkloadResult) -> None:
        now, self.result = time.monotonic(), result
        if now - self.told_at >= SNAPSHOT_S or len(result.breaches) > self.told_breaches:
            self.told_at, self.told_breaches = now, len(result.breaches)
            self._say(Account("so far", result))

    def _say(self, account: Account) -> None:
        self._send(msgspec.json.encode(account))

    def _send(self, frame: bytes) -> None:
        with self.lock:
            try:
                self.emit(frame)
            except BrokenPipeError:
                os._exit(0)  # nobody listens any more: the command was ended

    def _watch(self) -> None:
        """Signs of life, until a call takes too long. A call that never lets another thread run gives none at all."""
        while True:
            time.sleep(BEAT_S)
            since = self.board.since
            if since and time.monotonic() - since > self.limit_s:
                self._say(Account("hung", self.result))
                os._exit(0)
            self._send(BEAT)
