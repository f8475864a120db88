"""Typed access to an engine adapter: every answer is checked before the referee believes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from properties.blame import shown
from properties.blocks import answers
from properties.blocks.probe import Probe
from properties.contract import AdapterError
from properties.engine.protocol import REQUIRED, EngineCapabilities, Row, Step, StepBatch, offered
from properties.protocol import Copy

_ROW = "return Step(rows=[Row(name, start, stop, samples), ...], copies=[Copy(...), ...])"


def _is_sound(row: Any) -> bool:
    """Whether a row needs no conversion: a `Row` with a name, two whole numbers and a truth value."""
    return (
        type(row) is Row
        and type(row.name) is str
        and type(row.start) is int
        and type(row.stop) is int
        and type(row.samples) is bool
    )


class EngineProbe(Probe):
    """Calls an engine adapter. Raises `AdapterError` where it breaks the protocol, `Refused` and `Crashed` else."""

    capabilities: EngineCapabilities

    def __init__(self, target: Any) -> None:
        self.target = target
        lacks = [name for name in REQUIRED if not callable(getattr(target, name, None))]
        if lacks:
            raise AdapterError(
                f"{type(target).__name__} lacks {', '.join(lacks)}",
                f"an engine target needs {', '.join(REQUIRED)}; `pagefault new-target engine FILE` writes a template",
            )
        capabilities = getattr(target, "capabilities", None)
        if not isinstance(capabilities, EngineCapabilities):
            raise AdapterError(
                f"{type(target).__name__}.capabilities is {type(capabilities).__name__}",
                "set `capabilities = EngineCapabilities(...)` from properties.engine.protocol on the class",
            )
        self.capabilities = capabilities
        self.offers = offered(target)
        self.refusals = capabilities.refusals

    def step(self) -> Step:
        """Launch a step. Rows are checked for type and for ranges that make no sense at all."""
        step = self.read("step", _step)
        for row in step.rows:
            if not 0 <= row.start <= row.stop:
                raise AdapterError(
                    f"step returned the row {shown(row)}, whose range is backward or negative",
                    "start and stop are positions of the sequence, start <= stop",
                )
        return step

    def batch(self, step: Step) -> StepBatch | None:
        """The target's own metadata of the step, where it offers it; its fields as lists of whole numbers."""
        return self.read("batch", _batch, step) if "batch" in self.offers else None

    def live(self) -> Sequence[str]:
        """Names of the requests that the target says have not ended."""
        return self.read("live", answers.names)


def _step(method: str, answer: Any) -> Step:
    if not isinstance(answer, Step):
        raise answers.WrongKind(method, answer, _ROW.removeprefix("return "))
    rows = [row if _is_sound(row) else _row(row) for row in _entries(answer, answer.rows)]
    copies = answers.copies("step, as copies,", _entries(answer, answer.copies))
    return answer._replace(rows=rows, copies=copies)


def _entries(step: Step, entries: Any) -> list[Any]:
    if entries is None or isinstance(entries, Row | Copy):
        raise AdapterError(f"step returned {shown(step)}: its rows and copies are no lists", _ROW)
    return answers.listed("step", entries, _ROW.removeprefix("return "))


def _row(row: Any) -> Row:
    try:
        name, start, stop, samples = row
        if not isinstance(name, str):
            raise TypeError
        return Row(name, answers.whole("step", start), answers.whole("step", stop), answers.truth("step", samples))
    except (TypeError, ValueError, AdapterError):
        raise AdapterError(f"step returned the row {shown(row)}", _ROW) from None


def _batch(method: str, answer: Any) -> StepBatch:
    if not isinstance(answer, StepBatch):
        raise answers.WrongKind(method, answer, "StepBatch(...)")
    return StepBatch(*[_field(name, value) for name, value in zip(StepBatch._fields, answer, strict=True)])


def _field(name: str, value: Any) -> Any:
    what = f"batch, as {name},"
    if value is None:
        return None
    if name.startswith("max_"):
        return answers.whole(what, value)
    if name == "block_tables":
        rows = answers.listed(what, value, "a sequence of block tables")
        return [answers.wholes(what, row) for row in rows]
    return answers.wholes(what, value)
