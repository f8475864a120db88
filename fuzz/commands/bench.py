"""`pagefault bench`: correctness first, then speed side by side."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fuzz.output import note, say
from properties.contract import UsageError

if TYPE_CHECKING:
    from fuzz.bench.result import Result


def command(
    target: Annotated[str, typer.Option("--target", "-t", help="The attention target under test, or a peer.")],
    against: Annotated[
        list[str] | None,
        typer.Option(help="What it is held against; may be repeated. `peers`: every peer that is installed."),
    ] = None,
    suite: Annotated[list[str] | None, typer.Option(help="decode, prefill or store; may be repeated.")] = None,
    case: Annotated[
        list[str] | None, typer.Option(help="A case instead, such as 32x4096x32/8/128/p16; may be repeated.")
    ] = None,
    dtype: Annotated[str | None, typer.Option(help="float32, float16 or bfloat16.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda. Default: cuda where there is a GPU.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="The first case of each suite alone.")] = False,
    json_: Annotated[
        str | None, typer.Option("--json", metavar="OUT", help="Write the numbers there; - prints them instead.")
    ] = None,
    plot: Annotated[str | None, typer.Option(help="Draw speed against shape to this PNG, SVG or PDF.")] = None,
) -> int:
    """Time an attention target beside others, each answer checked against float64 first; exit 1 with a wrong one."""
    for path, option in ((json_, "--json"), (plot, "--plot")):
        if path is not None and path != "-":
            _writable(path, option)
    if plot is not None and json_ == plot:
        raise UsageError(f"--json and --plot both name {plot}: give each a file of its own")
    if plot is not None:
        _drawable(plot)
    if importlib.util.find_spec("torch") is None:  # not imported here: see `apart`
        raise UsageError("bench needs torch: pip install 'pagefault[torch]'")
    from fuzz.bench import apart

    options = {"target": target, "dtype": dtype, "device": device, "quick": quick}
    lists = {"against": tuple(against or ()), "suites": tuple(suite or ()), "cases": tuple(case or ())}
    try:
        result = apart.run({**options, **lists})
    except apart.Died as death:
        note(f"FAILED  {death}. The other cases can be run alone with --case, the other targets without this one")
        return 1
    return _show(result, json_, plot)


def _show(result: Result, json_: str | None, plot: str | None) -> int:
    from fuzz.bench import plot as plotting
    from fuzz.bench.result import to_json
    from fuzz.bench.table import in_words

    if json_ == "-":
        say(to_json(result).decode())
    else:
        say(in_words(result))
        if json_ is not None:
            _write(json_, to_json(result) + b"\n")
    timed = any(row.us is not None for row in result.rows if row.target == result.target)
    if plot is not None and any(row.us is not None for row in result.rows):
        plotting.write(result, plot)
    if result.findings:
        return 1
    if not timed:
        reasons = "; ".join(dict.fromkeys(row.why for row in result.rows if row.target == result.target))
        raise UsageError(f"no case of {result.target} was timed: {reasons or 'there was none'}. Name one with --case")
    return 0


def _write(path: str, data: bytes) -> None:
    try:
        Path(path).write_bytes(data)
    except OSError as error:
        raise UsageError(f"--json {path} cannot be written: {error.strerror}. The numbers are printed above") from error


def _writable(path: str, option: str) -> None:
    """Refuses a file that could not be written in the end, before anything runs; creates nothing."""
    file, remedy = Path(path), "give a file in a folder that exists and may be written"
    if not path or file.is_dir():
        raise UsageError(f"{option} {path or 'is empty'}{' is a folder' if path else ''}: {remedy}")
    if not file.parent.is_dir():
        raise UsageError(f"{option} {path}: there is no folder {file.parent}: {remedy}")
    if not os.access(file if file.exists() else file.parent, os.W_OK):
        raise UsageError(f"{option} {path} cannot be written: {remedy}")


def _drawable(path: str) -> None:
    from fuzz.bench.plot import FORMATS, require_matplotlib

    ending = Path(path).suffix.removeprefix(".").lower()
    if ending not in FORMATS:
        raise UsageError(f"--plot {path}: {ending or 'no ending'} is no format: end it in .{' or .'.join(FORMATS)}")
    require_matplotlib()
