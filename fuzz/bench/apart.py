"""Runs a bench in a fork: a target that ends the process is a finding, and what it prints does not mix with the result."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout

from fuzz.bench.result import Result, from_json, to_json
from fuzz.isolate import Emit, in_fork
from fuzz.output import note
from properties.contract import UsageError

FOREVER_S = 1e7
"""A bench has no time limit: whoever waits sees what is running, and has Ctrl-C."""
_TOLD, _MISTAKE, _RESULT = b"t", b"m", b"r"


class Died(Exception):
    """The process ended before the bench did. The text says how, and at what."""


def run(options: dict[str, object]) -> Result:
    """`session.run(Wish(**options))`. Raises UsageError as that does, and `Died`.

    Where torch was imported before, everything runs in this process: threads do not survive a fork.
    """
    if "torch" in sys.modules or not hasattr(os, "fork"):
        with redirect_stdout(sys.stderr):
            return _run(options, lambda frame: None)
    last: dict[bytes, str] = {_TOLD: "starting"}

    def keep(frame: bytes) -> None:
        last[frame[:1]] = frame[1:].decode()

    ended = in_fork(lambda emit: _child(options, emit), limit_s=FOREVER_S, on_frame=keep)
    if ended.died:
        raise Died(f"{ended.died}, at: {last[_TOLD]}")
    if _MISTAKE in last:
        raise UsageError(last[_MISTAKE])
    return from_json(last[_RESULT])


def _child(options: dict[str, object], emit: Emit) -> None:
    os.dup2(2, 1)
    try:
        emit(_RESULT + to_json(_run(options, emit)))
    except UsageError as error:
        emit(_MISTAKE + str(error).encode(errors="backslashreplace"))
    except KeyboardInterrupt:  # the parent hears it too, and says so
        os._exit(130)


def _run(options: dict[str, object], emit: Emit) -> Result:
    from fuzz.bench.session import Wish
    from fuzz.bench.session import run as run_here

    wish = Wish(**options)  # type: ignore[arg-type]
    with _progress() as show:

        def tell(text: str) -> None:
            emit(_TOLD + text.encode(errors="backslashreplace"))
            show(text)

        return run_here(wish, tell)


@contextmanager
def _progress() -> Iterator[Callable[[str], object]]:
    """What is measured now, on standard error: one line that changes on a terminal, a line each elsewhere."""
    if not sys.stderr.isatty():
        yield note
        return
    from rich.console import Console

    with Console(stderr=True).status("starting") as status:
        yield status.update
