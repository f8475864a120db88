"""`pagefault targets`: what can be put under test here."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import EntryPoint, entry_points
from typing import Annotated

import typer

from fuzz import needs, values, versions
from fuzz.output import Json, emit, note
from properties.contract import CLAUSES, UsageError
from properties.targets import BUILTIN, GROUP, WITH_PATH

Try = Annotated[bool, typer.Option("--try", help="Import each target and make its adapter, which takes a while.")]


def command(
    properties: Annotated[bool, typer.Option("--properties", help="List the clauses of the contract instead.")] = False,
    try_: Try = False,
    device: Annotated[str, typer.Option(help="With --try: cpu or cuda, for targets that have tensors.")] = "cpu",
    json_: Json = False,
) -> int:
    """List every target: its level, whether it can run here or why not, and its version."""
    values.choice(device, "--device", ("cpu", "cuda"))
    if properties:
        clauses = [{"id": c.id, "rank": c.rank, "levels": list(c.levels), "text": c.text} for c in CLAUSES.values()]
        lines = [f"{c.id:10} {c.rank:8} {c.text} [{', '.join(c.levels)}]" for c in CLAUSES.values()]
        emit(clauses, as_json=json_, text="\n".join(lines))
        return 0
    found = all_targets(device, try_)
    from_path = [] if try_ else [_with_path(name) for name in WITH_PATH]
    width = max(len(str(row["name"])) for row in (*found, *from_path))
    emit(found, as_json=json_, text="\n".join(_line(row, width) for row in (*found, *from_path)))
    return 0


def all_targets(device: str, try_: bool = False) -> list[dict[str, object]]:
    """Each target that is known by name: by the metadata of what is installed, or tried in a process of its own."""
    rows = [_builtin(name) for name in BUILTIN]
    rows += [_plugin(entry) for entry in entry_points(group=GROUP) if entry.name not in BUILTIN]
    if not try_:
        return rows
    note("trying each target in a process of its own ...")
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda row: _tried(row, device), rows))


def _builtin(name: str) -> dict[str, object]:
    entry, distribution = BUILTIN[name], versions.distribution_of(name)
    version = versions.installed(distribution) if distribution else None
    return _row(name, entry.level, entry.summary, needs.missing(name), version)


def _plugin(entry: EntryPoint) -> dict[str, object]:
    version = entry.dist.version if entry.dist else None
    return _row(entry.name, "", f"{entry.value}, an entry point", needs.missing_module(entry.module), version)


def _row(name: str, level: str, summary: str, reason: str, version: str | None) -> dict[str, object]:
    row: dict[str, object] = {"name": name, "level": level, "summary": summary, "available": not reason}
    return {**row, "reason": reason, "version": version or ""}


def _with_path(name: str) -> dict[str, object]:
    return {**_row(f"{name}:PATH", WITH_PATH[name].level, WITH_PATH[name].summary, "", ""), "available": None}


def _tried(row: dict[str, object], device: str) -> dict[str, object]:
    from fuzz import child

    if not row["available"]:
        return row
    try:
        process = child.start(str(row["name"]), device)
    except UsageError as reason:
        return {**row, "available": False, "reason": str(reason)}
    try:
        level = process.ready.level if process.ready else row["level"]
        problem = child.try_to_make(process)
    finally:
        process.stop()
    return {**row, "level": level, "available": not problem, "reason": problem}


def _line(row: dict[str, object], width: int) -> str:
    state = {True: "available", False: "not here", None: ""}[row["available"]]  # type: ignore[index]
    version = f" {row['version']}" if row["version"] else ""
    reason = f"\n{'':{width}}  {row['reason']}" if row["reason"] else ""
    return f"{row['name']:{width}}  {state:9}  {row['level']:9} {row['summary']}{version}{reason}"
