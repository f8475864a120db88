"""`pagefault`: registers the commands. Each lives in a file of its own, imported when it is asked for."""

from __future__ import annotations

import importlib
import os
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperGroup

COMMANDS = {
    "targets": "targets",
    "doctor": "doctor",
    "run": "run",
    "repro": "repro",
    "minimize": "minimize",
    "show": "show",
    "test": "test",
    "new-target": "new_target",
    "check-target": "check_target",
    "judge": "judge",
    "workload": "workload",
    "bench": "bench",
}
"""Command -> module of `fuzz.commands`, whose function `command` it is. In the order of the help."""

PASSES_ARGUMENTS = {"test"}
"""Commands that hand what they do not know on to another program."""
HELP = {"help_option_names": ["-h", "--help"]}


class LazyCommands(TyperGroup):
    """Imports a command when it is used: start-up is part of every campaign."""

    def list_commands(self, ctx: Any) -> list[str]:
        """The names, in the order of the help."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of that name, or None."""
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"fuzz.commands.{COMMANDS[cmd_name]}")
        app = typer.Typer(add_completion=False)
        passes = cmd_name in PASSES_ARGUMENTS
        settings = HELP | ({"allow_extra_args": True, "ignore_unknown_options": True} if passes else {})
        app.command(cmd_name, context_settings=settings)(module.command)
        return typer.main.get_command(app)


app = typer.Typer(cls=LazyCommands, no_args_is_help=True, add_completion=False, context_settings=HELP)


@app.callback()
def root() -> None:
    """Find faults in paged KV caches: fuzz an implementation, replay what broke, explain it."""


def main(arguments: list[str] | None = None) -> None:
    """Run a command; ends the process. 0 fine, 1 findings, 2 a mistake or an error."""
    arguments = sys.argv[1:] if arguments is None else arguments
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the shell (>&-)
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115  (for as long as the process lives)
    sys.exit(_guarded(arguments))


def _guarded(arguments: list[str]) -> int:
    from fuzz import output
    from properties.contract import UsageError

    as_json = _is_json(arguments)
    try:
        code = typer.main.get_command(app).main(arguments, prog_name="pagefault", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except UsageError as error:
        output.fail(str(error), as_json=as_json)
    except BrokenPipeError:
        output.hush()
    except KeyboardInterrupt:
        output.note("pagefault: interrupted")
    except OSError as error:
        output.fail(_io_words(error), as_json=as_json)
    except Exception as error:
        if not hasattr(error, "format_message"):
            raise
        output.fail(f"{error.format_message()} `pagefault --help` lists the commands and options", as_json=as_json)
    return 2


def _is_json(arguments: list[str]) -> bool:
    """Whether standard output is for a program. `bench --json FILE` writes a file beside what it says."""
    if arguments[:1] == ["bench"]:
        return "--json=-" in arguments or ("--json", "-") in pairwise(arguments)
    return "--json" in arguments


def _io_words(error: OSError) -> str:
    from fuzz import output

    reason = error.strerror or str(error)
    if error.filename:
        return f"cannot read or write {error.filename}: {reason}"
    output.hush()  # no file of ours is open without a name but standard output
    return f"cannot write standard output: {reason}. Make room, or send it elsewhere"


if __name__ == "__main__":
    main()
