"""`pagefault targets`: what can be put under test here."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import entry_points
from typing import Annotated

import typer

from fuzz import child, values, versions
from fuzz.output import Json, emit, note
from properties.contract import CLAUSES, UsageError
from properties.targets import BUILTIN, GROUP, WITH_PATH


def command(
    properties: Annotated[bool, typer.Option("--properties", help="List the clauses of the contract instead.")] = False,
    device: Annotated[str, typer.Option(help="cpu or cuda, for targets that have tensors.")] = "cpu",
    json_: Json = False,
) -> int:
    """List every target: its level, whether it can run here or why not, and its version."""
    values.choice(device, "--device", ("cpu", "cuda"))
    if properties:
        clauses = [{"id": c.id, "rank": c.rank, "levels": list(c.levels), "text": c.text} for c in CLAUSES.values()]
        lines = [f"{c.id:10} {c.rank:8} {c.text} [{', '.join(c.levels)}]" for c in CLAUSES.values()]
        emit(clauses, as_json=json_, text="\n".join(lines))
        return 0
    found = all_targets(device)
    width = max(len(str(row["name"])) for row in found)
    from_path = [
        f"{name + ':PATH':{width}}  {'':9}  {entry.level:9} {entry.summary}" for name, entry in WITH_PATH.items()
    ]
    emit(found, as_json=json_, text="\n".join([*(_line(row, width) for row in found), *from_path]))
    return 0


def all_targets(device: str) -> list[dict[str, object]]:
    """Each target that is known by name, tried in a process of its own."""
    note("trying each target in a process of its own ...")
    plugins = [entry.name for entry in entry_points(group=GROUP) if entry.name not in BUILTIN]
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda name: _try(name, device), [*BUILTIN, *plugins]))


def _try(name: str, device: str) -> dict[str, object]:
    entry, distribution = BUILTIN.get(name), versions.distribution_of(name)
    row: dict[str, object] = {
        "name": name,
        "level": entry.level if entry else "",
        "summary": entry.summary if entry else f"entry point of the group {GROUP}",
        "available": False,
        "reason": "",
        "version": (versions.installed(distribution) or "") if distribution else "",
    }
    try:
        process = child.start(name, device)
    except UsageError as reason:
        return {**row, "reason": str(reason)}
    try:
        row["level"] = process.ready.level if process.ready else row["level"]
        problem = child.try_to_make(process)
    finally:
        process.stop()
    return {**row, "available": not problem, "reason": problem}


def _line(row: dict[str, object], width: int) -> str:
    state = "available" if row["available"] else "not here "
    version = f" {row['version']}" if row["version"] else ""
    reason = f"\n{'':{width}}  {row['reason']}" if row["reason"] else ""
    return f"{row['name']:{width}}  {state}  {row['level']:9} {row['summary']}{version}{reason}"
