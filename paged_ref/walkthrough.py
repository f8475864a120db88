"""Paging by example: two sequences, one prefill and two decode steps, every number computed. Run it:

    python -m paged_ref.walkthrough

The values are labels here: A5 stands for the key and value of A's token at position 5.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain

from paged_ref.slots import opens_block, slot_of, slot_ranges, slots_by_token

BLOCK_SIZE = 4
NUM_BLOCKS = 8
EMPTY = ".."


@dataclass
class Walk:
    """The lengths and block tables of the sequences, the free blocks, and what each slot of the pool holds."""

    lengths: dict[str, int]
    tables: dict[str, list[int]]
    pool: list[str] = field(default_factory=lambda: [EMPTY] * (NUM_BLOCKS * BLOCK_SIZE))

    @property
    def free(self) -> list[int]:
        """The blocks in no table."""
        return [block for block in range(NUM_BLOCKS) if block not in chain.from_iterable(self.tables.values())]

    def store(self, name: str, start: int, stop: int) -> None:
        """Write the values of positions [start, stop) of a sequence into their slots."""
        for position in range(start, stop):
            self.pool[slot_of(position, self.tables[name], BLOCK_SIZE)] = f"{name}{position}"

    def read(self, name: str) -> list[str]:
        """What attention reads for a sequence: its whole context, in order of positions."""
        slots = slots_by_token(0, self.lengths[name], self.tables[name], BLOCK_SIZE)
        return [self.pool[slot] for slot in slots]


def walkthrough() -> str:
    """The example, as the text that the README shows."""
    walk = Walk(lengths={"A": 6, "B": 3}, tables={"A": [7, 2], "B": [5]})
    parts = [_setting(walk), _prefill(walk), _decode(walk, 1), _decode(walk, 2), _pool(walk)]
    return "\n\n".join("\n".join(part) for part in parts) + "\n"


def _setting(walk: Walk) -> list[str]:
    sequences = (f"{n}: {walk.lengths[n]} tokens, block table {walk.tables[n]}" for n in walk.lengths)
    return [
        f"{NUM_BLOCKS} blocks of {BLOCK_SIZE} tokens: slots 0 to {NUM_BLOCKS * BLOCK_SIZE - 1}",
        *sequences,
        f"free blocks: {_join(walk.free)}",
    ]


def _prefill(walk: Walk) -> list[str]:
    lines = ["prefill: all tokens of both prompts in one row"]
    rows = [(name, position) for name, length in walk.lengths.items() for position in range(length)]
    lines += _batch(walk, rows)
    lines.append(f"  cu_seqlens  {_join(accumulate(walk.lengths.values(), initial=0))}")
    for name, length in walk.lengths.items():
        ranges = slot_ranges(0, length, walk.tables[name], BLOCK_SIZE)
        pieces = (f"{slots[0]} to {slots[-1]} in block {slots[0] // BLOCK_SIZE}" for slots in ranges)
        lines.append(f"  {name} by block: {', '.join(pieces)}")
        walk.store(name, 0, length)
    return lines


def _decode(walk: Walk, step: int) -> list[str]:
    lines = [f"decode step {step}: one new token for each sequence"]
    for name, table in walk.tables.items():
        walk.lengths[name] += 1
        length = walk.lengths[name]
        rest = f"  {name} is {length} long: ({length} - 1) % {BLOCK_SIZE} = {(length - 1) % BLOCK_SIZE}"
        if opens_block(length, BLOCK_SIZE):
            table.append(walk.free[0])
            lines.append(f"{rest}, so it takes a new block: {table[-1]}")
        else:
            lines.append(f"{rest}, so there is room in block {table[-1]}")
    lines += _batch(walk, [(name, length - 1) for name, length in walk.lengths.items()])
    lines.append(f"  context     {_join(walk.lengths.values())}")
    longest = max(len(table) for table in walk.tables.values())
    padded = (str(table + [-1] * (longest - len(table))) for table in walk.tables.values())
    lines.append(f"  tables      {' '.join(padded)}")
    for name, length in walk.lengths.items():
        walk.store(name, length - 1, length)
        slots = slots_by_token(0, length, walk.tables[name], BLOCK_SIZE)
        lines.append(f"  {name} reads slots {_join(slots)}: {_join(walk.read(name))}")
    return lines


def _batch(walk: Walk, rows: Sequence[tuple[str, int]]) -> list[str]:
    slots = [slot_of(position, walk.tables[name], BLOCK_SIZE) for name, position in rows]
    columns: dict[str, Sequence[object]] = {
        "token": [f"{name}{position}" for name, position in rows],
        "position": [position for _, position in rows],
        "slot": slots,
    }
    return [f"  {title:<10}" + "".join(f"{value:>4}" for value in values) for title, values in columns.items()]


def _pool(walk: Walk) -> list[str]:
    rows = (walk.pool[block * BLOCK_SIZE : (block + 1) * BLOCK_SIZE] for block in range(NUM_BLOCKS))
    return ["the pool afterwards", *(f"  block {block}  {_join(row)}" for block, row in enumerate(rows))]


def _join(values: Iterable[object]) -> str:
    return " ".join(str(value) for value in values)


if __name__ == "__main__":
    sys.stdout.write(walkthrough())
