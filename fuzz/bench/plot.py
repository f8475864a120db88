"""Speed against shape, with the ceiling: one panel for each kind of call."""

from __future__ import annotations

from typing import Any

from fuzz.bench.result import Result, Row
from properties.contract import UsageError

FORMATS = ("png", "svg", "pdf")
_CEILINGS = {
    "decode": ("read_tb_s", "read ceiling"),
    "store": ("copy_tb_s", "copy ceiling"),
    "prefill": ("product_tflops", "matrix product"),
}


def require_matplotlib() -> None:
    """Raises UsageError where there is none: asked before the bench, not after it."""
    try:
        import matplotlib  # noqa: F401
    except ModuleNotFoundError:
        raise UsageError("--plot needs matplotlib: pip install 'pagefault[report]'") from None


def write(result: Result, path: str) -> None:
    """Writes the figure, in the format that the name ends in. Raises UsageError where it cannot."""
    drawn = figure(result)
    try:
        drawn.savefig(path)
    except (OSError, ValueError) as error:
        raise UsageError(f"--plot {path}: {error}") from None


def figure(result: Result) -> Any:
    """A matplotlib figure. Raises UsageError if nothing was timed."""
    from matplotlib.figure import Figure

    kinds = [kind for kind in _CEILINGS if any(row.kind == kind and row.us for row in result.rows)]
    if not kinds:
        raise UsageError("--plot: nothing was timed, so there is nothing to draw")
    widths = [2 + len({row.case for row in result.rows if row.kind == kind}) for kind in kinds]
    drawn = Figure(figsize=(max(7.0, 0.62 * sum(widths)), 6.0), layout="constrained")
    panels = drawn.subplots(1, len(kinds), squeeze=False, width_ratios=widths)[0]
    for axes, kind in zip(panels, kinds, strict=True):
        _panel(axes, kind, result)
    drawn.suptitle(f"{result.device_name}, {result.rows[0].dtype}, {result.date}")
    return drawn


def _panel(axes: Any, kind: str, result: Result) -> None:
    rows = [row for row in result.rows if row.kind == kind]
    cases = list(dict.fromkeys(row.case for row in rows))
    factor, unit = (1.0, "TFLOP/s") if kind == "prefill" else (1e3, "GB/s") if result.device == "cpu" else (1.0, "TB/s")
    for target, marker in zip((result.target, *result.against), "osD^vPX*<>" * 9, strict=False):
        points = [(cases.index(row.case), _speed(row) * factor) for row in rows if row.target == target and row.us]
        if points:
            axes.plot(*zip(*points, strict=True), marker, label=target, alpha=0.8)
    field, label = _CEILINGS[kind]
    ceiling = getattr(result.ceilings, field)
    if ceiling is not None:
        text = f"{label} {ceiling * factor:.3g} {unit}"
        axes.axhline(ceiling * factor, color="black", linestyle="--", linewidth=1, label=text)
    axes.set_xticks(range(len(cases)), cases, rotation=60, ha="right", rotation_mode="anchor", fontsize="small")
    axes.set_ylim(bottom=0)
    axes.set_title(kind)
    axes.set_ylabel(unit)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")


def _speed(row: Row) -> float:
    return row.tflops if row.tflops is not None else row.tb_s or 0.0
