"""Errors of pagefault itself inside a fork: told as what they are, never as the death of the target's process."""

from __future__ import annotations

import traceback
from collections.abc import Callable

from fuzz.isolate import Emit, Ended, in_fork
from properties.blame import is_own
from properties.contract import UsageError

_OWN, _USAGE = b"\x00own", b"\x00usage"
"""How a last frame begins that holds an error, and no answer."""


class OwnError(Exception):
    """A mistake in pagefault, with its traceback. Nothing is known of the target then."""


def in_guarded_fork(work: Callable[[Emit], None], *, limit_s: float) -> Ended:
    """`in_fork` that tells our own errors apart. Raises `OwnError`, and a `UsageError` that the work raised."""

    def guarded(emit: Emit) -> None:
        try:
            work(emit)
        except UsageError as error:
            emit(_USAGE + str(error).encode(errors="backslashreplace"))
        except Exception as error:
            if not is_own(error):
                raise
            emit(_OWN + traceback.format_exc(limit=-6).encode(errors="backslashreplace"))

    ended = in_fork(guarded, limit_s=limit_s)
    last = ended.frames[-1] if ended.frames else b""
    if last.startswith(_USAGE):
        raise UsageError(last.removeprefix(_USAGE).decode())
    if last.startswith(_OWN):
        raise OwnError(
            f"an error of pagefault itself, not of the target; please report it: {last[len(_OWN) :].decode()}"
        )
    return ended
