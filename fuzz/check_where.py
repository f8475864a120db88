"""Where a fork is: the call that it is about to make, for the time when it does not come back."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from typing import Any

from fuzz.case_in_fork import MADE_WRONG, NO_LIMIT_S, call_in_words
from fuzz.isolate import BEAT, Emit, Ended
from properties.declared import Problem
from properties.drive import drive
from properties.levels import LevelSpec
from properties.trial import EVERYTHING, Verdict


class Whereabouts:
    """What a fork is about to call, in memory that outlives it."""

    def __init__(self) -> None:
        self._shared = mmap.mmap(-1, 512)
        self.say(MADE_WRONG)

    def say(self, call: str) -> None:
        """Note the next call."""
        text = call.encode(errors="replace")[:510]
        self._shared[: len(text) + 1] = text + b"\0"

    def read(self) -> str:
        """The call that was noted last."""
        return self._shared[:].partition(b"\0")[0].decode(errors="replace")


def failed(ended: Ended, limit_s: float, where: Whereabouts) -> tuple[Problem, ...]:
    call = where.read()
    if ended.hung:
        what = f"{call}: it did not return within {limit_s:g} s"
        return ((what, "no call of an adapter may wait for anything (--call-limit: how long one may take)"),)
    if ended.died:
        return ((f"{call}: {ended.died}", "an adapter must not end the process; see its output below"),)
    return ()


def driven(spec: LevelSpec, make: Callable[[], Any], seed: int, where: Whereabouts, emit: Emit) -> tuple[Any, Verdict]:
    """A case, with each call noted and a beat before it."""

    def next_call(call: str) -> None:
        where.say(call)
        emit(BEAT)

    next_call(MADE_WRONG)
    return drive(
        spec,
        make,
        seed,
        tolerate=EVERYTHING,
        opened=lambda geometry: next_call(f"open({geometry}), or the first look at its pool"),
        before=lambda op: next_call(call_in_words(op)),
        limit_s=NO_LIMIT_S,
    )
