"""What the model knows while a trace runs: sequences, shadow memory, the last observation, and what was judged."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from paged_ref.ownership import LiveSequence
from paged_ref.provenance import ShadowMemory
from paged_ref.trie import TokenRuns
from properties.blocks.operations import Geometry
from properties.contract import CLAUSES, Breach
from properties.protocol import Capabilities


class Parked(NamedTuple):
    """A preempted sequence: what it needs to come back."""

    tokens: tuple[int, ...]
    salt: str | None


class Release(NamedTuple):
    """When a block was released: the step, the how manieth release it was (a step may be several), leaf before parent."""

    step: int
    serial: int
    order: int


class State:
    """The model's side of one trace. The judges read it; the referee changes it.

    `holders[block]` counts the live sequences that hold a block. `handed[block]` is the step at which the block was last
    handed out fresh. `dropped[slot]` is the run that a truncation dropped from the slot. `released[block]` orders the
    blocks that nobody holds by their release. `free`, `cached` and `refs` are the last observation of the pool.
    """

    def __init__(self, geometry: Geometry, capabilities: Capabilities, offers: frozenset[str]) -> None:
        self.geometry = geometry
        self.block_size = geometry.block_size
        self.capabilities = capabilities
        self.offers = offers
        self.runs = TokenRuns()
        self.shadow = ShadowMemory(geometry.num_blocks, geometry.block_size)
        self.host = ShadowMemory(geometry.num_host_blocks, geometry.block_size, "host")
        self.live: dict[str, LiveSequence] = {}
        self.swapped: dict[str, LiveSequence] = {}
        self.parked: dict[str, Parked] = {}
        self.holders: dict[int, int] = {}
        self.handed: list[int] = [0] * geometry.num_blocks
        self.dropped: dict[int, int] = {}
        self.released: dict[int, Release] = {}
        self.num_releases = 0
        self.free: list[int] | None = None
        self.cached: frozenset[int] | None = None
        self.refs: list[int] | None = None
        self.step = 0
        self.usable = frozenset(range(geometry.num_blocks)) - set(capabilities.reserved_blocks)
        self.breaches: list[Breach] = []
        self.broken: set[str] = set()
        self.judged: dict[str, int] = dict.fromkeys(CLAUSES, 0)
        self.marks: Counter[str] = Counter()
        self.refusals: dict[int, str] = {}
        """Step -> how it was refused."""
        self.as_blocks: set[str] = set()
        """Sequences that were said to have as many tokens from the cache as they have blocks from there."""
        self.moved_along: tuple[int, str] = (0, "")
        """A step, and what was seen in it that a breach of that step may come from."""
        self.may_hold: dict[str, int] = {}
        """The most blocks that a sequence was seen to hold before it was truncated, by its name."""
        self.latest: str | None = None
        """The sequence that the operation before this one admitted or extended, if it did."""

    @property
    def outcomes(self) -> dict[int, str]:
        """Step -> what it came to, where its operation does not tell."""
        return self.refusals

    def refuse(self, refusal: str) -> None:
        """The operation of this moment was refused; the refusal begins with its name."""
        self.refusals[self.step] = f"refused: {refusal.partition(':')[0]}"

    def report(self, id: str, message: str) -> None:
        """Record a breach; only the first of each clause in a trace, since the rest may follow from it."""
        if id not in self.broken:
            self.broken.add(id)
            step, seen = self.moved_along
            self.breaches.append(Breach(id, f"{message}{seen}" if step == self.step else message, self.step))

    def num_unowned(self) -> int:
        """Usable blocks that no live sequence holds: free, or evictable from the prefix cache.

        A sequence that tells the slots of its tokens alone, and no table, may hold more: for tokens to come, or from before
        it was truncated.
        """
        unseen = 0
        if "table" not in self.offers and (self.capabilities.look_ahead or self.may_hold):
            for name, seq in self.live.items():
                may = max(self.blocks_for(len(seq.tokens)), self.may_hold.get(name, 0))
                unseen += max(0, may - len(seq.blocks))
        return len(self.usable) - len(self.holders) - unseen

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that a sequence of that length may need, declared look-ahead included."""
        return -(-(num_tokens + self.capabilities.look_ahead) // self.geometry.block_size)
