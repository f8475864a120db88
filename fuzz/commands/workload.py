"""`pagefault workload`: a recorded production workload through targets, invariants on."""

from __future__ import annotations

import json
import sys
import time
from typing import Annotated

import typer

from fuzz import values
from fuzz.output import Json, note, say
from fuzz.trace_file import read_requests
from fuzz.workload import run_blocks
from fuzz.workload_base import Tell, Watch, check_block_size
from fuzz.workload_isolated import run_isolated
from fuzz.workload_pool import WorkloadResult
from properties.contract import UsageError
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
    call_limit: Annotated[str, typer.Option(help="How long one call of the target may take.")] = values.DEFAULT_LIMIT,
    json_: Json = False,
) -> int:
    """Run a recorded workload through targets: hit rate, peak, evictions, speed; exit 1 with a fault."""
    from fuzz.workload_report import as_fields, in_words

    size = values.whole(block_size, "--block-size", 1, 512, "16")
    check_block_size(size)
    most = values.whole(requests, "--requests", 1, 10**9, "1000") if requests else None
    num_blocks = values.whole(blocks, "--blocks", 1, 1 << 30, "4096") if blocks else None
    num_live = values.whole(live, "--live", 1, 4096, "64")
    limit_s = values.call_limit(call_limit)
    targets = [_loaded(name) for name in (target or ["ours"])]
    for _ in read_requests(trace, most):  # a mistake in the file is said before anything runs
        pass
    results, problems = [], []
    for found in targets:
        try:
            results.append(_run(found, trace, most, size, num_blocks, num_live, limit_s))
        except UsageError as error:  # of this target: what the others gave is still told
            problems.append(f"{found.name}: {error}".removeprefix(f"{found.name}: {found.name}: "))
    problems += [problem for result in results for problem in _proved_nothing(result)]
    if json_:
        say(json.dumps(as_fields(results, problems), indent=1, ensure_ascii=False))
    elif results:
        say(in_words(results))
    problems += _drawn(results, plot) if plot else []
    for problem in problems:
        note(f"pagefault: {' '.join(problem.split())}")
    if any(result.breaches for result in results):
        return 1
    return 2 if problems else 0


def _loaded(name: str) -> Target:
    target = load(name)
    if target.level not in ("blocks", "engine"):
        raise UsageError(f"target {name} is of level {target.level}: a workload runs through blocks and engine targets")
    return target


def _run(
    target: Target, path: str, most: int | None, size: int, num_blocks: int | None, live: int, limit_s: float
) -> WorkloadResult:
    """Run one target in a process of its own. Raises `UsageError` where that gives no result."""

    def work(tell: Tell, watch: Watch) -> WorkloadResult:
        adapter = target.make()
        sizes = getattr(getattr(adapter, "capabilities", None), "block_sizes", (size,))
        if size not in sizes:
            declared = ", ".join(map(str, sizes))
            note(f"pagefault: {target.name} declares block sizes {declared}; {size} is tried all the same")
        run = run_blocks
        if target.level == "engine":
            from fuzz.workload_engine import run_engine

            run = run_engine
        return run(target.name, adapter, lambda: read_requests(path, most), size, num_blocks, live, tell, watch)

    return run_isolated(work, target.name, limit_s, _teller(target.name))


def _proved_nothing(result: WorkloadResult) -> list[str]:
    """Why a run without a fault says nothing, where no request could run."""
    if result.num_served or result.breaches:
        return []
    return [
        f"{result.target}: none of the {result.num_requests:,} requests fits into {result.num_blocks:,} blocks of "
        f"{result.block_size}, so nothing was shown. The longest needs {result.longest_blocks:,}: give --blocks at least "
        f"{result.longest_blocks + 1:,}, or leave it out for a pool that never evicts"
    ]


def _drawn(results: list[WorkloadResult], path: str) -> list[str]:
    """Draw the plot; what is wrong with it, if anything. The figures have been told by now."""
    from fuzz.workload_report import plot

    if not results:
        return [f"--plot {path} was not drawn: no target gave a result"]
    try:
        plot(results, path)
    except Exception as error:  # whatever a plotting library raises must not cost the results
        return [str(error) if isinstance(error, UsageError) else f"--plot {path}: {type(error).__name__}: {error}"]
    return []


def _teller(name: str) -> Tell:
    """A line of progress now and then, on standard error."""
    due = time.monotonic() + (1.0 if sys.stderr.isatty() else LINE_EVERY_S)

    def tell(result: WorkloadResult) -> None:
        nonlocal due
        if time.monotonic() >= due:
            due = time.monotonic() + LINE_EVERY_S
            note(f"{name}: {result.num_requests:,} requests, {result.hit_rate:.1%} hit, {result.elapsed_s:.0f} s")

    return tell
