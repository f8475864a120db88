"""A bench as text: a row for each case and target, the geometric means, and what the marks mean."""

from __future__ import annotations

import io
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from fuzz.bench.result import Ceilings, Result, Row

WIDTH = 240
"""No cell is ever cut: a table is as wide as it needs to be, about 115 columns for the default cases."""


BUSY = 0.7
"""Load a processor from which times on a CPU are not to be trusted."""


def in_words(result: Result) -> str:
    """Everything that is printed, findings last."""
    console = Console(file=io.StringIO(), width=WIDTH, highlight=False, color_system=None)
    console.print(_head(result), markup=False)
    if result.rows:
        console.print(_table(result))
    if result.compared:
        console.print(_means(result))
    for line in (*_marks(result), *_absent(result), *_findings(result)):
        console.print(line, markup=False, soft_wrap=True)
    file = console.file
    assert isinstance(file, io.StringIO)
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines())


def _head(result: Result) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in result.versions.items())
    return f"{result.device_name}, {versions}, {result.date}\n{ceilings_in_words(result.ceilings, result.device)}"


def ceilings_in_words(ceilings: Ceilings, device: str) -> str:
    """What the machine can do, in one line."""
    parts = []
    if ceilings.read_tb_s is not None:
        parts.append(f"reads {rate(ceilings.read_tb_s, device)}")
    if ceilings.copy_tb_s is not None:
        parts.append(f"copies {rate(ceilings.copy_tb_s, device)}, both directions counted")
    if ceilings.product_tflops is not None:
        parts.append(f"multiplies matrices at {flops(ceilings.product_tflops, device)}")
    return f"measured here: it {', '.join(parts)}" if parts else "no ceiling was measured"


def rate(tb_s: float, device: str) -> str:
    """A bandwidth in the unit that suits the device.

    >>> rate(4.137, "cuda"), rate(0.0123, "cpu")
    ('4.14 TB/s', '12.3 GB/s')
    """
    return f"{tb_s * 1e3:.3g} GB/s" if device == "cpu" else f"{tb_s:.2f} TB/s"


def flops(tflops: float, device: str) -> str:
    """An arithmetic speed in the unit that suits the device.

    >>> flops(457.3, "cuda"), flops(0.0219, "cpu")
    ('457 TFLOP/s', '21.9 GFLOP/s')
    """
    return f"{tflops * 1e3:.3g} GFLOP/s" if device == "cpu" else f"{tflops:.0f} TFLOP/s"


def _table(result: Result) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("case", "target"):
        table.add_column(name, no_wrap=True)
    for name in ("time", "rate", "of ceiling", *_ratio_column(result), "error"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("timed by", no_wrap=True)
    previous = ""
    for row in result.rows:
        if previous and row.case != previous:
            table.add_section()
        table.add_row(f"{row.kind} {row.case}" if row.case != previous else "", row.target, *_cells(row, result))
        previous = row.case
    return table


def _ratio_column(result: Result) -> list[str]:
    return ["ratio"] if result.against else []


def _cells(row: Row, result: Result) -> list[str]:
    device, ratio = result.device, [_ratio(row.ratio) for _ in _ratio_column(result)]
    if row.us is None:
        note = {"wrong": "WRONG: not timed", "failed": "FAILED", "refused": "refused"}[row.state]
        return ["", "", "", *ratio, _number(row.error, ".1e"), note]
    speed = flops(row.tflops, device) if row.tflops is not None else rate(row.tb_s or 0.0, device)
    marks = [row.how or "", "plain call" if row.plain else ""]
    return [
        duration(row.us), speed, _number(row.of_ceiling, ".2f"), *ratio, _number(row.error, ".1e"),
        ", ".join(mark for mark in marks if mark),
    ]  # fmt: skip


def duration(us: float) -> str:
    """Four figures.

    >>> duration(11.34), duration(1381.2), duration(29242.6)
    ('11.3 us', '1381 us', '29.24 ms')
    """
    return f"{us:.1f} us" if us < 1000 else f"{us:.0f} us" if us < 10000 else f"{us / 1e3:.2f} ms"


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}" if value < 100 else f"{value:.0f}"


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _means(result: Result) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(f"time over that of {result.target}")
    for name in ("geometric mean", "least", "most", "cases"):
        table.add_column(name, justify="right")
    for row in result.compared:
        numbers = (_ratio(row.geometric_mean), _ratio(row.least), _ratio(row.most), str(row.num_cases))
        table.add_row(f"{row.against}, {row.kind}", *numbers)
    return table


def _marks(result: Result) -> list[str]:
    hows = {row.how for row in result.rows}
    ratio = f"ratio: time over that of {result.target}, so above 1 {result.target} is faster"
    texts = {
        "graph": "graph: CUDA-graph replay over rotating inputs, median of one call",
        "events": "events: the call cannot be captured in a CUDA graph; between two events, what the host does included",
        "clock": "clock: shortest of some calls by the clock, the cache flushed before each; other work still counts",
    }
    lines = [ratio] if result.against else []
    lines += [text for how, text in texts.items() if how in hows]
    if result.load is not None and result.load > BUSY:
        lines.append(
            f"this machine is busy (load {result.load:.1f} a processor): times on its CPU may be many times too long, since "
            "threads wait for each other; run it again on an idle one"
        )
    if any(row.plain and row.us for row in result.rows):
        lines.append(
            "plain call: the adapter's own conversions are in the time; `prepare_*` takes them out (docs/bench.md)"
        )
    if any((row.of_ceiling or 0) > 1.05 for row in result.rows):
        lines.append("above the ceiling: part of the inputs was still in the cache")
    return lines


def _absent(result: Result) -> list[str]:
    refused = dict.fromkeys(
        f"refused by {row.target}: {row.why} ({row.kind} {row.case})"
        for row in {(row.target, row.why): row for row in reversed(result.rows) if row.state == "refused"}.values()
    )
    lines = [f"left out: {why}" for why in result.left_out.values()]
    return [*refused, *lines, *(f"not here: {name}: {why}" for name, why in result.missing.items())]


def _findings(result: Result) -> Sequence[str]:
    return [
        f"{'WRONG' if row.state == 'wrong' else 'FAILED'}  {row.target}, {row.kind} {row.case}, {row.dtype}: {row.why}"
        for row in result.findings
    ]
