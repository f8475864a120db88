"""What an engine's declared limits put out of reach: a run must not be asked for a state that no legal trace leads to."""

from __future__ import annotations

from dataclasses import dataclass

from properties.blocks.reach import FEW_BLOCKS
from properties.engine.protocol import EngineCapabilities

MOST_LIVE = 5
"""Requests that a random trace has live at once, at most."""
GROWS = 6
"""Tokens of a request that grows while others run: a prompt and as many new tokens, which random traces come to often."""


@dataclass(frozen=True)
class Reach:
    """What traces of an engine can come to.

    `hits`: a prompt is longer than a block, so that one can be hit. `slides`: a request outgrows a block. `chunks`: a prompt
    has two tokens. `several`: two requests run at once. `partial`: two of them can share a block that is not full.
    `preempts`: requests that run can need more blocks than there are.
    """

    hits: bool
    slides: bool
    chunks: bool
    several: bool
    partial: bool
    preempts: bool


def reach_of(caps: EngineCapabilities) -> Reach:
    """What the declared sizes and limits leave possible, over all geometries that are generated."""
    least, most = caps.num_blocks
    unusable = len(caps.reserved_blocks) + caps.watermark_blocks
    usable = most - unusable
    smallest = max(least, min(most, unusable + FEW_BLOCKS)) - unusable
    live = min(caps.max_sequences or MOST_LIVE, MOST_LIVE, caps.max_batch_rows[1])
    computed = {size: min((caps.max_tokens or usable * size + 1) - 1, usable * size) for size in caps.block_sizes}
    blocks = max(min(-(-length // size), smallest) for size, length in computed.items())
    several = live > 1 and usable > 1
    return Reach(
        hits=any(length > size for size, length in computed.items()),
        slides=any(length > size + 1 for size, length in computed.items()),  # and one more step, which releases it
        chunks=any(length > 1 for length in computed.values()),
        several=several,
        partial=several and any(length > 2 and size > 1 for size, length in computed.items()),
        preempts=caps.preempts
        and several
        and blocks > 1
        and live * blocks > smallest
        and (caps.max_tokens or GROWS) >= GROWS,
    )
