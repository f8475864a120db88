"""Smaller attention cases: for the minimiser, the boldest simplification first."""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from properties.attention.cases import (
    AttentionCase,
    AttentionSetting,
    CopyCase,
    ReadCase,
    Row,
    StoreCase,
    blocks_needed,
    why_malformed,
)

PLAIN: dict[str, Any] = {
    "variation": "none",
    "window": None,
    "num_splits": None,
    "scale": None,
    "values": "peaked",
    "num_kv_heads": 1,
    "ratio": 1,
    "dtype": "float32",
    "layout": "flash",
    "pool_form": "separate",
    "query_form": "contiguous",
    "extra_width": 0,
    "padding": "minus_one",
    "poison_k": "zero",
    "poison_v": "zero",
    "head_size": 16,
    "num_layers": 1,
    "seed": 0,
}
"""The plain value of each field, in the order in which they are tried."""


def shrink(setting: AttentionSetting, operations: Sequence[Any]) -> Iterator[tuple[AttentionSetting, tuple[Any, ...]]]:
    """Traces smaller than this one: single cases first, then one case simplified."""
    if len(operations) > 1:
        for operation in operations:
            yield setting, (operation,)
        for index in range(len(operations)):
            yield setting, (*operations[:index], *operations[index + 1 :])
    for index, case in enumerate(operations):
        for smaller in simpler(case):
            yield setting, (*operations[:index], smaller, *operations[index + 1 :])


def simpler(case: AttentionCase) -> Iterator[AttentionCase]:
    """Simplifications of one case that are well formed."""
    fields = {field.name for field in msgspec.structs.fields(case)}
    if isinstance(case, ReadCase):
        yield from (c for c in _fewer_rows(case) if why_malformed(c) is None)
    for name, plain in PLAIN.items():
        if name in fields and getattr(case, name) != plain:
            yield replace(case, **{name: plain})
    if isinstance(case, ReadCase):
        yield from (c for c in (*_smaller_windows(case), *_smaller_rows(case)) if why_malformed(c) is None)
    elif isinstance(case, StoreCase):
        for index in range(len(case.slots)):
            if len(case.slots) > 1:
                yield replace(case, slots=case.slots[:index] + case.slots[index + 1 :])
        if case.num_blocks > 1 and max(case.slots) < (case.num_blocks - 1) * case.block_size:
            yield replace(case, num_blocks=case.num_blocks - 1)
    elif isinstance(case, CopyCase):
        for index in range(len(case.pairs)):
            if len(case.pairs) > 1:
                yield replace(case, pairs=case.pairs[:index] + case.pairs[index + 1 :])


def _fewer_rows(case: ReadCase) -> Iterator[ReadCase]:
    if len(case.rows) < 2:
        return
    for row in case.rows:
        yield replace(case, rows=(replace(row, parent=None, shared_blocks=0),))
    for index in range(len(case.rows)):
        yield replace(case, rows=case.rows[:index] + case.rows[index + 1 :])


def _smaller_windows(case: ReadCase) -> Iterator[ReadCase]:
    """A smaller window, and contexts shorter by as much: what lies before the window stays as it is."""
    for window in dict.fromkeys((1, (case.window or 0) // 2, (case.window or 0) - 1)):
        if not case.window or not 0 < window < case.window:
            continue
        rows = tuple(_shorter(row, case.window - window, case.block_size) for row in case.rows)
        yield replace(case, window=window, rows=rows)
        yield replace(case, window=window)


def _shorter(row: Row, tokens: int, block_size: int) -> Row:
    """Without so many tokens of its context, as far as its queries allow it."""
    length = max(row.query_len, row.context_len - tokens)
    row = replace(row, context_len=length, table=row.table[: blocks_needed(length, block_size)])
    return replace(row, shared_blocks=min(row.shared_blocks, length // block_size))


def _smaller_rows(case: ReadCase) -> Iterator[ReadCase]:
    for index, row in enumerate(case.rows):
        for smaller in _smaller(row, case.block_size, case.operation):
            yield replace(case, rows=(*case.rows[:index], smaller, *case.rows[index + 1 :]))
    used = sorted({b for row in case.rows for b in row.table if 0 <= b < case.num_blocks})
    if len(used) < case.num_blocks - 1:  # one spare block is kept: something must be left to read wrongly
        new = {block: place for place, block in enumerate(used)}
        rows = tuple(replace(row, table=tuple(new.get(b, b) for b in row.table)) for row in case.rows)
        yield replace(case, rows=rows, num_blocks=len(used) + 1)


def _smaller(row: Row, block_size: int, operation: str) -> Iterator[Row]:
    """A row without sharing, without stale entries, with fewer queries, with a shorter context."""
    needed = blocks_needed(row.context_len, block_size)
    if row.shared_blocks:
        yield replace(row, parent=None, shared_blocks=0)
    if len(row.table) > needed:
        yield replace(row, table=row.table[:needed])
    if operation == "prefill":
        for query_len in (1, row.query_len // 2, row.query_len - 1):
            if 0 < query_len < row.query_len:
                yield replace(row, query_len=query_len)
    least = row.query_len if operation == "prefill" else 1
    for length in dict.fromkeys((least, row.context_len // 2, row.context_len - block_size, row.context_len - 1)):
        if least <= length < row.context_len:
            yield replace(row, context_len=length, table=row.table[: blocks_needed(length, block_size)])
