"""What a workload gave: in words, as fields, as a plot of blocks in use over time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from fuzz.workload_pool import WorkloadResult
from properties.contract import UsageError, clause
from properties.wording import counted


def in_words(results: Sequence[WorkloadResult]) -> str:
    """One paragraph a target; with several, a table of the ratios to the first."""
    lines: list[str] = []
    for result in results:
        lines += _paragraph(result)
    if len(results) > 1:
        lines += ["", "time inside the target, against the first:"]
        first = results[0]
        for result in results:
            ratio = result.target_s / max(first.target_s, 1e-9)
            lines.append(f"  {result.target:32} {result.target_s:9.2f} s   x {ratio:.2f}")
    return "\n".join(lines)


def _paragraph(result: WorkloadResult) -> list[str]:
    per_second = result.num_operations / max(result.elapsed_s, 1e-9)
    expected = ""
    if result.expected_hit_tokens is not None:
        same = "equal to" if result.hit_tokens == result.expected_hit_tokens else "not equal to"
        expected = f", {same} the {result.expected_hit_tokens:,} counted from the file"
    lines = [
        f"{result.target}: {counted(result.num_requests, 'request')}, block size {result.block_size}, "
        f"{counted(result.num_blocks, 'block')}",
        f"  hit {result.hit_tokens:,} of {result.prompt_tokens:,} prompt tokens ({result.hit_rate:.1%}){expected}",
        f"  peak {counted(result.peak_blocks, 'block')} in use, {counted(result.refusals, 'refusal')}",
        f"  {counted(result.evictions, 'eviction')}: blocks that held a full block of a prompt when they were handed out for "
        "other tokens, copies included"
        if result.prefix_cache
        else "  no prefix cache is declared: what is handed out again was never there to be hit",
        f"  {counted(result.num_operations, 'operation')} in {result.elapsed_s:.1f} s ({per_second:,.0f}/s), "
        f"{result.target_s:.1f} s of it inside the target; the whole pool was checked "
        f"{counted(result.num_pool_checks, 'time')}",
    ]
    if result.num_skipped or result.num_cut:
        lines.append(
            f"  {counted(result.num_skipped, 'request')} never fitted, replies cut short: {result.num_cut:,}; the longest "
            f"needs {counted(result.longest_blocks, 'block')}"
        )
    if result.ended:
        lines.append(f"  ENDED EARLY, after {counted(result.num_requests, 'request')}: {result.ended}")
    for breach in result.breaches:
        lines += [
            f"  FAULT  {breach.property}: {clause(breach.property).text}",
            f"      operation {breach.step}: {breach.message}",
        ]
    if not result.breaches:
        lines.append("  no fault" if result.num_served else "  nothing ran")
    return lines


def as_fields(results: Sequence[WorkloadResult], problems: Sequence[str] = ()) -> list[dict[str, Any]]:
    """The results for a program; a target that gave none has an entry that says why."""
    fields: list[dict[str, Any]] = []
    for result in results:
        entry = msgspec.to_builtins(result)
        entry["breaches"] = [breach._asdict() for breach in result.breaches]
        entry["hit_rate"] = result.hit_rate
        fields.append(entry)
    return fields + [{"error": problem} for problem in problems]


def plot(results: Sequence[WorkloadResult], path: str) -> None:
    """Blocks in use over the operations, as PNG, SVG or PDF by the name. Raises `UsageError` without matplotlib."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ModuleNotFoundError:
        raise UsageError("--plot needs matplotlib: pip install 'pagefault[report]'") from None
    figure, axes = pyplot.subplots(figsize=(9, 4.5), layout="constrained")
    for result in results:
        operations = [operation for operation, _ in result.curve]
        axes.plot(operations, [blocks for _, blocks in result.curve], label=result.target, linewidth=1)
    axes.set_xlabel("operations")
    axes.set_ylabel("blocks held by live requests")
    axes.set_ylim(bottom=0)
    axes.legend()
    axes.grid(alpha=0.3)
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise UsageError(f"--plot {path}: {error}") from None
    finally:
        pyplot.close(figure)
