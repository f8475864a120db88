"""Saved traces: what the next campaign starts from. A file a trace, named after what it reached or broke."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import xxhash

from properties.case import Case, write_atomically
from properties.contract import Level, UsageError
from properties.specs import spec_of

FORMAT = "pagefault trace"
VERSION = 1


class SavedTrace(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A trace worth starting from; `reached` says why it was kept."""

    format: str = FORMAT
    version: int = VERSION
    level: Level
    target: str
    reached: str
    geometry: Any
    operations: Any


def save(folder: Path, trace: SavedTrace) -> Path:
    """Write a trace into the corpus. Raises `OSError`."""
    fields = {"format": trace.format, "version": trace.version, **msgspec.to_builtins(trace)}
    data = msgspec.json.format(msgspec.json.encode(fields), indent=1) + b"\n"
    words = trace.reached.replace(" ", "-").replace(",", "")[:60]
    path = folder / f"{words}-{xxhash.xxh64_hexdigest(data)[:8]}.json"
    write_atomically(path, data)
    return path


class _Either(msgspec.Struct):
    """What a case and a saved trace have in common."""

    format: str
    version: int
    level: Level
    target: str
    geometry: Any
    operations: Any


def read(path: Path) -> tuple[str, Any, tuple[Any, ...]]:
    """Level, geometry and operations of a saved trace or case. Raises `UsageError`."""
    try:
        found = msgspec.json.decode(path.read_bytes(), type=_Either)
        spec = spec_of(found.level)
        geometry = msgspec.convert(found.geometry, spec.geometry)
        operations = msgspec.convert(found.operations, tuple[spec.operation, ...])  # type: ignore[name-defined]
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise UsageError(f"{path} is not a saved trace: {error}") from None
    return found.level, geometry, operations


def saved(folder: Path) -> list[Path]:
    """The traces of a corpus in the order of their names; broken clauses come before states reached."""
    return sorted(path for path in folder.glob("*.json") if not path.name.startswith("."))


def trace_of(case: Case, reached: str) -> SavedTrace:
    """A case as a saved trace."""
    return SavedTrace(
        level=case.level, target=case.target, reached=reached, geometry=case.geometry, operations=case.operations
    )


def missing_marks(paths: Sequence[Path], marks: Sequence[str]) -> set[str]:
    """The marks that no saved trace is named after."""
    names = [path.name for path in paths]
    return {mark for mark in marks if not any(name.startswith(mark.replace(" ", "-")) for name in names)}
