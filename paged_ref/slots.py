"""Where the KV of a position lies: a slot is a place for one token in the pool, counted over all its blocks.

The block table of a sequence maps its logical blocks to physical ones. Position p lies in logical block p // block_size,
at offset p % block_size, hence in slot table[p // block_size] * block_size + p % block_size. The same slots are given
here token by token (the definition) and block by block (what an engine does, since the slots of a block are contiguous).
"""

from __future__ import annotations

from collections.abc import Sequence

RELEASED = -1
"""In a block table: no physical block, because a sliding window has released it."""


def slot_of(position: int, block_table: Sequence[int], block_size: int) -> int:
    """The slot of one position. The definition.

    With blocks of 4 and the table [7, 2], positions 0 to 5 lie in the whole of block 7 and the first half of block 2:

    >>> [slot_of(p, [7, 2], 4) for p in range(6)]
    [28, 29, 30, 31, 8, 9]

    A position has no slot where the table ends before it, or where its block was released:

    >>> slot_of(8, [7, 2], 4)
    Traceback (most recent call last):
    ValueError: position 8 is in logical block 2, but the table has 2 blocks of 4: extend the table first
    >>> slot_of(1, [-1, 2], 4)
    Traceback (most recent call last):
    ValueError: position 1 is in logical block 0, which is released (-1 in the table): nothing may read or write it
    """
    logical_block = position // block_size
    if position < 0:
        raise ValueError(f"position {position} is negative: positions count from 0")
    if logical_block >= len(block_table):
        raise ValueError(
            f"position {position} is in logical block {logical_block}, but the table has {len(block_table)} blocks "
            f"of {block_size}: extend the table first"
        )
    if block_table[logical_block] == RELEASED:
        raise ValueError(
            f"position {position} is in logical block {logical_block}, which is released (-1 in the table): "
            "nothing may read or write it"
        )
    return block_table[logical_block] * block_size + position % block_size


def slots_by_token(start: int, stop: int, block_table: Sequence[int], block_size: int) -> list[int]:
    """The slots of positions [start, stop): the definition, once for each token.

    >>> slots_by_token(3, 6, [7, 2], 4)
    [31, 8, 9]
    """
    return [slot_of(position, block_table, block_size) for position in range(start, stop)]


def slot_ranges(start: int, stop: int, block_table: Sequence[int], block_size: int) -> list[range]:
    """The slots of positions [start, stop): one range for each block, the first and the last one cut where need be.

    A chunk of a prefill may start and end in the middle of a block:

    >>> slot_ranges(3, 10, [7, 2, 5], 4)
    [range(31, 32), range(8, 12), range(20, 22)]

    also of the same one, and an empty chunk has no range:

    >>> slot_ranges(5, 7, [7, 2, 5], 4), slot_ranges(4, 4, [7, 2, 5], 4)
    ([range(9, 11)], [])
    """
    ranges = []
    position = start
    while position < stop:
        end_of_block = (position // block_size + 1) * block_size
        first_slot = slot_of(position, block_table, block_size)
        num_tokens = min(stop, end_of_block) - position
        ranges.append(range(first_slot, first_slot + num_tokens))
        position += num_tokens
    return ranges


def slots_by_block(start: int, stop: int, block_table: Sequence[int], block_size: int) -> list[int]:
    """The slots of positions [start, stop), from `slot_ranges`.

    >>> slots_by_block(3, 10, [7, 2, 5], 4)
    [31, 8, 9, 10, 11, 20, 21]
    """
    return [slot for slots in slot_ranges(start, stop, block_table, block_size) for slot in slots]


def opens_block(num_tokens: int, block_size: int) -> bool:
    """Whether the last of `num_tokens` tokens is the first one in its block, and so needs a new block.

    `num_tokens` counts that token. The third token of a sequence needs none when blocks hold 4, the fifth does:

    >>> [n for n in range(1, 14) if opens_block(n, 4)]
    [1, 5, 9, 13]

    With one token per block each token needs one, which the test `num_tokens % block_size == 1` would miss:

    >>> [opens_block(n, 1) for n in (1, 2, 3)], [n % 1 == 1 for n in (1, 2, 3)]
    ([True, True, True], [False, False, False])
    """
    return (num_tokens - 1) % block_size == 0
