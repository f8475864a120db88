"""Where a fork is: the call that it is about to make, for the person who waits, and for when it does not come back."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fuzz import messages
from fuzz.case_in_fork import CRASH, MADE_WRONG, NO_LIMIT_S, call_in_words
from fuzz.isolate import BEAT, Emit, Ended
from properties.drive import NUM_STEPS, drive
from properties.levels import LevelSpec
from properties.trial import EVERYTHING, Verdict
from properties.wording import unreturned

SIZE = 512
_STEP = "\x1e"
"""Stands before a call that is an operation: what happens in it is the implementation's."""
_PHASE = "\x1f"
"""Stands between what is being done and the call."""


class Whereabouts:
    """What a fork is about to call, in memory that outlives it: of a file of `SIZE` bytes, where a path is given."""

    def __init__(self, path: str = "") -> None:
        self._phase = ""
        if path:
            with Path(path).open("r+b") as file:
                self._shared = mmap.mmap(file.fileno(), SIZE)
        else:
            self._shared = mmap.mmap(-1, SIZE)
        self.say(MADE_WRONG)

    def begin(self, phase: str) -> None:
        """Note what the calls to come are for: `case 3`."""
        self._phase = phase

    def say(self, call: str, *, operation: bool = False) -> None:
        """Note the next call."""
        text = f"{self._phase}{_PHASE}{_STEP if operation else ''}{call}".encode(errors="replace")[: SIZE - 2]
        self._shared[: len(text) + 1] = text + b"\0"

    def read(self) -> str:
        """The call that was noted last."""
        return self._read()[1].removeprefix(_STEP)

    def in_words(self) -> str:
        """What is being done, and the call: `case 3: append of A`."""
        phase, call = self._read()
        return ": ".join(part for part in (phase, call.removeprefix(_STEP)) if part)

    @property
    def in_operation(self) -> bool:
        """Whether that call is an operation, and not the making or the opening of an adapter."""
        return self._read()[1].startswith(_STEP)

    def _read(self) -> tuple[str, str]:
        phase, _, call = self._shared[:].partition(b"\0")[0].decode(errors="replace").partition(_PHASE)
        return phase, call


class Stopped(Exception):
    """A fork died or hung, and with it the check; `checked` says whose fault that is."""

    def __init__(self, checked: messages.Checked) -> None:
        super().__init__(checked)
        self.checked = checked


def require_alive(ended: Ended, limit_s: float, where: Whereabouts) -> None:
    """Raises `Stopped` where a fork died or hung.

    In an operation that is CRASH-2, a finding, as in a campaign; before the first, the adapter must be mended.
    """
    if not ended.failed:
        return
    call = where.read()
    how = unreturned(limit_s) if ended.hung else ended.died
    if where.in_operation:
        note = f"{CRASH}: {call}: {how}. The target is checked no further: `pagefault run` finds and explains it"
        raise Stopped(messages.Checked(notes=(note,)))
    remedy = "an adapter must not end the process; see its output below"
    if ended.hung:
        remedy = "no call of an adapter may wait for anything (--call-limit: how long one may take)"
    raise Stopped(messages.Checked(problems=((f"{call}: {how}", remedy),)))


def driven(
    spec: LevelSpec,
    make: Callable[[], Any],
    seed: int,
    where: Whereabouts,
    emit: Emit,
    num_steps: int = NUM_STEPS,
) -> tuple[Any, Verdict]:
    """A case, with each call noted and a beat before it."""

    def next_call(call: str, *, operation: bool = False) -> None:
        where.say(call, operation=operation)
        emit(BEAT)

    next_call(MADE_WRONG)
    return drive(
        spec,
        make,
        seed,
        num_steps=num_steps,
        tolerate=EVERYTHING,
        opened=lambda geometry: next_call(f"open({geometry}), or the first look at its pool"),
        before=lambda op: next_call(call_in_words(op), operation=True),
        limit_s=NO_LIMIT_S,
    )
