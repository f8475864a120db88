"""The journal: each operation is on file before it is applied, so that a death or a hang leaves a replayable case.

A file a worker; it holds the current case only. Line 1 is a `Head`, line 2 the geometry, the rest one operation each. One
`write` an operation: what the kernel has taken survives the death of the process (not that of the machine).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from properties.levels import LevelSpec


class Head(msgspec.Struct, frozen=True):
    """Which case it is: its index in the campaign (negative for a saved trace), seed and number of steps."""

    index: int
    seed: int | None = None
    num_steps: int = 0


class Journal:
    """The writing side. Raises `OSError` where the file cannot be written."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._encode = msgspec.json.Encoder().encode

    def begin(self, head: Head) -> None:
        """A new case: forget the one before."""
        os.ftruncate(self._file, 0)
        self.add(head)

    def add(self, record: Any) -> None:
        """Write a record; it is on file when this returns."""
        os.write(self._file, self._encode(record) + b"\n")

    def close(self) -> None:
        """Give the file back; what is in it stays."""
        os.close(self._file)


class Tail(NamedTuple):
    """What a dead worker was doing. `geometry` is None where it died before the system was opened."""

    head: Head
    geometry: Any
    operations: tuple[Any, ...]


def read(path: Path, spec: LevelSpec) -> Tail | None:
    """What a journal holds; a torn last line is left out. None where it holds no case."""
    lines = path.read_bytes().split(b"\n") if path.exists() else []
    whole = lines[:-1]  # what follows the last newline is torn
    if not whole:
        return None
    head = msgspec.json.decode(whole[0], type=Head)
    geometry = msgspec.json.decode(whole[1], type=spec.geometry) if len(whole) > 1 else None
    decoder = msgspec.json.Decoder(spec.operation)
    return Tail(head, geometry, tuple(decoder.decode(line) for line in whole[2:]))


def progress(path: Path) -> tuple[int, bytes]:
    """A value that changes whenever the worker goes on: size and first bytes."""
    try:
        with path.open("rb", buffering=0) as file:
            return os.fstat(file.fileno()).st_size, file.read(80) or b""
    except FileNotFoundError:
        return 0, b""
