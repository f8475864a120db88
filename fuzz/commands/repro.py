"""`pagefault repro`: does a case still fail?"""

from __future__ import annotations

import dataclasses
import json
from typing import Annotated

import typer

from fuzz import values
from fuzz.output import CallLimit, Json, hint, say
from fuzz.replay import EXIT_CODES, Replayed, replay_all


def command(
    case: Annotated[list[str], typer.Argument(help="Case files.", metavar="CASE...")],
    target: Annotated[
        str | None, typer.Option("--target", "-t", help="Replay on this target instead of the one named in the case.")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda, for targets that have tensors.")] = "cpu",
    call_limit: CallLimit = values.DEFAULT_LIMIT,
    json_: Json = False,
) -> int:
    """Replay cases, each in a fresh process: FIXED, FAILED or ERROR; exit 0, 1 or 2, the worst wins."""
    device = values.choice(device, "--device", ("cpu", "cuda"))
    limit_s = values.call_limit(call_limit)
    for path in case:
        values.case_path(path)
    results = replay_all(case, device, limit_s, (lambda result: None) if json_ else _tell, target)
    if json_:
        say(json.dumps([dataclasses.asdict(result) for result in results], indent=1))
    return max(EXIT_CODES[result.status] for result in results)


def _tell(result: Replayed) -> None:
    where = f"{result.target}: " if result.target else ""
    steps = f"\n    its steps: {hint('show', result.path)}" if result.status == "FAILED" else ""
    say(f"{result.status}  {result.path}\n    {where}{result.detail}{steps}")
