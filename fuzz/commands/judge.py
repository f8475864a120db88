"""`pagefault judge`: the referee on a recorded engine history."""

from __future__ import annotations

from typing import Annotated

import typer

from fuzz.judge import as_fields, exit_code, in_words, judge_file
from fuzz.output import Json, emit, note


def command(
    history: Annotated[
        str, typer.Argument(help="A history, JSON Lines; - for standard input.", metavar="HISTORY.jsonl")
    ],
    json_: Json = False,
) -> int:
    """Judge the recorded history of an engine; exit 0 clean, 1 faults, 2 a history that is wrong or cut."""
    verdict = judge_file(history, (lambda line: None) if json_ else note)
    emit(as_fields(history, verdict), as_json=json_, text=in_words(history, verdict))
    return exit_code(verdict)
