"""Judges of a target's own batch preparation: BATCH-1 to BATCH-4, SLOT-3. What it does not offer is not judged."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

from properties.contract import AdapterError
from properties.engine.protocol import Row, StepBatch
from properties.engine.reads import misread
from properties.engine.state import EngineState, Request
from properties.wording import counted

Pairs = Sequence[tuple[Row, Request]]


def judge_batch(state: EngineState, pairs: Pairs, batch: StepBatch) -> None:
    """Everything of the metadata but what the store does with the slot mapping, which is played."""
    lengths = [row.stop - row.start for row, _ in pairs]
    _judge_per_token(state, pairs, batch, sum(lengths))
    _judge_queries(state, pairs, batch, lengths)
    _judge_contexts(state, pairs, batch)
    _judge_tables(state, pairs, batch)


def mapped_slots(state: EngineState, pairs: Pairs, batch: StepBatch | None) -> list[Sequence[int]]:
    """The slots that the step writes, row by row: by the target's own mapping where it offers one, and judged then."""
    own = [request.slots[row.start : row.stop] for row, request in pairs]
    if batch is None or batch.slot_mapping is None:
        return own
    mapping = list(batch.slot_mapping)
    state.judged["BATCH-2"] += 1
    state.judged["SLOT-3"] += 1
    total = sum(row.stop - row.start for row, _ in pairs)
    if len(mapping) < total:
        state.report(
            "BATCH-2",
            f"the step computes {counted(total, 'token')}, but the slot mapping has {len(mapping)} entries: "
            f"{mapping}. The KV of "
            f"the last {total - len(mapping)} is written nowhere",
        )
        mapping += [-1] * (total - len(mapping))
    _judge_padding_slots(state, mapping[total:], total)
    return _by_row(state, pairs, mapping, own)


def _by_row(state: EngineState, pairs: Pairs, mapping: list[int], own: list[Sequence[int]]) -> list[Sequence[int]]:
    found: list[Sequence[int]] = []
    first = 0
    for (row, request), expected in zip(pairs, own, strict=True):
        slots = mapping[first : first + row.stop - row.start]
        first += len(slots)
        if slots != list(expected):
            _report_mapping(state, row, request, slots, expected)
        found.append([slot if -1 <= slot < state.shadow.num_slots else -1 for slot in slots])
    return found


def _report_mapping(state: EngineState, row: Row, request: Request, slots: list[int], expected: Sequence[int]) -> None:
    index = next(i for i, slot in enumerate(slots) if i >= len(expected) or slot != expected[i])
    position = row.start + index
    right = expected[index] if index < len(expected) else "none"
    what = f"slot {slots[index]}" if slots[index] >= 0 else f"slot {slots[index]}, so it is never written"
    outside = (
        ""
        if slots[index] < state.shadow.num_slots
        else f", outside the {counted(state.shadow.num_slots, 'slot')} of the pool"
    )
    state.report(
        "BATCH-2",
        f"request {request.name}, position {position}: the slot mapping of the step says {what}{outside}; "
        f"its place is slot {right} (row [{row.start}, {row.stop}), block size {state.block_size})",
    )


def _judge_padding_slots(state: EngineState, padding: Sequence[int], total: int) -> None:
    reserved = state.capabilities.reserved_blocks
    for index, slot in enumerate(padding, total):
        if slot >= 0 and slot // state.block_size not in reserved:
            state.report(
                "SLOT-3",
                f"entry {index} of the slot mapping is padding (the step computes {counted(total, 'token')}) "
                f"but names slot {slot}, "
                f"in block {slot // state.block_size}: what stands in the padding row is written there; use -1",
            )
            return


def _judge_per_token(state: EngineState, pairs: Pairs, batch: StepBatch, total: int) -> None:
    if batch.positions is not None:
        state.judged["BATCH-1"] += 1
        expected = [position for row, _ in pairs for position in range(row.start, row.stop)]
        _compare(state, "positions", list(batch.positions), expected, pairs)
    if batch.input_ids is not None:
        state.judged["BATCH-1"] += 1
        known = [token for row, request in pairs for token in request.tokens[row.start : row.stop]]
        given = list(batch.input_ids)
        matched = [k if g == -1 else g for g, k in zip(given, known, strict=False)] + given[len(known) :]
        _compare(state, "input ids", matched, known, pairs)


def _compare(state: EngineState, what: str, given: list[int], expected: list[int], pairs: Pairs) -> None:
    if given[: len(expected)] == expected:
        return
    if len(given) < len(expected):
        state.report(
            "BATCH-1", f"the step computes {counted(len(expected), 'token')} but has {len(given)} {what}: {given}"
        )
        return
    index = next(i for i, value in enumerate(expected) if given[i] != value)
    row, position = _row_of(pairs, index)
    state.report(
        "BATCH-1",
        f"request {row.name}, position {position} (row [{row.start}, {row.stop})): the {what} of the step say "
        f"{given[index]}, and {expected[index]} is right",
    )


def _row_of(pairs: Pairs, index: int) -> tuple[Row, int]:
    for row, _ in pairs:
        if index < row.stop - row.start:
            return row, row.start + index
        index -= row.stop - row.start
    raise AssertionError("an index behind the last row")


def _judge_queries(state: EngineState, pairs: Pairs, batch: StepBatch, lengths: Sequence[int]) -> None:
    if batch.cu_seqlens_q is not None:
        state.judged["BATCH-1"] += 1
        expected = [0, *accumulate(lengths)]
        given = list(batch.cu_seqlens_q)
        rest = given[len(expected) :]
        if given[: len(expected)] != expected or any(value != expected[-1] for value in rest):
            state.report("BATCH-1", f"cu_seqlens_q is {given}; rows of {list(lengths)} tokens give {expected}")
    longest = max((row.stop for row, _ in pairs), default=0)
    for name, given_most, most in (
        ("max_seqlen_q", batch.max_seqlen_q, max(lengths, default=0)),
        ("max_seqlen_k", batch.max_seqlen_k, longest),
    ):
        if given_most is not None:
            state.judged["BATCH-1"] += 1
            if given_most < most:  # larger costs time and is right
                state.report("BATCH-1", f"{name} is {given_most}, but a row has {most}: what lies beyond is cut off")


def _judge_contexts(state: EngineState, pairs: Pairs, batch: StepBatch) -> None:
    """How far each row reads: exactly `[0, stop)`. Rows of padding read nothing."""
    if batch.context_lens is not None:
        given = list(batch.context_lens)
        _judge_reach(state, pairs, given, "context_lens")
        state.judged["BATCH-3"] += 1
        for index, length in enumerate(given[len(pairs) :], len(pairs)):
            if length > 0 and not _is_harmless(state, batch, index):
                state.report(
                    "BATCH-3",
                    f"entry {index} of context_lens is padding ({counted(len(pairs), 'row')}) but reads "
                    f"{counted(length, 'token')}",
                )
    if batch.cu_seqlens_k is not None:
        sums = list(batch.cu_seqlens_k)
        if not sums or sums[0] != 0:
            state.judged["BATCH-1"] += 1
            state.report("BATCH-1", f"cu_seqlens_k is {sums}; it starts with 0")
            return
        _judge_reach(state, pairs, [b - a for a, b in pairwise(sums)], "cu_seqlens_k")


def _is_harmless(state: EngineState, batch: StepBatch, index: int) -> bool:
    """A padding row may point at a reserved block."""
    tables = batch.block_tables
    if tables is None or index >= len(tables):
        return False
    return all(block < 0 or block in state.capabilities.reserved_blocks for block in tables[index])


def _judge_reach(state: EngineState, pairs: Pairs, given: Sequence[int], what: str) -> None:
    state.judged["BATCH-4"] += 1
    if len(given) < len(pairs):
        state.report("BATCH-1", f"{what} has {counted(len(given), 'row')}, the step has {len(pairs)}")
        return
    for (row, request), length in zip(pairs, given, strict=False):
        if length != row.stop:
            state.report(
                "BATCH-4",
                f"request {request.name}, row [{row.start}, {row.stop}): by {what} it reads "
                f"{counted(length, 'token')}, and {row.stop} "
                f"are written: {_missed(request, row, length)}",
            )
            return


def _missed(request: Request, row: Row, length: int) -> str:
    if length < row.stop:
        return f"positions {length} to {row.stop - 1} are left out"
    slot = request.slots[row.stop] if row.stop < len(request.slots) else None
    where = f", from slot {slot} on," if slot is not None and slot >= 0 else ""
    return f"positions {row.stop} to {length - 1}{where} hold whatever was there before"


def _judge_tables(state: EngineState, pairs: Pairs, batch: StepBatch) -> None:
    """The tables that attention reads by lead to the slots that the requests have."""
    state.tables_told |= batch.block_tables is not None
    if batch.block_tables is None:
        if batch.cu_seqlens_k is not None or batch.context_lens is not None:
            _judge_tableless(state, pairs)
        return
    if len(batch.block_tables) < len(pairs):
        raise AdapterError(
            f"batch has {len(batch.block_tables)} block tables for {counted(len(pairs), 'row')}",
            "give one table a row, in order",
        )
    size = state.block_size
    for (row, request), table in zip(pairs, batch.block_tables, strict=False):
        state.judged["BATCH-4"] += 1
        for logical in range(-(-row.stop // size)):
            position = logical * size
            if state.geometry.window:
                block_of = range(position, min(position + size, row.stop))
                read = [p for p in block_of if state.is_read(p, row.start) and request.slots[p] >= 0]
                if not read:
                    continue  # wholly before the window: no kernel reads that entry; or released, as WINDOW-1 says
                position = read[0]
            right = request.slots[position] // size if position < len(request.slots) else None
            block = table[logical] if logical < len(table) else None
            if block != right:
                _report_table(state, row, request, position, block)
                break


def _judge_tableless(state: EngineState, pairs: Pairs) -> None:
    """A step without tables must not need any. An engine of which no table was ever told is not judged: its adapter, or its
    history, may leave them out."""
    for row, request in pairs:
        state.judged["BATCH-4"] += not row.start
        if row.start and state.tables_told:
            state.report(
                "BATCH-4",
                f"request {request.name}, row [{row.start}, {row.stop}): the step has no block tables, so attention cannot "
                f"read positions 0 to {row.start - 1} from the pool",
            )
            return


def _report_table(state: EngineState, row: Row, request: Request, position: int, block: int | None) -> None:
    size, right = state.block_size, request.slots[position : position + 1]
    named = "no block" if block is None else f"block {block}"
    text = (
        f"request {request.name}, row [{row.start}, {row.stop}): the block table of the step has {named} for position "
        f"{position}, and the request has it in slot {right[0] if right else 'none'}"
    )
    state.report("BATCH-4", text)
    if block is None or not 0 <= block * size < state.shadow.num_slots:
        return
    for at in range(position, min(position + size, row.stop)):
        slot = block * size + at % size
        if state.shadow.run[slot] != request.runs[at]:
            state.report("CONTENT-1", misread(state, request, at, slot, "is read by the block table of the step in"))
            return
