"""Variations: another case with the same content, which must give the same rows.

Each function returns the varied case and its contents, or None where it does not apply. Rows are matched by
key.
"""

import random
from collections.abc import Callable, Mapping

from msgspec.structs import replace

from properties.attention.capabilities import AttentionCapabilities
from properties.attention.cases import ReadCase, Row, blocks_needed
from properties.attention.contents import Content, make_contents
from properties.attention.high_ids import FIRST_HIGH_BLOCK, FIRST_WIDE_BLOCK, MAX_HIGH_BLOCKS

Varied = tuple[ReadCase, Mapping[int, Content]]

PROPERTY_OF = {
    "repoison": "READ-2",
    "wider_table": "READ-2",
    "move": "READ-3",
    "high_stride": "READ-3",
    "high_count": "READ-3",
    "block_size": "READ-3",
    "splits": "READ-4",
    "without_lse": "READ-4",
    "order": "READ-5",
    "alone": "READ-5",
    "again": "READ-5",
    "pad": "BATCH-3",
    "strided": "READ-7",
    "rescale": "READ-1",
    "other_operation": "READ-1",
}
"""Which clause a variation breaks when the base case was right."""

SAME_BITS = {
    "repoison": "other values in slots that no row owns",
    "wider_table": "other block-table entries behind the last block",
}
"""What must not change a bit in these variations, if the target repeats its bits at all."""

MEANING = {
    "repoison": SAME_BITS["repoison"],
    "wider_table": "a wider block table with other padding ids",
    "move": "the same tokens in other physical blocks",
    "high_stride": "the same tokens in blocks whose id x stride passes 2**31 elements",
    "high_count": "the same tokens in blocks with ids from 65536 on",
    "block_size": "the same tokens in blocks of another size",
    "splits": "another number of partitions",
    "without_lse": "the same call without asking for the LSE",
    "order": "the rows in another order",
    "alone": "one row alone, the other rows' blocks poisoned",
    "again": "the same call a second time",
    "pad": "padding rows of context length 0 with stale table rows in between",
    "strided": "queries from a fused projection, and a pool with gaps between the blocks of K and V",
    "rescale": "queries divided by 8 and the scale multiplied by 8",
    "other_operation": "the same rows through the other operation (decode / prefill)",
}

PROMISED_BITS = {"move": "READ-3P", "high_count": "READ-3P", "order": "READ-5P", "alone": "READ-5P"}
"""Variations after which a target may promise the same bits."""


def vary(
    case: ReadCase,
    contents: Mapping[int, Content],
    capabilities: AttentionCapabilities,
    offered: frozenset[str],
) -> Varied | None:
    """The variation that the case names; None if this case or target has none."""
    rng = random.Random(case.seed + 1)
    simple = SIMPLE.get(case.variation)
    if simple is not None:
        varied = simple(case, capabilities, rng)
        return None if varied is None else (varied, contents)
    if case.variation == "rescale":
        return _rescaled(case, contents, capabilities)
    if case.variation == "pad":
        return _padded(case, contents, capabilities, rng)
    if case.variation == "other_operation":
        return _other_operation(case, contents, offered)
    return None


def second_call(case: ReadCase, capabilities: AttentionCapabilities) -> ReadCase | None:
    """The call that a variation makes behind that of the base case, as a base case; None where that would be another call:
    it has other contents then, or is asked for an LSE.
    """
    simple = None if case.variation == "without_lse" else SIMPLE.get(case.variation)
    varied = None if simple is None else simple(case, capabilities, random.Random(case.seed + 1))
    if varied is None:
        return None
    second = replace(varied, variation="none")
    before, by_itself = make_contents(case), make_contents(second)
    return second if all(content.equals(before[key]) for key, content in by_itself.items()) else None


def _repoisoned(case: ReadCase, capabilities: AttentionCapabilities, rng: random.Random) -> ReadCase | None:
    choices = [p for p in ("zero", *capabilities.withstands) if p not in (case.poison_k, case.poison_v)]
    if not choices or not capabilities.withstands:
        return None
    return replace(case, poison_k=rng.choice(choices), poison_v=rng.choice(choices))


def _wider_table(case: ReadCase, capabilities: AttentionCapabilities, rng: random.Random) -> ReadCase:
    extra = case.extra_width + rng.choice([1, 2, 5])
    others = [padding for padding in capabilities.padding if padding != case.padding]
    return replace(case, extra_width=extra, padding=rng.choice(others or [case.padding]))


def renumbered(case: ReadCase, new_ids: list[int], num_blocks: int) -> ReadCase:
    """The case with physical block i renamed new_ids[i]; stale entries behind a context keep their ids."""
    rows = []
    for row in case.rows:
        needed = blocks_needed(row.context_len, case.block_size)
        table = tuple(new_ids[block] for block in row.table[:needed]) + row.table[needed:]
        rows.append(replace(row, table=table))
    return replace(case, rows=tuple(rows), num_blocks=num_blocks)


def _moved(case: ReadCase, capabilities: AttentionCapabilities, rng: random.Random) -> ReadCase:
    return renumbered(case, rng.sample(range(case.num_blocks), case.num_blocks), case.num_blocks)


def _high_stride(case: ReadCase, capabilities: AttentionCapabilities, rng: random.Random) -> ReadCase | None:
    used = sorted({block for row in case.rows for block in row.table if 0 <= block < case.num_blocks})
    room = list(range(MAX_HIGH_BLOCKS))
    if len(used) > len(room):
        return None
    high = room[FIRST_HIGH_BLOCK:]  # at least the first of them lie beyond 2**31
    low = rng.sample(room[:FIRST_HIGH_BLOCK], FIRST_HIGH_BLOCK)
    targets = (rng.sample(high, len(high)) + low)[: len(used)]
    new_ids = list(range(case.num_blocks))
    for block, target in zip(used, targets, strict=True):
        new_ids[block] = target
    return replace(renumbered(case, new_ids, MAX_HIGH_BLOCKS), pool_form="high_stride")


def _high_count(case: ReadCase, capabilities: AttentionCapabilities, rng: random.Random) -> ReadCase | None:
    bytes_per_block = case.block_size * case.num_kv_heads * case.head_size * 4
    if bytes_per_block * FIRST_WIDE_BLOCK > 32 * 2**20:  # keep the pool below 32 MiB per cache
        return None
    new_ids = [FIRST_WIDE_BLOCK + block for block in range(case.num_blocks)]
    return renumbered(case, new_ids, FIRST_WIDE_BLOCK + case.num_blocks)


def _other_block_size(case: ReadCase, capabilities: AttentionCapabilities, rng: random.Random) -> ReadCase | None:
    sizes = [size for size in capabilities.block_sizes if size != case.block_size]
    if capabilities.shapes:
        same = [
            s
            for s in capabilities.shapes
            if (s.dtype, s.head_size, s.ratio) == (case.dtype, case.head_size, case.ratio)
        ]
        sizes = [s.block_size for s in same if (s.num_kv_heads, s.window) == (case.num_kv_heads, case.window)]
        sizes = [size for size in sizes if size != case.block_size]
    if not sizes:
        return None
    block_size = rng.choice(sizes)
    counts = [blocks_needed(row.context_len, block_size) for row in case.rows]
    num_blocks = sum(counts) + rng.randint(1, 3)
    ids = rng.sample(range(num_blocks), num_blocks)
    rows = [
        replace(row, table=tuple(ids.pop() for _ in range(count)), parent=None, shared_blocks=0)
        for row, count in zip(case.rows, counts, strict=True)
    ]
    return replace(case, rows=tuple(rows), block_size=block_size, num_blocks=num_blocks)


def _other_splits(case: ReadCase, capabilities: AttentionCapabilities, rng: random.Random) -> ReadCase | None:
    if not capabilities.num_splits or case.operation != "decode":
        return None  # partitions are drawn for decodes alone
    return replace(case, num_splits=rng.choice([n for n in (1, 2, 3, 5, 8, None) if n != case.num_splits]))


def _reordered(case: ReadCase, capabilities: AttentionCapabilities, rng: random.Random) -> ReadCase | None:
    if len(case.rows) < 2:
        return None
    rows = list(case.rows)
    while tuple(rows) == case.rows:
        rng.shuffle(rows)
    return replace(case, rows=tuple(rows))


def _alone(case: ReadCase, capabilities: AttentionCapabilities, rng: random.Random) -> ReadCase | None:
    if len(case.rows) < 2:
        return None
    row = replace(rng.choice(case.rows), parent=None, shared_blocks=0)
    return replace(case, rows=(row,))


def _strided(case: ReadCase, capabilities: AttentionCapabilities, rng: random.Random) -> ReadCase:
    return replace(case, query_form="fused", pool_form=rng.choice(["interleaved", "layered", "uneven"]))


def _unchanged(case: ReadCase, capabilities: AttentionCapabilities, rng: random.Random) -> ReadCase:
    return case


SIMPLE: dict[str, Callable[[ReadCase, AttentionCapabilities, random.Random], ReadCase | None]] = {
    "repoison": _repoisoned,
    "wider_table": _wider_table,
    "move": _moved,
    "high_stride": _high_stride,
    "high_count": _high_count,
    "block_size": _other_block_size,
    "splits": _other_splits,
    "order": _reordered,
    "alone": _alone,
    "strided": _strided,
    "again": _unchanged,
    "without_lse": _unchanged,
}


def _rescaled(case: ReadCase, contents: Mapping[int, Content], capabilities: AttentionCapabilities) -> Varied | None:
    if not capabilities.any_scale:
        return None
    scaled = {key: content.scaled_query(0.125) for key, content in contents.items()}
    return replace(case, scale=case.effective_scale * 8), scaled


def _padded(
    case: ReadCase, contents: Mapping[int, Content], capabilities: AttentionCapabilities, rng: random.Random
) -> Varied | None:
    if capabilities.empty_rows == "refused":
        return None
    query_len = 1 if case.operation == "decode" else 0
    rows, padded = list(case.rows), dict(contents)
    some = next(iter(contents.values()))
    for _ in range(rng.randint(1, 2)):
        key = max(padded) + 1
        stale = tuple(rng.randrange(case.num_blocks) for _ in range(rng.randint(0, 3)))
        stale = stale if "foreign" in capabilities.padding else ()
        rows.insert(rng.randint(0, len(rows)), Row(key=key, context_len=0, query_len=query_len, table=stale))
        q = some.q.new_full((query_len, *some.q.shape[1:]), float("nan"))
        padded[key] = Content(q, some.k[:0], some.v[:0])
    return replace(case, rows=tuple(rows)), padded


def _other_operation(case: ReadCase, contents: Mapping[int, Content], offered: frozenset[str]) -> Varied | None:
    if case.operation == "decode" and "prefill" in offered:
        if any(row.context_len == 0 for row in case.rows):
            return None
        return replace(case, operation="prefill", num_splits=None), contents
    if case.operation == "prefill" and "decode" in offered and all(row.query_len == 1 for row in case.rows):
        return replace(case, operation="decode"), contents
    return None
