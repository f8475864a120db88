"""`pagefault new-target`: a commented adapter to fill in."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

import fuzz
from fuzz.output import Json, emit, hint
from properties.contract import UsageError

TEMPLATES = Path(fuzz.__file__).parent / "templates"


def command(
    kind: Annotated[
        str, typer.Argument(help="Level of the target: blocks, engine, attention or cache.", metavar="KIND")
    ],
    file: Annotated[str, typer.Argument(help="Where to write it; must not exist yet.", metavar="FILE")],
    json_: Json = False,
) -> int:
    """Write a commented adapter to fill in. Never overwrites a file."""
    kinds = sorted(path.stem for path in TEMPLATES.glob("*.py") if not path.stem.startswith("_"))
    if kind not in kinds:
        raise UsageError(f"KIND {kind!r} has no template: give {' or '.join(kinds)}")
    path = Path(file)
    if path.suffix != ".py":
        raise UsageError(
            f"FILE {file} must end in .py, for example my_target.py: it is named as {path.stem or 'FILE'}.py:Target"
        )
    text = (TEMPLATES / f"{kind}.py").read_text().replace("THIS_FILE.py", file)
    _write_new(path, text)
    name = f"{file}:Target"
    steps = [f"fill in {file}", hint("check-target", name), hint("run -t", name)]
    emit(
        {"path": file, "next": steps},
        as_json=json_,
        text="\n".join(["written; next:", *(f"  {step}" for step in steps)]),
    )
    return 0


def _write_new(path: Path, text: str) -> None:
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    except FileExistsError:
        raise UsageError(f"FILE {path} exists, and is left as it is: give another name") from None
    except OSError as error:
        raise UsageError(
            f"FILE {path} cannot be written: {error.strerror}. Give a folder that exists and may be written"
        ) from None
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
    except OSError as error:
        path.unlink(missing_ok=True)  # half a template, or an empty file, would only stand in the way of the next try
        raise UsageError(
            f"FILE {path} cannot be written: {error.strerror}. Make room, or give another folder"
        ) from None
