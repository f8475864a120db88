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
_MARKERS = "osD^vPX*"


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
    widths = [max(3, len({row.case for row in result.rows if row.kind == kind})) for kind in kinds]
    drawn = Figure(figsize=(max(7.0, 1.5 + 0.7 * sum(widths)), 6.5), layout="constrained")
    panels = drawn.subplots(1, len(kinds), squeeze=False, width_ratios=widths)[0]
    for axes, kind in zip(panels, kinds, strict=True):
        _panel(axes, kind, result)
    handles = {line.get_label(): line for axes in panels for line in axes.lines if line.get_marker() != "None"}
    drawn.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=6, fontsize="small")
    drawn.suptitle(f"{result.device_name}, {result.rows[0].dtype}, {result.date}", fontsize="medium")
    return drawn


def _panel(axes: Any, kind: str, result: Result) -> None:
    rows = [row for row in result.rows if row.kind == kind]
    cases = list(dict.fromkeys(row.case for row in rows))
    factor, unit = _unit(kind, result.device)
    for index, target in enumerate((result.target, *result.against)):
        points = [(cases.index(row.case), _speed(row) * factor) for row in rows if row.target == target and row.us]
        if points:
            style = {"color": f"C{index % 10}", "marker": _MARKERS[index % len(_MARKERS)], "linestyle": "none"}
            axes.plot(*zip(*points, strict=True), label=target, alpha=0.8, **style)
    field, label = _CEILINGS[kind]
    ceiling = getattr(result.ceilings, field)
    if ceiling is not None:
        text = f"{label} {ceiling * factor:.3g}"
        axes.axhline(ceiling * factor, color="black", linestyle="--", linewidth=1, label=text)
        at = (0.5, ceiling * factor)
        axes.annotate(
            text,
            at,
            xycoords=("axes fraction", "data"),
            xytext=(0, 3),
            textcoords="offset points",
            ha="center",
            fontsize="small",
        )
    axes.set_xticks(range(len(cases)), cases, rotation=60, ha="right", rotation_mode="anchor", fontsize="small")
    axes.set_xlim(-0.6, len(cases) - 0.4)
    axes.set_ylim(bottom=0, top=axes.get_ylim()[1] * 1.05)
    axes.set_title(f"{kind}, {unit}", fontsize="medium")
    axes.grid(alpha=0.3)


def _unit(kind: str, device: str) -> tuple[float, str]:
    """Factor from what `Row` holds, and the unit that suits the device."""
    on_cpu = device == "cpu"
    if kind == "prefill":
        return (1e3, "GFLOP/s") if on_cpu else (1.0, "TFLOP/s")
    return (1e3, "GB/s") if on_cpu else (1.0, "TB/s")


def _speed(row: Row) -> float:
    return row.tflops if row.tflops is not None else row.tb_s or 0.0
