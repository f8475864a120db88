"""Random attention cases, within what a target declares, from any source of draws (a seed, or Hypothesis).

Habits that find real bugs: tiny blocks, lengths at k x block size - 1, 0, +1, physical ids that are permuted or
descending and never the identity by default, look-ahead and stale table entries, shared prefixes, empty rows, head
counts and sizes that are no powers of two, more than one partition, keys and values poisoned apart.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from properties.attention.capabilities import AttentionCapabilities, DType, LayoutName
from properties.attention.cases import (
    AttentionCase,
    AttentionSetting,
    CopyCase,
    PoolForm,
    QueryForm,
    ReadCase,
    Row,
    StoreCase,
    Values,
    Variation,
    blocks_needed,
)
from properties.attention.high_ids import FIRST_HIGH_BLOCK, MAX_HIGH_BLOCKS

Option = TypeVar("Option")

CASES_PER_TRACE = 4
"""Cases do not depend on one another; several share a trace so that state that a target keeps between calls shows."""

READ_VARIATIONS: tuple[Variation, ...] = (
    "none",
    "repoison",
    "move",
    "alone",
    "splits",
    "block_size",
    "order",
    "pad",
    "wider_table",
    "strided",
    "rescale",
    "high_stride",
    "other_operation",
    "again",
    "without_lse",
    "high_count",
)
SPLITS: tuple[int | None, ...] = (2, 3, 2, 1, None, 2, 5, 8)
VALUES: tuple[Values, ...] = ("peaked", "peaked", "peaked", "normal", "large", "equal", "steep")
FORMS: tuple[PoolForm, ...] = ("separate", "separate", "interleaved", "layered", "uneven", "high_stride")
QUERY_FORMS: tuple[QueryForm, ...] = ("contiguous", "fused")
NUM_DRAWS = 2**16


def choose_geometry(
    below: Callable[[int], int], capabilities: AttentionCapabilities, offers: frozenset[str]
) -> AttentionSetting:
    """The device: the first that the target declares."""
    return AttentionSetting(device=capabilities.devices[0])


class AttentionMaker:
    """Makes cases; `kinds` are the operations that the target offers. Cases do not depend on one another."""

    def __init__(
        self,
        below: Callable[[int], int],
        geometry: AttentionSetting,
        capabilities: AttentionCapabilities,
        offers: frozenset[str],
    ) -> None:
        self.below, self.capabilities = below, capabilities
        makers: dict[str, Callable[[], AttentionCase]] = {
            "decode": self.decode,
            "prefill": self.prefill,
            "store": self.store,
            "copy_blocks": self.copy,
        }
        self.makers = {name: make for name, make in makers.items() if name in offers}
        self.kinds: list[Any] = list(self.makers)

    def swarm(self) -> None:
        """Nothing to favour: every case is drawn afresh."""

    def next(self, state: object) -> AttentionCase:
        """A case of any operation, decodes more often."""
        kinds = [*self.kinds, *["decode"] * 2 * (len(self.kinds) - 1)] if "decode" in self.makers else self.kinds
        return self.makers[self.pick(kinds)]()

    def make(self, kind: Any, state: object) -> AttentionCase | None:
        """A case of that operation."""
        return self.makers[kind]()

    def number(self, low: int, high: int) -> int:
        """A number from low to high, all equally likely, whatever the source favours; a draw of 0 gives low."""
        drawn = self.below(NUM_DRAWS) * 40503 % NUM_DRAWS  # odd factor: a permutation that spreads small draws
        return low + drawn * (high - low + 1) // NUM_DRAWS

    def pick(self, options: Sequence[Option]) -> Option:
        """One of the options, all equally likely."""
        return options[self.number(0, len(options) - 1)]

    def chance(self, one_in: int) -> bool:
        """True once in `one_in` times."""
        return self.number(0, one_in - 1) == one_in - 1

    def shuffled(self, items: Sequence[Option]) -> list[Option]:
        """The items in random order."""
        left = list(items)
        return [left.pop(self.number(0, len(left) - 1)) for _ in items]

    def decode(self) -> ReadCase:
        """A decode case."""
        return self._read("decode")

    def prefill(self) -> ReadCase:
        """A prefill case."""
        return self._read("prefill")

    def _read(self, operation: str) -> ReadCase:
        declared = self.capabilities
        shape = self.pick(declared.shapes) if declared.shapes else None
        block_size = shape.block_size if shape else self.pick(declared.block_sizes)
        rows, num_blocks = self._rows(operation, block_size)
        dtype, layout, head_size = self._types(declared.layouts)
        room = (declared.max_programs or 2**31) // len(rows)  # for KV heads x partitions
        splits = tuple(n for n in SPLITS if (n or 1) <= room)
        num_splits = self.pick(splits) if declared.num_splits and operation == "decode" else None
        heads = tuple(n for n in declared.kv_heads if n * (num_splits or 1) <= room) or declared.kv_heads[:1]
        poisons = declared.withstands or ("zero",)
        case = ReadCase(
            operation="decode" if operation == "decode" else "prefill",
            rows=rows,
            num_blocks=num_blocks,
            block_size=block_size,
            num_kv_heads=self.pick(heads),
            ratio=self.pick(declared.ratios),
            head_size=head_size,
            dtype=dtype,
            layout=layout,
            seed=self.number(0, 9999),
            scale=self.pick((None, 0.1, 1.0)) if declared.any_scale else None,
            window=self.number(1, 2 * block_size + 2) if declared.window and self.chance(3) else None,
            num_splits=num_splits,
            values=self.pick(VALUES),
            poison_k=self.pick(poisons),
            poison_v=self.pick(poisons),
            padding=self.pick(declared.padding),
            extra_width=self.pick((0, 0, 1, 3)),
            variation=self.pick(READ_VARIATIONS),
        )
        # A kernel's tiles are larger than a block: FA3 fails at windows of 340 to 380.
        if case.window and self.chance(3):
            case = replace(case, window=self.number(1, declared.max_context))
        return replace(case, **msgspec.structs.asdict(shape)) if shape else case

    def _length(self, block_size: int, *, long: bool) -> int:
        """A context length near a block edge; a long one has three blocks or more where the limit allows it."""
        limit = self.capabilities.max_context
        most_blocks = min(6, max(1, limit // block_size))
        if not long and self.chance(4):
            return self.number(1, limit)
        blocks = self.number(min(3, most_blocks), most_blocks) if long else self.number(0, min(2, most_blocks))
        return min(limit, max(1, blocks * block_size + self.pick((0, 1, -1))))

    def _rows(self, operation: str, block_size: int) -> tuple[tuple[Row, ...], int]:
        """The rows of a batch and the number of blocks of the pool."""
        num_rows = self.number(1, self.capabilities.max_rows)
        lengths = [self._length(block_size, long=not self.chance(3)) for _ in range(num_rows)]
        if self.capabilities.empty_rows != "refused" and self.chance(6):
            lengths[self.number(0, num_rows - 1)] = 0
        counts = [blocks_needed(length, block_size) for length in lengths]
        num_blocks = max(1, sum(counts)) + self.number(0, 3)
        # Popped from the end: descending ids break fast paths that assume that neighbours ascend.
        free = list(range(num_blocks)) if self.chance(4) else self.shuffled(range(num_blocks))
        rows: list[Row] = []
        padding = self.capabilities.padding
        stale = (-1 if "minus_one" in padding else 0), (num_blocks if "beyond" in padding else num_blocks - 1)
        for key, (length, count) in enumerate(zip(lengths, counts, strict=True)):
            parent, shared = self._shared_prefix(rows, length, block_size)
            prefix = next((row.table[:shared] for row in rows if row.key == parent), ())
            own = tuple(free.pop() for _ in range(count - shared))
            behind = [self.number(*stale) for _ in range(self.pick((0, 0, 1, 2)))]
            behind = behind if "foreign" in padding else []
            rows.append(
                Row(
                    key=key,
                    context_len=length,
                    table=(*prefix, *own, *behind),
                    query_len=self._query_len(operation, length),
                    parent=parent,
                    shared_blocks=shared,
                )
            )
        return tuple(rows), num_blocks

    def _shared_prefix(self, rows: list[Row], length: int, block_size: int) -> tuple[int | None, int]:
        """(key of the row to share full blocks with, how many): in one case of four, where an earlier row has one."""
        full = [(row.key, min(row.context_len, length) // block_size) for row in rows]
        full = [(key, most) for key, most in full if most]
        if not full or not self.chance(4):
            return None, 0
        parent, most = self.pick(full)
        return parent, self.number(1, most)

    def _query_len(self, operation: str, length: int) -> int:
        if operation == "decode":
            return 1
        most = min(length, self.capabilities.max_queries)
        return most if self.chance(2) else self.number(min(1, most), most)

    def _types(self, layouts: tuple[LayoutName, ...]) -> tuple[DType, LayoutName, int]:
        """(dtype, layout, head size) that go together: the vllm layout packs 16 bytes of a head."""
        dtype, layout = self.pick(self.capabilities.dtypes), self.pick(layouts)
        multiple = 1 if layout != "vllm" else 4 if dtype == "float32" else 8
        return dtype, layout, self.pick([size for size in self.capabilities.head_sizes if size % multiple == 0])

    def store(self) -> StoreCase:
        """A store case: slots in any order, padding among them; half the cases leave out the pool's last slot."""
        declared = self.capabilities
        shape = self.pick(declared.shapes) if declared.shapes else None
        block_size = shape.block_size if shape else self.pick(declared.block_sizes)
        num_blocks = self.number(2, 6)
        num_slots = num_blocks * block_size
        slots = self.shuffled(range(num_slots - self.number(0, 1)))[: self.number(1, min(9, num_slots - 1))]
        for _ in range(self.number(0, 3)):
            slots.insert(self.number(0, len(slots)), -1)
        dtype, layout, head_size = self._types(self.capabilities.layouts_of_store)
        pool_form = self.pick(FORMS)
        case = StoreCase(
            slots=tuple(slots),
            num_blocks=num_blocks,
            block_size=block_size,
            num_kv_heads=self.pick(self.capabilities.kv_heads),
            head_size=head_size,
            dtype=dtype,
            layout=layout,
            seed=self.number(0, 9999),
            pool_form=pool_form,
            query_form=self.pick(QUERY_FORMS),
        )
        if shape:
            case = replace(case, dtype=shape.dtype, num_kv_heads=shape.num_kv_heads, head_size=shape.head_size)
        return high_blocks(case) if pool_form == "high_stride" else case

    def copy(self) -> CopyCase:
        """A copy case: up to three pairs, a block that is copied on among them."""
        num_blocks = self.number(2, 6)
        pairs = self._chain(num_blocks) if self.capabilities.copies_chained else self._disjoint(num_blocks)
        dtype, layout, head_size = self._types(self.capabilities.layouts_of_store)
        return CopyCase(
            pairs=tuple(pairs),
            num_blocks=num_blocks,
            block_size=self.pick(self.capabilities.block_sizes),
            num_layers=self.number(1, 3),
            num_kv_heads=self.pick(self.capabilities.kv_heads),
            head_size=head_size,
            dtype=dtype,
            layout=layout,
            seed=self.number(0, 9999),
        )

    def _chain(self, num_blocks: int) -> list[tuple[int, int]]:
        """Up to three copies, the next often of what the last one wrote."""
        pairs: list[tuple[int, int]] = []
        for _ in range(self.number(1, 3)):
            source = pairs[-1][1] if pairs and self.chance(2) else self.number(0, num_blocks - 1)
            pairs.append((source, (source + self.number(1, num_blocks - 1)) % num_blocks))
        return pairs

    def _disjoint(self, num_blocks: int) -> list[tuple[int, int]]:
        """Copies whose order does not matter: no destination is a source or another's destination."""
        ids = self.shuffled(range(num_blocks))
        destinations = [ids.pop() for _ in range(self.number(1, min(3, num_blocks - 1)))]
        return [(self.pick(ids), destination) for destination in destinations]


def high_blocks(case: StoreCase) -> StoreCase:
    """The case with its slots moved up to blocks whose id x stride passes 2**31 elements."""
    shift = (FIRST_HIGH_BLOCK - 1) * case.block_size  # the pool's second block becomes the first high one
    slots = tuple(slot if slot < 0 else slot + shift for slot in case.slots)
    return replace(case, slots=slots, num_blocks=min(MAX_HIGH_BLOCKS, FIRST_HIGH_BLOCK - 1 + case.num_blocks))
