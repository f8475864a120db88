"""What every command shares: how it prints, as text or as JSON, and how it fails in one clear line."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import sys
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import typer

Json = Annotated[bool, typer.Option("--json", help="One JSON object on standard output instead of text.")]
CallLimit = Annotated[
    str,
    typer.Option(
        help="How long one call of the target may take, on a processor or waiting for anything but one; "
        "120s for kernels if nothing is said."
    ),
]


def hint(command: str, path: Path | str, *options: str) -> str:
    """A command line of pagefault on a file, as it can be pasted into this shell: `pagefault repro FILE`."""
    return " ".join([_program(), command, shlex.quote(str(path)), *options])


def on_device(device: str) -> list[str]:
    """The options that say on which device a case was found."""
    return [] if device == "cpu" else ["--device", device]


@cache
def _program() -> str:
    """How this pagefault is started: by its name, where the shell finds it by that, else as it was started just now."""
    me = Path(sys.argv[0])
    if me.name == "__main__.py" and me.parent.name == "fuzz":
        return "pagefault" if shutil.which("pagefault") else f"{Path(sys.executable).name} -m fuzz"
    found = shutil.which("pagefault")
    if me.name != "pagefault" or not me.exists() or (found is not None and Path(found).samefile(me)):
        return "pagefault"
    near = os.path.relpath(me)
    return shlex.quote(near if not near.startswith("..") else str(me.parent.resolve() / me.name))


def emit(value: Any, *, as_json: bool, text: str) -> None:
    """Print a result: JSON or text, on standard output."""
    say(json.dumps(value, indent=1, ensure_ascii=False) if as_json else text)


def say(text: str) -> None:
    """A line on standard output: results go there, and nothing else."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def note(text: str) -> None:
    """A line for the person at the terminal, on standard error. A full disk or a closed pipe there stops nothing."""
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()


def fail(message: str, *, as_json: bool) -> None:
    """One line that says what is wrong and what to do; as JSON as well where that was asked for. Does not exit."""
    line = " ".join(message.split())
    if as_json:
        with contextlib.suppress(OSError):
            say(json.dumps({"error": line, "exit_code": 2}))
    note(f"pagefault: {line}")


def hush() -> None:
    """Point standard output at nothing, where it cannot be written any more, so that the final flush is quiet."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
