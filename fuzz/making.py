"""A sign of life while an adapter is made: big engines import for a minute; a constructor that hangs imports nothing."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator

LOOK_EVERY_S = 0.2


@contextlib.contextmanager
def signs_of_life(beat: Callable[[], None]) -> Iterator[None]:
    """Calls `beat` at once, and again whenever modules were imported since; no more after the block, and never late."""
    over = threading.Event()
    beat()

    def watch() -> None:
        seen = len(sys.modules)
        while not over.wait(LOOK_EVERY_S):
            now = len(sys.modules)
            if now != seen:
                seen = now
                beat()

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
