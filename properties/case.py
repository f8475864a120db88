"""A case: a trace with everything needed to repeat it, as versioned JSON that stays readable.

It depends neither on Hypothesis nor on the run that found it. Operations stand one on a line, so that a person can read,
diff and shorten them; any other JSON formatting is read as well.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import xxhash

from properties.contract import CLAUSES, Breach, Level, UsageError, clause
from properties.specs import spec_of

FORMAT = "pagefault case"
VERSION = 1
LEVELS = ("blocks", "engine", "attention", "cache")


class Case(msgspec.Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A trace, the target and the geometry it ran on, and the clause that it broke.

    `tolerated` are clauses that did not end the trace when it was found. `seed` reproduces the generation, where there was
    one. `versions` are those of pagefault, Python and the target. `flaky` marks a case that did not fail every time.
    `breaches` is everything that the trace broke when it was last judged, in order, so that a reader sees what came first.
    `outcomes` says of a step, counted from 1, what it came to where its operation does not tell: `refused: OutOfBlocks`,
    or the rows that an engine scheduled.
    `geometry` and `operations` are of the types of the level's `LevelSpec`.
    """

    format: str = FORMAT
    version: int = VERSION
    level: Level
    target: str
    property: str
    message: str
    geometry: Any
    operations: Any
    tolerated: tuple[str, ...] = ()
    seed: int | None = None
    versions: dict[str, str] = {}
    flaky: bool = False
    breaches: tuple[Breach, ...] = ()
    outcomes: dict[int, str] = {}


class _Head(msgspec.Struct):
    """What every version of the format has; the rest is read once the version is known."""

    format: str
    version: int
    level: str


def encode(case: Case) -> bytes:
    """The case as JSON, one operation on a line."""
    fields = msgspec.to_builtins(case)
    fields["format"], fields["version"] = case.format, case.version  # defaults, but a reader must see them
    order = ["format", "version", *(key for key in fields if key not in ("format", "version"))]
    lines = []
    for key in order:
        value = fields[key]
        if key == "operations":
            steps = ",\n".join("    " + msgspec.json.encode(step).decode() for step in value)
            text = f"[\n{steps}\n  ]"
        else:
            text = msgspec.json.encode(value).decode()
        lines.append(f'  "{key}": {text}')
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode()


def decode(data: bytes, name: str = "case") -> Case:
    """Read a case. Raises `UsageError` that says what is wrong with it and what to do."""
    try:
        head = msgspec.json.decode(data, type=_Head)
    except (msgspec.DecodeError, RecursionError) as error:
        raise UsageError(
            f"{name} is not a whole case file: {error}. Was it cut off? Take it from the campaign again"
        ) from None
    if head.format != FORMAT:
        raise UsageError(f"{name} has format {head.format!r}, not {FORMAT!r}")
    if head.version < 1:
        raise UsageError(f"{name} has version {head.version}; versions begin at 1. Take it from the campaign again")
    if head.version > VERSION:
        raise UsageError(f"{name} has version {head.version}; this pagefault reads up to {VERSION}: upgrade pagefault")
    if head.level not in LEVELS:
        raise UsageError(f"{name} has level {head.level!r}; known are {', '.join(LEVELS)}")
    spec = spec_of(head.level)  # type: ignore[arg-type]
    try:
        case = msgspec.json.decode(data, type=Case)
        case.geometry = msgspec.convert(case.geometry, spec.geometry)
        case.operations = msgspec.convert(case.operations, tuple[spec.operation, ...])  # type: ignore[name-defined]
    except (msgspec.DecodeError, RecursionError) as error:
        raise UsageError(f"{name} is not a valid case: {error}") from None
    clause(case.property)
    for breach in case.breaches:
        clause(breach.property)
    if not case.operations and CLAUSES[case.property].chapter != "MEM":
        raise UsageError(f"{name} has no operations: there is nothing to replay. Take it from the campaign again")
    return case


def read(path: Path) -> Case:
    """Read a case file. Raises `UsageError`."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    return decode(data, str(path))


def write(case: Case, path: Path) -> None:
    """Write a case so that either the whole file is there or nothing. Raises `OSError`."""
    write_atomically(path, encode(case))


def write_atomically(path: Path, data: bytes) -> None:
    """Write beside the file and rename over it, so that a kill or a full disk leaves the old one. Raises `OSError`."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with beside.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def shape(case: Case) -> list[dict[str, Any]]:
    """The steps of a case without what is arbitrary in them: token values (of each run only its length) and names.

    Sequences are called A, B, ... in the order in which they are first named. After a fork parent and child hold the same,
    so the one that acts first afterwards counts as the parent: "fork A -> B, append to B" is "fork A -> B, append to A".
    """
    steps = [dict(step) for step in msgspec.to_builtins(case.operations)]
    for index, step in enumerate(steps):
        if "child" in step:
            _first_to_act_is_parent(steps[index + 1 :], step["name"], step["child"])
    names: dict[str, str] = {}
    for step in steps:
        for name in _names(step):
            names.setdefault(name, chr(ord("A") + len(names)) if len(names) < 26 else f"S{len(names)}")
        _rename(step, names)
        step.update({key: _lengths(step[key]) for key in ("tokens", "reply", "runs") if key in step})
    return steps


def _names(step: dict[str, Any]) -> list[str]:
    return [*(step[key] for key in ("name", "child") if key in step), *step.get("names", ())]


def _rename(step: dict[str, Any], names: dict[str, str]) -> None:
    step.update({key: names.get(step[key], step[key]) for key in ("name", "child") if key in step})
    if "names" in step:
        step["names"] = [names.get(name, name) for name in step["names"]]


def _first_to_act_is_parent(later: list[dict[str, Any]], parent: str, child: str) -> None:
    """Exchange the two names in the steps behind a fork where the child acts before the parent. Modifies the steps."""
    first = next((name for step in later for name in _names(step) if name in (parent, child)), parent)
    if first == child:
        for step in later:
            _rename(step, {parent: child, child: parent})


def _lengths(run: Any) -> Any:
    return [len(part) for part in run] if run and isinstance(run[0], list | tuple) else len(run)


def fingerprint(case: Case) -> str:
    """What makes two minimised cases of one target the same finding: clause and `shape`; not names, not tokens' values.

    Sixteen hexadecimal digits. The target's name is left out, since one target can be spelt in several ways.
    """
    return xxhash.xxh64_hexdigest(msgspec.json.encode([case.property, shape(case)], order="sorted"))
