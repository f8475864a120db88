"""Which rows of two calls differ in a bit, and what that means: a small leak, or a promise that is not kept."""

from __future__ import annotations

import torch
from msgspec.structs import replace

from properties.attention import variations
from properties.attention.cases import rows_of
from properties.attention.reading import Judge, Reading


def broken_promise(judge: Judge, base: Reading, different: list[int], name: str) -> str:
    """Which rows have other bits in a variation, and when it is no fault: whether a repeated call has them too."""
    promise, again = variations.PROMISED_BITS[name], judge.read(judge.case, judge.contents)
    declared = f"{promise} is declared in `promises`: leave it out if"
    if rows_with_other_bits(base, again):
        return (
            f"Rows {different} have other bits with {variations.MEANING[name]}, and rows {rows_with_other_bits(base, again)} "
            f"when the same call is just repeated. {declared} sums end in any order, as with atomics."
        )
    chosen = (
        "the batch chooses partitions or tiles" if promise == "READ-5P" else "the addresses choose the order of sums"
    )
    return (
        f"Rows {different} have other bits with {variations.MEANING[name]}, and the same ones when the same call is "
        f"repeated. {declared} {chosen}."
    )


REPEATS = 4
"""How often both calls are made in turn before their bits are taken to be the calls' own: atomics, autotuning and
partitions that end in any order change them from run to run."""


def rows_that_leak_a_little(judge: Judge, other: Reading, name: str) -> list[int]:
    """Rows whose bits change with what nobody may read, though both calls repeat theirs."""
    # Partitions may be chosen from the width of the table (flash-attn does), so bits are compared at one width.
    alike = judge.case if name == "repoison" else replace(other.scene.case, padding=judge.case.padding)
    readings = [
        (judge.read(alike, judge.contents), judge.read(other.scene.case, judge.contents)) for _ in range(REPEATS)
    ]
    (first, second), *again = readings
    if any(rows_with_other_bits(first, one) or rows_with_other_bits(second, two) for one, two in again):
        return []
    return rows_with_other_bits(first, second)


def rows_with_other_bits(first: Reading, second: Reading) -> list[int]:
    """Keys of the rows whose output bits differ between two calls that both succeeded."""
    if first.output is None or second.output is None:
        return []
    bits = torch.int16 if first.output.out.element_size() == 2 else torch.int32
    seconds = {row.key: rows for row, rows in rows_of(second.scene.case)}
    return [
        row.key
        for row, rows in rows_of(first.scene.case)
        if row.key in seconds
        and row.context_len
        and not torch.equal(
            first.output.out[rows].contiguous().view(bits), second.output.out[seconds[row.key]].contiguous().view(bits)
        )
    ]
