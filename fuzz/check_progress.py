"""Lines on standard error while a target is checked: which case, and which call."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fuzz.check_where import SIZE, Whereabouts
from fuzz.output import note

FIRST_S, LATER_S = 2.0, 5.0
"""Seconds before the first line, and between two."""


@contextmanager
def told(target: str, first_s: float = FIRST_S, later_s: float = LATER_S) -> Iterator[str]:
    """The path of a file for `CheckTarget.progress`; what comes to stand in it is told now and then."""
    with tempfile.TemporaryDirectory(prefix="pagefault-") as folder:
        path = Path(folder) / "progress"
        path.write_bytes(bytes(SIZE))
        where, over = Whereabouts(str(path)), threading.Event()
        teller = threading.Thread(target=_tell, args=(target, where, over, first_s, later_s), daemon=True)
        teller.start()
        try:
            yield str(path)
        finally:
            over.set()
            teller.join()


def _tell(target: str, where: Whereabouts, over: threading.Event, first_s: float, later_s: float) -> None:
    wait = first_s
    while not over.wait(wait):
        note(f"checking {target}: {where.in_words()}"[:200])
        wait = later_s
