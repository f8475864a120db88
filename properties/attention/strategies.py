"""Hypothesis strategies for attention cases, within what a target declares.

Habits that find real bugs: tiny blocks, lengths at k x block size - 1, 0, +1, physical ids that are
permuted or descending and never the identity by default, look-ahead and stale table entries, shared
prefixes, empty rows, head counts and sizes that are no powers of two, partitions beside one, K and V
poisoned apart.
"""

from collections.abc import Sequence
from typing import TypeVar

from hypothesis import strategies as st
from msgspec.structs import replace

from properties.attention.capabilities import AttentionCapabilities, DType, LayoutName
from properties.attention.cases import (
    AttentionCase,
    CopyCase,
    PoolForm,
    ReadCase,
    Row,
    StoreCase,
    Values,
    Variation,
    blocks_needed,
)
from properties.attention.high_ids import FIRST_HIGH_BLOCK, MAX_HIGH_BLOCKS

SEEDS = st.integers(0, 2**16)

Option = TypeVar("Option")


def evenly(options: Sequence[Option]) -> st.SearchStrategy[Option]:
    """Each option about equally often; shrinks to the first. (`sampled_from` favours the first ones strongly.)"""
    return st.integers(0, 2**16 - 1).map(lambda n: options[n * 40503 % 2**16 * len(options) // 2**16])


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

SPLITS: tuple[int | None, ...] = (2, None, 3, 1, 5, 8)

VALUES: tuple[Values, ...] = ("peaked", "peaked", "peaked", "normal", "large", "equal")


def cases(
    capabilities: AttentionCapabilities,
    operations: frozenset[str],
    *,
    variations: tuple[Variation, ...] = READ_VARIATIONS,
) -> st.SearchStrategy[AttentionCase]:
    """Cases of any of the operations."""
    choices: list[st.SearchStrategy[AttentionCase]] = []
    if "decode" in operations:
        choices.append(reads(capabilities, "decode", variations=variations))
    if "prefill" in operations:
        choices.append(reads(capabilities, "prefill", variations=variations))
    if "store" in operations:
        choices.append(stores(capabilities))
    if "copy_blocks" in operations:
        choices.append(copies(capabilities))
    return st.one_of(choices)


@st.composite
def reads(
    draw: st.DrawFn,
    capabilities: AttentionCapabilities,
    operation: str,
    *,
    variations: tuple[Variation, ...] = READ_VARIATIONS,
) -> ReadCase:
    """A decode or prefill case."""
    block_size = draw(evenly(capabilities.block_sizes), label="block size")
    rows, num_blocks = draw(_rows(capabilities, operation, block_size))
    dtype, layout, head_size = draw(_types(capabilities, capabilities.layouts))
    window = draw(st.none() | st.integers(1, 2 * block_size + 2)) if capabilities.window else None
    room = (capabilities.max_programs or 2**31) // len(rows)  # for KV heads x partitions
    splits = (
        tuple(n for n in SPLITS if (n or 1) <= room) if capabilities.num_splits and operation == "decode" else (None,)
    )
    num_splits = draw(evenly(splits), label="partitions")
    heads = tuple(n for n in capabilities.kv_heads if n * (num_splits or 1) <= room) or capabilities.kv_heads[:1]
    poisons = evenly(capabilities.withstands or ("zero",))
    return ReadCase(
        operation="decode" if operation == "decode" else "prefill",
        rows=rows,
        num_blocks=num_blocks,
        block_size=block_size,
        num_kv_heads=draw(evenly(heads), label="KV heads"),
        ratio=draw(evenly(capabilities.ratios), label="query heads per KV head"),
        head_size=head_size,
        dtype=dtype,
        layout=layout,
        seed=draw(SEEDS),
        scale=draw(st.sampled_from([None, 0.1, 1.0])) if capabilities.any_scale else None,
        window=window,
        num_splits=num_splits,
        values=draw(evenly(VALUES)),
        poison_k=draw(poisons),
        poison_v=draw(poisons),
        padding=draw(evenly(capabilities.padding)),
        extra_width=draw(st.sampled_from([0, 0, 1, 3])),
        variation=draw(evenly(variations), label="variation"),
    )


def _lengths(capabilities: AttentionCapabilities, block_size: int) -> st.SearchStrategy[int]:
    """Context lengths near block edges, half of them three blocks or longer where the limit allows it."""
    most_blocks = max(1, min(6, capabilities.max_context // block_size))
    edge = st.builds(
        lambda k, d: max(1, k * block_size + d),
        st.integers(min(3, most_blocks), most_blocks),
        st.sampled_from([-1, 0, 1]),
    )
    short = st.builds(lambda k, d: max(1, k * block_size + d), st.integers(0, 2), st.sampled_from([-1, 0, 1]))
    return st.one_of(edge, edge, short, st.integers(1, capabilities.max_context)).map(
        lambda n: min(n, capabilities.max_context)
    )


@st.composite
def _rows(
    draw: st.DrawFn, capabilities: AttentionCapabilities, operation: str, block_size: int
) -> tuple[tuple[Row, ...], int]:
    """The rows of a batch and the number of blocks of the pool."""
    num_rows = draw(st.integers(1, capabilities.max_rows), label="rows")
    lengths = [draw(_lengths(capabilities, block_size), label="context") for _ in range(num_rows)]
    if capabilities.empty_rows != "refused" and draw(st.integers(0, 5)) == 0:
        lengths[draw(st.integers(0, num_rows - 1))] = 0
    counts = [blocks_needed(length, block_size) for length in lengths]
    num_blocks = sum(counts) + draw(st.integers(1, 3), label="spare blocks")
    free = _spread(draw(st.permutations(range(num_blocks))), draw(st.sampled_from(["permuted", "descending"])))
    rows: list[Row] = []
    for key, (length, count) in enumerate(zip(lengths, counts, strict=True)):
        parent, shared = _shared_prefix(draw, rows, length, block_size)
        blocks = rows[parent].table[:shared] if parent is not None else ()
        own = tuple(free.pop() for _ in range(count - shared))
        behind = draw(st.lists(st.integers(-1, num_blocks + 1), max_size=2)) if draw(st.booleans()) else []
        rows.append(
            Row(
                key=key,
                context_len=length,
                table=(*blocks, *own, *behind),
                query_len=_query_len(draw, capabilities, operation, length),
                parent=parent,
                shared_blocks=shared,
            )
        )
    return tuple(rows), num_blocks


def _spread(ids: list[int], order: str) -> list[int]:
    """Ids to be popped from the end: as drawn, or descending (a fast path that assumes ascending neighbours
    breaks).
    """
    if order == "descending" or ids == sorted(ids, reverse=True):
        return sorted(ids)
    return list(ids)


def _shared_prefix(draw: st.DrawFn, rows: list[Row], length: int, block_size: int) -> tuple[int | None, int]:
    """(row to share full blocks with, how many): one in four rows shares a prefix where an earlier row has
    one.
    """
    full = [(row.key, min(row.context_len, length) // block_size) for row in rows]
    full = [(key, most) for key, most in full if most]
    if not full or draw(st.integers(0, 3)):
        return None, 0
    parent, most = draw(st.sampled_from(full))
    return parent, draw(st.integers(1, most))


def _query_len(draw: st.DrawFn, capabilities: AttentionCapabilities, operation: str, length: int) -> int:
    if operation == "decode":
        return 1
    most = min(length, capabilities.max_queries)
    return draw(st.one_of(st.just(most), st.integers(min(1, most), most)), label="queries")


@st.composite
def _types(
    draw: st.DrawFn, capabilities: AttentionCapabilities, layouts: tuple[LayoutName, ...]
) -> tuple[DType, LayoutName, int]:
    """(dtype, layout, head size) that go together: the vllm layout packs 16 bytes of a head."""
    dtype: DType = draw(evenly(capabilities.dtypes), label="dtype")
    layout: LayoutName = draw(evenly(layouts), label="layout")
    multiple = 1 if layout != "vllm" else 4 if dtype == "float32" else 8
    sizes = [size for size in capabilities.head_sizes if size % multiple == 0]
    return dtype, layout, draw(evenly(sizes), label="head size")


@st.composite
def stores(draw: st.DrawFn, capabilities: AttentionCapabilities) -> StoreCase:
    """A store case: slots in any order, the last slot of the pool and padding among them."""
    block_size = draw(evenly(capabilities.block_sizes), label="block size")
    num_blocks = draw(st.integers(2, 6), label="blocks")
    num_slots = num_blocks * block_size
    slots = draw(st.lists(st.integers(0, num_slots - 1), min_size=1, max_size=min(9, num_slots), unique=True))
    if draw(st.booleans()):
        slots = [slot for slot in slots if slot != num_slots - 1]  # where a store of -1 would land
    for _ in range(draw(st.integers(0, 3), label="padding tokens")):
        slots.insert(draw(st.integers(0, len(slots))), -1)
    dtype, layout, head_size = draw(_types(capabilities, capabilities.layouts_of_store))
    forms: tuple[PoolForm, ...] = ("separate", "separate", "interleaved", "layered", "high_stride")
    pool_form = draw(evenly(forms))
    case = StoreCase(
        slots=tuple(slots) or (-1,),
        num_blocks=num_blocks,
        block_size=block_size,
        num_kv_heads=draw(evenly(capabilities.kv_heads)),
        head_size=head_size,
        dtype=dtype,
        layout=layout,
        seed=draw(SEEDS),
        pool_form=pool_form,
        query_form=draw(evenly(["contiguous", "fused"])),
    )
    return high_blocks(case) if pool_form == "high_stride" else case


def high_blocks(case: StoreCase) -> StoreCase:
    """The case with its slots moved up to blocks whose id x stride passes 2**31 elements."""
    shift = (FIRST_HIGH_BLOCK - 1) * case.block_size  # the pool's second block becomes the first high one
    slots = tuple(slot if slot < 0 else slot + shift for slot in case.slots)
    return replace(case, slots=slots, num_blocks=min(MAX_HIGH_BLOCKS, FIRST_HIGH_BLOCK - 1 + case.num_blocks))


@st.composite
def copies(draw: st.DrawFn, capabilities: AttentionCapabilities) -> CopyCase:
    """A copy case: several pairs, a block copied on (its copy is a source again) among them."""
    num_blocks = draw(st.integers(2, 6), label="blocks")
    block = st.integers(0, num_blocks - 1)
    pairs = draw(st.lists(st.tuples(block, block).filter(lambda p: p[0] != p[1]), min_size=1, max_size=3))
    if len(pairs) > 1 and draw(st.booleans()):
        pairs[1] = (pairs[0][1], pairs[1][1]) if pairs[0][1] != pairs[1][1] else pairs[1]
    dtype, layout, head_size = draw(_types(capabilities, capabilities.layouts_of_store))
    return CopyCase(
        pairs=tuple(pairs),
        num_blocks=num_blocks,
        block_size=draw(evenly(capabilities.block_sizes)),
        num_layers=draw(st.integers(1, 3)),
        num_kv_heads=draw(evenly(capabilities.kv_heads)),
        head_size=head_size,
        dtype=dtype,
        layout=layout,
        seed=draw(SEEDS),
    )
