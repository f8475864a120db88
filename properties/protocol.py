"""What a target offers and declares. Protocols are small: what an implementation lacks it leaves out, and what it does
differently it declares. An adapter that breaks its own protocol gets the verdict ADAPTER, never a finding.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

import msgspec

if TYPE_CHECKING:
    from properties.blocks.operations import Geometry

Space = Literal["device", "host"]


class Copy(NamedTuple):
    """One copy that the target asks for: `src` to `dst`, each in its memory space, K and V of every layer.

    `unit` says whether the numbers are blocks or slots. Copies are performed in the order of the list, before the
    tokens of the same call are written.
    """

    src: int
    dst: int
    src_space: Space = "device"
    dst_space: Space = "device"
    unit: Literal["block", "slot"] = "block"


class Capabilities(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a blocks target accepts and promises; every default is the most careful answer.

    What is declared and not done is said to be the adapter's fault where it can be seen: types and ranges before anything
    runs; sizes and pools by opening their bounds (`check-target`); prefix_cache, window and what is offered by never
    being reached; unknown_free, copy_at_fork, reserved_blocks and promises by what the target does. Not seen is a limit that
    is tighter than need be, or look_ahead, watermark_blocks, cached_overlaps_free and weak_hash without effect: these only
    make the judges more lenient, or cases rarer. Nor can salts that are ignored be told from a cache that ignores them
    (HASH-1), or a limit that is left out from a cache that refuses too early (ALLOC-6): these are findings.

    Attributes:
        refusals: exception classes that say "no room"; a refused call must change nothing.
        block_sizes: tokens per block that it accepts; nothing else is generated.
        num_blocks: smallest and largest pool, reserved blocks included.
        max_sequences: most sequences alive at once; None = no limit.
        max_tokens: longest sequence; None = no limit but the pool.
        reserved_blocks: block ids that are never handed out (null or padding blocks).
        look_ahead: extra slots that a sequence may hold beyond its length, in tokens.
        watermark_blocks: blocks that admission keeps free on purpose.
        max_append: most tokens that one `append` adds; None = no limit (an engine that decodes one token at a time has 1).
        prefix_cache: admissions may reuse the KV of earlier sequences.
        salts: `admit` takes a salt that separates equal tokens.
        weak_hash: `Geometry.hash_bits` is honoured (an injectable hash).
        recomputes_hits: what a hit covers is computed again all the same, so that a hit of the whole prompt leaves work
            to do (HASH-4 is not judged), and the value that a shared slot has already may be written into it again.
        copy_at_fork: `fork` copies a partial last block at once; False = the first write copies it (copy on write).
        window: `Geometry.window` and `num_sinks` are honoured. No call releases what it wrote itself, but `computed`.
        cached_overlaps_free: a block may be in `cached_blocks()` and `free_blocks()` at once.
        unknown_free: what a free of an unknown name does: "refused" (raises), "ignored", or None = undefined, not tried.
        eviction: order in which cached blocks that nobody holds are reused: "released" = in the order in which they
            were released, within one release leaf before parent (least recently used); None = undeclared.
        promises: ids of promise clauses (they end in P) that hold, for example {"ALLOC-2P", "HASH-3P"}.
    """

    refusals: tuple[type[BaseException], ...] = ()
    block_sizes: tuple[int, ...] = (1, 2, 3, 4, 5, 16)
    num_blocks: tuple[int, int] = (1, 64)
    max_sequences: int | None = None
    max_tokens: int | None = None
    reserved_blocks: tuple[int, ...] = ()
    look_ahead: int = 0
    watermark_blocks: int = 0
    max_append: int | None = None
    prefix_cache: bool = True
    salts: bool = False
    weak_hash: bool = False
    recomputes_hits: bool = False
    copy_at_fork: bool = False
    window: bool = False
    cached_overlaps_free: bool = False
    unknown_free: Literal["refused", "ignored"] | None = "refused"
    eviction: Literal["released"] | None = None
    promises: frozenset[str] = frozenset()


class BlocksTarget(Protocol):
    """Bookkeeping under test. Required methods; the optional ones are listed in `OPTIONAL`."""

    capabilities: Capabilities

    def open(self, config: Geometry) -> None:
        """A fresh system; class-level globals are reset too. Called before every case."""

    def admit(self, name: str, tokens: Sequence[int]) -> int:
        """Allocate, compute and publish a new sequence; the number of its leading tokens taken from the cache.

        With the capability `salts`, takes `salt=` as well. Raises a declared refusal where there is no room.
        """
        ...

    def append(self, name: str, tokens: Sequence[int]) -> None:
        """More tokens at the end: allocate, compute, publish. Raises a declared refusal where there is no room."""

    def free(self, name: str) -> None:
        """The sequence ends."""

    def slots(self, name: str) -> Sequence[int]:
        """The physical slot of each position, first to last. Longer than the sequence is fine.

        A block that is held for tokens to come (look-ahead, or kept by a truncation) is told here or by `table`.

        -1 for a position that a sliding window released.
        """
        ...


OPTIONAL: dict[str, str] = {
    "lookup": "lookup(tokens) -> int: how many leading tokens are cached, up to all of them; changes nothing",
    "allocate": "allocate(name, tokens) -> int: the split form of admit; nothing is computed or published yet",
    "computed": "computed(name, upto): the KV of positions below upto is written now",
    "extend": "extend(name, tokens): the split form of append. Where allocate, extend and computed are offered, admit and "
    "append are driven as their halves: a block that publishing replaces by an equal one is seen before and after",
    "preempt": "preempt(name): free, where the implementation does it differently for a sequence that will come back",
    "fork": "fork(parent, child): child continues from everything parent holds",
    "copies": "copies() -> list[Copy]: copies to perform now, in order; each is reported once",
    "truncate": "truncate(name, length): keep the first length tokens",
    "swap_out": "swap_out(name): move its KV to host memory; the copies come from copies(), without which it is not driven",
    "swap_in": "swap_in(name): bring it back; the copies come from copies()",
    "table": "table(name) -> physical block of each logical block, -1 = released",
    "ref_count": "ref_count(block) -> int",
    "free_blocks": "free_blocks() -> every block that is free",
    "cached_blocks": "cached_blocks() -> every block that a prefix lookup can find",
    "read_slots": "read_slots(name) -> (position, slot) pairs that attention reads, where it finds slots by another "
    "path than writing does",
    "can_admit": "can_admit(tokens) -> bool: would admit succeed now",
    "can_append": "can_append(name, num_tokens) -> bool: would append succeed now",
    "predict_admit": "predict_admit(tokens) -> int: blocks by which admit lowers the number available",
    "predict_append": "predict_append(name, num_tokens) -> int: blocks by which append lowers the number available",
    "block_bytes": "block_bytes(num_layers, num_kv_heads, head_dim, itemsize) -> int: bytes of one block, K and V",
    "close": "close(): release what open() took; called after every case",
}
"""Optional methods of a blocks target; each one that is offered makes more clauses judgeable."""

REQUIRED: tuple[str, ...] = ("open", "admit", "append", "free", "slots")


def offered(target: object) -> frozenset[str]:
    """Names of the optional methods that an adapter has."""
    return frozenset(name for name in OPTIONAL if callable(getattr(target, name, None)))


def missing(target: object) -> list[str]:
    """Names of required methods that an adapter lacks."""
    return [name for name in REQUIRED if not callable(getattr(target, name, None))]


_TABLES: dict[tuple[tuple[int, ...], int], tuple[int, ...]] = {}
_TABLES_LIMIT = 4096


def slots_from_table(table: Iterable[int], block_size: int) -> tuple[int, ...]:
    """The slot of every position that a block table covers; -1 for each position of a block -1.

    The helper for adapters: `slots(name)` is usually this of the implementation's own table. Remembers recent
    answers, because every judged step asks for every live sequence.

    >>> slots_from_table([7, -1, 2], 2)
    (14, 15, -1, -1, 4, 5)
    """
    key = (tuple(table), block_size)
    slots = _TABLES.get(key)
    if slots is None:
        if len(_TABLES) >= _TABLES_LIMIT:
            _TABLES.clear()
        span = range(block_size)
        slots = tuple(block * block_size + offset if block >= 0 else -1 for block in key[0] for offset in span)
        _TABLES[key] = slots
    return slots
