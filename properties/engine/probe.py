"""Typed access to an engine adapter: every answer is checked before the referee believes it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import index
from typing import Any

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
        self.raised = (Exception, *self.refusals)

    def step(self) -> Step:
        """Launch a step. Rows are checked for type and for ranges that make no sense at all."""
        answer = self.call("step")
        if not isinstance(answer, Step):
            raise AdapterError(f"step returned {answer!r:.80} ({type(answer).__name__})", _ROW)
        try:
            rows = [row if _is_sound(row) else self._row(row) for row in answer.rows]
            copies = [self._copy(copy) for copy in answer.copies]
        except TypeError:
            raise AdapterError(f"step returned {answer!r:.80}: its rows and copies are no lists", _ROW) from None
        for row in rows:
            if not 0 <= row.start <= row.stop:
                raise AdapterError(
                    f"step returned the row {row}, whose range is backward or negative",
                    "start and stop are positions of the sequence, start <= stop",
                )
        return answer._replace(rows=rows, copies=copies)

    def _row(self, row: Any) -> Row:
        try:
            name, start, stop, samples = row
            if not isinstance(name, str) or samples not in (True, False):
                raise ValueError
            return Row(name, index(start), index(stop), bool(samples))
        except (TypeError, ValueError):
            raise AdapterError(f"step returned the row {row!r:.80}", _ROW) from None

    def _copy(self, copy: Any) -> Copy:
        try:
            made = Copy(*copy)
        except TypeError:
            raise AdapterError(f"step returned the copy {copy!r:.80}", _ROW) from None
        if made.src_space not in ("device", "host") or made.dst_space not in ("device", "host"):
            raise AdapterError(f"{made} names an unknown memory space", 'use "device" or "host"')
        return made

    def batch(self, step: Step) -> StepBatch | None:
        """The target's own metadata of the step, where it offers it."""
        if "batch" not in self.offers:
            return None
        answer = self.call("batch", step)
        if not isinstance(answer, StepBatch):
            raise AdapterError(f"batch returned {answer!r:.80} ({type(answer).__name__})", "return StepBatch(...)")
        return answer

    def live(self) -> Sequence[str]:
        """Names of the requests that the target says have not ended."""
        answer = self.call("live")
        listed = isinstance(answer, Iterable) and not isinstance(answer, str)
        answer = list(answer) if listed else answer
        if not listed or not all(isinstance(name, str) for name in answer):
            raise AdapterError(f"live returned {answer!r:.80}", "return the names of the requests that have not ended")
        return list(answer)
