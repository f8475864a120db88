"""`pagefault minimize`: a smaller case beside the case."""

from __future__ import annotations

from typing import Annotated

import typer

from fuzz import values
from fuzz.evidence import minimised
from fuzz.output import Json, emit, note
from fuzz.story import tell
from properties.case import Case, fingerprint, read, write
from properties.contract import UsageError


def command(
    case: Annotated[str, typer.Argument(help="A case file.", metavar="CASE")],
    time: Annotated[str, typer.Option(help="How long to search at most.")] = "60s",
    device: Annotated[str, typer.Option(help="cpu or cuda, for targets that have tensors.")] = "cpu",
    call_limit: Annotated[str, typer.Option(help="How long one call of the target may take.")] = "10s",
    json_: Json = False,
) -> int:
    """Write the smallest case found beside the case, as NAME.min.json."""
    device = values.choice(device, "--device", ("cpu", "cuda"))
    limit_s = values.seconds(call_limit, "--call-limit", longest_s=3600.0)
    budget_s = values.seconds(time, "--time", longest_s=24 * 3600.0)
    path = values.existing_file(case, "CASE")
    old = read(path)
    new = minimised(old, device, limit_s, budget_s)
    beside = path.with_name(path.name.removesuffix(".json").removesuffix(".min") + ".min.json")
    try:
        write(new, beside)
    except OSError as error:
        raise UsageError(
            f"cannot write {beside}: {error.strerror}. Copy the case to a folder that you may write"
        ) from None
    note(f"{_size(old)} before, {_size(new)} now")
    result = {"path": str(beside), "steps_before": len(old.operations), "steps": len(new.operations)}
    result["fingerprint"] = fingerprint(new)
    emit(result, as_json=json_, text=f"{tell(new, replay=f'pagefault repro {beside}')}\n\ncase: {beside}")
    return 0


def _size(case: Case) -> str:
    tokens = sum(len(getattr(op, "tokens", ())) for op in case.operations)
    return f"{len(case.operations)} steps with {tokens} tokens"
