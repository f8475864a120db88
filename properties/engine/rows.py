"""Judges of the rows of a step: which requests it may compute, and how far."""

from __future__ import annotations

from collections.abc import Sequence

from properties.blocks import opening
from properties.contract import AdapterError
from properties.engine.protocol import Row
from properties.engine.state import EngineState
from properties.wording import counted


def usable_rows(state: EngineState, rows: Sequence[Row]) -> list[Row]:
    """The rows that can be played. Those that cannot are reported; an unknown name is the adapter's fault."""
    playable, seen = [], set()
    for row in rows:
        request = state.requests.get(row.name)
        if request is None:
            _report_ended(state, row)
        elif row.name in seen:
            state.report(
                "BATCH-2",
                f"request {row.name} has two rows in one step, {_ranges(rows, row.name)}: positions are computed twice, "
                "and the second row does not wait for the first",
            )
        elif row.stop > len(request.tokens):
            state.report(
                "BATCH-2",
                f"the step computes positions {row.start} to {row.stop - 1} of request {row.name}, which has only "
                f"{counted(len(request.tokens), 'token')}: position {len(request.tokens)} has no token",
            )
            playable.append(row._replace(start=min(row.start, len(request.tokens)), stop=len(request.tokens)))
        else:
            playable.append(row)
        seen.add(row.name)
    judge_limits(state, rows)
    return playable


def _ranges(rows: Sequence[Row], name: str) -> str:
    return " and ".join(f"[{row.start}, {row.stop})" for row in rows if row.name == name)


def _report_ended(state: EngineState, row: Row) -> None:
    if row.name not in state.ended:
        raise AdapterError(
            f"step returned a row of {row.name!r}, which was never submitted",
            f"return the names that submit was given; {opening.LEFT}",
        )
    state.report(
        "SLOT-2",
        f"the step computes positions {row.start} to {row.stop - 1} of request {row.name}, which ended at step "
        f"{state.ended[row.name]}: it would write slots that are no longer its own",
    )


def judge_limits(state: EngineState, rows: Sequence[Row]) -> None:
    """A step stays within its token budget and its number of rows: buffers are sized by them."""
    geometry = state.geometry
    num_tokens = sum([row.stop - row.start for row in rows])
    if num_tokens > geometry.max_tokens_per_step:
        state.report(
            "BATCH-1",
            f"the step computes {counted(num_tokens, 'token')}, its budget is {geometry.max_tokens_per_step}: "
            + ", ".join(f"{row.name} [{row.start}, {row.stop})" for row in rows),
        )
    if len(rows) > geometry.max_rows:
        state.report("BATCH-1", f"the step has {counted(len(rows), 'row')}, the most is {geometry.max_rows}")
