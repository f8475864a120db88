"""What a name that leads to no target was perhaps meant to be, and what went wrong in a module that cannot be imported."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from properties.blame import clean, last_lines, passes, said
from properties.contract import PagefaultError, UsageError

T = TypeVar("T")


def imported(name: str, load: Callable[[], T]) -> T:
    """What `load` gives. Raises `UsageError` with the line where a module of the user's cannot be imported."""
    try:
        return load()
    except PagefaultError:
        raise
    except BaseException as error:  # a module may raise anything, SystemExit too
        passes(error)
        raise UsageError(f"target {name!r} cannot be imported: {_where(error)}. Mend it first") from error


def _where(error: BaseException) -> str:
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename.rsplit('/', 1)[-1]}:{error.lineno}: {type(error).__name__}: {clean(error.msg)}"
    lines = last_lines(error)
    return f"{said(error)} ({lines})" if lines else said(error)


def file_meant(name: str) -> Path | None:
    """The Python file that a name without an object means, with or without its ending; None where there is none."""
    plain = name.removesuffix(":")
    file = Path(plain if plain.endswith(".py") else f"{plain}.py")
    return file if file.is_file() else None


def names_no_object(name: str, file: Path) -> UsageError:
    """The error for a file whose object is left out, with the objects that may be meant. Does not import it."""
    try:
        found = [f"{file}:{entry}" for entry in objects_in(file)]
    except (SyntaxError, ValueError, OSError) as error:
        return UsageError(f"target {name!r} names a file that cannot be read: {_where(error)}. Mend it first")
    remedy = f"one of {', '.join(found):.300}" if found else "it defines no class, and no function without arguments"
    return UsageError(f"target {name!r} names a file and no object in it: {remedy}")


def objects_in(file: Path) -> list[str]:
    """Classes and functions without arguments that a file defines; first those that look like adapters."""
    nodes = ast.parse(file.read_bytes(), file.name).body
    classes = [node for node in nodes if isinstance(node, ast.ClassDef) and not node.name.startswith("_")]
    classes.sort(key=lambda node: not {"open", "slots", "capabilities"} & _members(node))
    plain = [
        node.name
        for node in nodes
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_") and not node.args.args
    ]
    return [node.name for node in classes] + plain


def _members(node: ast.ClassDef) -> set[str]:
    names = {part.name for part in node.body if isinstance(part, ast.FunctionDef)}
    assigned = [target for part in node.body if isinstance(part, ast.Assign) for target in part.targets]
    return names | {target.id for target in assigned if isinstance(target, ast.Name)}
