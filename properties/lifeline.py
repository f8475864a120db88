"""Child processes: how one of ours is started, that it dies with its parent, and the words for how one ended."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

START = Path.cwd()
"""Where everything was started: targets may be named relative to it, and code of one may have gone elsewhere since."""
_OURS = "import os, sys; sys.path[:] = sys.argv.pop(1).split(os.pathsep); sys.path.insert(0, sys.argv.pop(1)); "
_LIFE = "import properties.lifeline; properties.lifeline.die_with_parent(int(sys.argv.pop(1))); "
_REST = "; sys.path.pop(0); "


def command_of_ours(module: str, call: str, *arguments: str) -> list[str]:
    """A Python process that imports `module` of this very pagefault and runs `call`, with `arguments` in `sys.argv[1:]`.

    It dies with this process, also if that ends while it is still importing. Not `-m`: that would look for us in the
    current folder first. No folder of the path hides us, and we hide nothing.
    """
    code = f"{_OURS}{_LIFE}import {module}{_REST}{module}.{call}"
    root = str(Path(__file__).parents[1])
    return [sys.executable, "-P", "-c", code, os.pathsep.join(sys.path), root, str(os.getpid()), *arguments]


def end() -> None:
    """Ends this process, its work done, and waits for no thread that a target left running."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # closed, or another thing by now
            stream.flush()
    os._exit(0)


def signal_name(number: int) -> str | None:
    """Its name; None for one without, such as most real-time signals.

    >>> signal_name(11), signal_name(40)
    ('SIGSEGV', None)
    """
    return {known.value: known.name for known in signal.Signals}.get(number)


def memory_hint(number: int) -> str:
    """What a signal may mean, to be put behind its name; "" where it says all."""
    return ", as the system does when memory runs out" if number == signal.SIGKILL else ""


def die_with_parent(parent: int | None = None) -> None:
    """Ask Linux to kill this process when its parent dies: a target that hangs must not outlive whoever judged it.

    parent: its process id, if it may have died already; then this process ends at once.
    """
    if not sys.platform.startswith("linux"):
        return
    import ctypes

    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL, 0, 0, 0)
    if parent is not None and os.getppid() != parent:
        os._exit(1)
