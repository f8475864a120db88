"""What the block manager knows of one live sequence."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from paged_impl.prefix_cache import PrefixNode, Salt

Tokens = Sequence[int]
TOKEN_BYTES = array("q").itemsize


@dataclass(slots=True, eq=False)
class SequenceState:
    """Positions [0, num_computed) are written; [num_computed, len(tokens)) have slots and wait for it."""

    tokens: "array[int]"
    salt: Salt
    table: list[int]  # logical block -> physical block, NO_BLOCK where the window has passed
    chain: list[PrefixNode]  # the root; then for each full computed block its node, dead if it is not findable
    num_computed: int
    num_settled: int  # how many there were before the newest append: no roll-back of it can drop these
    num_passed: int  # logical blocks before this one are released, sinks excepted
    host_table: list[int] | None = None  # set while swapped out: the blocks of the computed positions

    def fork(self) -> "SequenceState":
        """An equal state that shares nothing mutable."""
        return SequenceState(
            self.tokens[:],
            self.salt,
            self.table.copy(),
            self.chain.copy(),
            self.num_computed,
            self.num_settled,
            self.num_passed,
        )

    def cut(self, num_tokens: int, block_size: int) -> list[int]:
        """Keep `num_tokens` tokens; returns the physical blocks no longer needed, in logical order."""
        num_kept = -(-num_tokens // block_size)
        dropped = self.table[num_kept:]
        del self.table[num_kept:], self.chain[num_tokens // block_size + 1 :], self.tokens[num_tokens:]
        self.num_computed = min(self.num_computed, num_tokens)
        return dropped


def pack(tokens: Tokens) -> "array[int]":
    """A copy of the tokens as 64-bit integers: the caller may change its own list afterwards."""
    try:
        return array("q", list(tokens) if isinstance(tokens, bytes | bytearray) else tokens)
    except (TypeError, OverflowError) as error:
        raise ValueError(f"tokens must be integers of 64 bits: {error}") from None
