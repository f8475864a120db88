"""What declared limits put out of reach: a run must not be asked for a state that no legal trace can lead to."""

from __future__ import annotations

from dataclasses import dataclass

from properties.protocol import Capabilities

FEW_BLOCKS = 3
"""Usable blocks of the smallest pools that are generated, where the target takes so few."""
MANY_SEQUENCES = 20
"""Sequences that a random trace has alive at once, where the target sets no limit."""


@dataclass(frozen=True)
class Reach:
    """What traces of a target can come to.

    `appends`: a sequence can grow. `partial`: a block can be written while it is not full. `full`: a block can become
    full. `hits`: one can be hit, with a token left to compute behind it. `shares`: two sequences fit at once.
    `copies`: a block can be copied into another. `fills`: the sequences can ask for more blocks than there are.
    """

    appends: bool
    partial: bool
    full: bool
    hits: bool
    shares: bool
    copies: bool
    fills: bool


def reach_of(caps: Capabilities) -> Reach:
    """What the declared sizes and limits leave possible, over all geometries that are generated."""
    least, most = caps.num_blocks
    reserved, kept = len(caps.reserved_blocks), caps.watermark_blocks
    usable = max(most, least) - reserved - kept
    smallest = max(least, min(most, reserved + kept + FEW_BLOCKS)) - reserved - kept
    longest = {size: min(caps.max_tokens or usable * size, usable * size) for size in caps.block_sizes}
    behind = 0 if caps.recomputes_hits else 1
    live = min(caps.max_sequences or MANY_SEQUENCES, MANY_SEQUENCES)
    appends = any(length > 1 for length in longest.values())
    partial = any(length > 1 and size > 1 for size, length in longest.items())
    shares = caps.max_sequences != 1
    return Reach(
        appends=appends,
        partial=partial,
        full=any(length >= size for size, length in longest.items()),
        hits=any(length >= size + behind for size, length in longest.items()),
        shares=shares,
        copies=partial and shares and usable > 1,
        fills=caps.max_tokens is None
        or any(live * -(-(caps.max_tokens + caps.look_ahead) // size) > smallest for size in caps.block_sizes),
    )
