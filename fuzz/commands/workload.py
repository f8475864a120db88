"""`pagefault workload`: a recorded production workload through targets, invariants on."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Annotated

import typer

from fuzz import values
from fuzz.output import Json, emit, note
from fuzz.trace_file import read_requests
from fuzz.workload import WorkloadResult, check_block_size, run_blocks
from properties.blame import last_lines
from properties.contract import AdapterError, UsageError
from properties.targets import Target, load

LINE_EVERY_S = 10.0


def command(
    trace: Annotated[
        str, typer.Argument(help="Requests, JSON Lines in the format of Mooncake.", metavar="TRACE.jsonl")
    ],
    target: Annotated[
        list[str] | None,
        typer.Option("--target", "-t", help="Blocks or engine target; may be repeated. Default: ours."),
    ] = None,
    requests: Annotated[str | None, typer.Option(help="Only the first N requests.")] = None,
    block_size: Annotated[str, typer.Option(help="Tokens per block; a divisor of 512.")] = "16",
    blocks: Annotated[
        str | None, typer.Option(help="Blocks of the pool. Default: so many that none is evicted.")
    ] = None,
    live: Annotated[str, typer.Option(help="Requests alive at once.")] = "64",
    plot: Annotated[str | None, typer.Option(help="Write blocks in use over time to this PNG, SVG or PDF.")] = None,
    json_: Json = False,
) -> int:
    """Run a recorded workload through targets: hit rate, peak, evictions, speed; exit 1 with a fault."""
    from fuzz.workload_report import as_fields, in_words
    from fuzz.workload_report import plot as draw

    size = values.whole(block_size, "--block-size", 1, 512, "16")
    check_block_size(size)
    most = values.whole(requests, "--requests", 1, 10**9, "1000") if requests else None
    num_blocks = values.whole(blocks, "--blocks", 1, 10**9, "4096") if blocks else None
    num_live = values.whole(live, "--live", 1, 4096, "64")
    path = str(values.existing_file(trace, "TRACE"))
    targets = [load(name) for name in (target or ["ours"])]
    for _ in read_requests(path, most):  # a mistake in the file is said before anything runs
        pass
    results = [_guarded_run(found, path, most, size, num_blocks, num_live) for found in targets]
    if plot:
        draw(results, plot)
    emit(as_fields(results), as_json=json_, text=in_words(results))
    return 1 if any(result.breaches for result in results) else 0


def _guarded_run(
    target: Target, path: str, most: int | None, size: int, num_blocks: int | None, live: int
) -> WorkloadResult:
    """Run one target; whatever it raises or does to this process becomes one line, never a traceback or a clean exit."""
    try:
        return _run(target, path, most, size, num_blocks, live)
    except (UsageError, KeyboardInterrupt):
        raise
    except AdapterError as error:
        raise UsageError(f"verdict ADAPTER for {target.name}: {error}") from error
    except BaseException as error:  # SystemExit too: a target that ends the process must not pass for a clean run
        raise UsageError(
            f"verdict ADAPTER for {target.name}: it raised {type(error).__name__}: {error} ({last_lines(error)}). "
            f"`pagefault check-target {target.name}` looks at each call by itself"
        ) from error


def _run(target: Target, path: str, most: int | None, size: int, num_blocks: int | None, live: int) -> WorkloadResult:
    if target.level not in ("blocks", "engine"):
        raise UsageError(
            f"target {target.name} is of level {target.level}: a workload runs through blocks and engine targets"
        )
    adapter = target.make()
    sizes = adapter.capabilities.block_sizes
    if size not in sizes:
        note(
            f"pagefault: {target.name} declares block sizes {', '.join(map(str, sizes))}; {size} is tried all the same"
        )
    run: Callable[..., WorkloadResult] = run_blocks
    if target.level == "engine":
        from fuzz.workload_engine import run_engine

        run = run_engine
    return run(target.name, adapter, lambda: read_requests(path, most), size, num_blocks, live, _teller(target.name))


def _teller(name: str) -> Callable[[WorkloadResult], None]:
    """A line of progress now and then, on standard error."""
    due = time.monotonic() + (1.0 if sys.stderr.isatty() else LINE_EVERY_S)

    def tell(result: WorkloadResult) -> None:
        nonlocal due
        if time.monotonic() >= due:
            due = time.monotonic() + LINE_EVERY_S
            note(f"{name}: {result.num_requests:,} requests, {result.hit_rate:.1%} hit, {result.elapsed_s:.0f} s")

    return tell
