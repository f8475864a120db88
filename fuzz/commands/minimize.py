"""`pagefault minimize`: a smaller case beside the case."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from fuzz import values
from fuzz.evidence import minimised
from fuzz.output import CallLimit, Json, emit, hint, note, on_device
from fuzz.story import tell
from fuzz.whereabouts import located
from properties.case import Case, fingerprint, read, write
from properties.contract import UsageError
from properties.wording import counted


def command(
    case: Annotated[str, typer.Argument(help="A case file.", metavar="CASE")],
    target: Annotated[
        str | None, typer.Option("--target", "-t", help="Target to use instead of the one named in the case.")
    ] = None,
    time: Annotated[str, typer.Option(help="How long to search at most.")] = "60s",
    device: Annotated[str, typer.Option(help="cpu or cuda, for targets that have tensors.")] = "cpu",
    call_limit: CallLimit = values.DEFAULT_LIMIT,
    json_: Json = False,
) -> int:
    """Write the smallest case found beside the case, as NAME.min.json; nothing where none is smaller."""
    device = values.choice(device, "--device", ("cpu", "cuda"))
    limit_s = values.call_limit(call_limit)
    budget_s = values.seconds(time, "--time", longest_s=24 * 3600.0)
    path = values.existing_file(case, "CASE")
    old = read(path)
    name = old.target if target is None else target
    new = minimised(_aimed(old, located(name, path) if target is None else name), device, limit_s, budget_s)
    new = _aimed(new, name)
    smaller = (new.geometry, new.operations) != (old.geometry, old.operations)
    beside = path.with_name(path.name.removesuffix(".json").removesuffix(".min") + ".min.json") if smaller else path
    if smaller:
        _write(new, beside)
        note(f"{_size(old)} before, {_size(new)} now")
        last = f"case: {beside}"
    else:
        last = f"it is as small as can be found: {_size(old)}. Nothing was written; the case is {path}"
    result = {"path": str(beside), "steps_before": len(old.operations), "steps": len(new.operations)}
    result |= {"smaller": smaller, "fingerprint": fingerprint(new)}
    emit(result, as_json=json_, text=f"{tell(new, replay=hint('repro', beside, *on_device(device)))}\n\n{last}")
    return 0


def _aimed(case: Case, target: str) -> Case:
    return Case(**{**msgspec.structs.asdict(case), "target": target})


def _write(case: Case, path: Path) -> None:
    try:
        write(case, path)
    except OSError as error:
        raise UsageError(
            f"cannot write {path}: {error.strerror}. Copy the case to a folder that you may write"
        ) from None


def _size(case: Case) -> str:
    """Steps, and the tokens in them where there are any: a case of attention has none."""
    runs = [run for op in case.operations for run in (getattr(op, "tokens", ()), *getattr(op, "runs", ()))]
    tokens = sum(map(len, runs))
    steps = counted(len(case.operations), "step")
    return f"{steps} with {counted(tokens, 'token')}" if tokens else steps
