"""Attention cases: plain data from which every tensor of a call follows. Versioned JSON, no torch needed."""

from typing import Literal

import msgspec

from properties.attention.capabilities import Device, DType, LayoutName, Padding, Poison
from properties.wording import counted

VERSION = 1

PoolForm = Literal["separate", "interleaved", "layered", "uneven", "high_stride"]
QueryForm = Literal["contiguous", "fused"]
Values = Literal["peaked", "normal", "large", "equal", "steep"]
Variation = Literal[
    "none",
    "repoison",
    "wider_table",
    "move",
    "high_stride",
    "high_count",
    "block_size",
    "splits",
    "order",
    "alone",
    "pad",
    "strided",
    "rescale",
    "other_operation",
    "again",
    "without_lse",
]


class Row(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One sequence of a batch.

    `key` names its content (the payload is seeded by it, not by its place in the batch). `table` holds at
    least ceil(context_len / block_size) physical block ids; further entries are look-ahead or stale and
    must not matter. The first `shared_blocks` blocks are those of the row `parent` (by key), with the same
    tokens.
    """

    key: int
    context_len: int
    table: tuple[int, ...]
    query_len: int = 1
    parent: int | None = None
    shared_blocks: int = 0


class ReadCase(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    tag_field="op",
    tag="read",
    forbid_unknown_fields=True,
):
    """One decode or prefill call, and the variation of it that must give the same answer.

    decode: every row has one query. prefill: the `query_len` queries of a row are the last tokens of its
    context. `scale` None is head_size ** -0.5. `num_splits` None leaves the partitions to the target.
    """

    operation: Literal["decode", "prefill"]
    rows: tuple[Row, ...]
    num_blocks: int
    block_size: int
    num_kv_heads: int = 1
    ratio: int = 1
    head_size: int = 16
    dtype: DType = "float32"
    layout: LayoutName = "flash"
    seed: int = 0
    scale: float | None = None
    window: int | None = None
    num_splits: int | None = None
    values: Values = "peaked"
    poison_k: Poison = "nan"
    poison_v: Poison = "nan"
    padding: Padding = "beyond"
    extra_width: int = 0
    pool_form: PoolForm = "separate"
    query_form: QueryForm = "contiguous"
    variation: Variation = "none"
    version: int = VERSION

    @property
    def effective_scale(self) -> float:
        """The scale that multiplies q k^T."""
        return self.head_size**-0.5 if self.scale is None else self.scale


class StoreCase(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    tag_field="op",
    tag="store",
    forbid_unknown_fields=True,
):
    """One store call: token i goes to `slots[i]`, -1 is padding. The pool and its surroundings hold random
    bytes.
    """

    slots: tuple[int, ...]
    num_blocks: int
    block_size: int
    num_kv_heads: int = 1
    head_size: int = 16
    dtype: DType = "float32"
    layout: LayoutName = "flash"
    seed: int = 0
    pool_form: PoolForm = "separate"
    query_form: QueryForm = "contiguous"
    version: int = VERSION


class CopyCase(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    tag_field="op",
    tag="copy_blocks",
    forbid_unknown_fields=True,
):
    """One call that copies whole blocks, K and V of every layer, in the order of `pairs` (source,
    destination).
    """

    pairs: tuple[tuple[int, int], ...]
    num_blocks: int
    block_size: int
    num_layers: int = 2
    num_kv_heads: int = 1
    head_size: int = 16
    dtype: DType = "float32"
    layout: LayoutName = "flash"
    seed: int = 0
    version: int = VERSION


class Done(msgspec.Struct, frozen=True, tag_field="op", tag="done"):
    """The end of a trace of cases; it does nothing."""


class AttentionSetting(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What all cases of a trace share: where the tensors live."""

    device: Device = "cpu"


AttentionCase = ReadCase | StoreCase | CopyCase


def to_json(case: AttentionCase) -> bytes:
    """The case as one JSON object; fields at their defaults are left out."""
    return msgspec.json.encode(case)


def from_json(text: bytes | str) -> AttentionCase:
    """Inverse of `to_json`. Raises `msgspec.ValidationError`, which names the field, for anything else."""
    case: AttentionCase = msgspec.json.decode(text, type=AttentionCase)
    return case


def blocks_needed(context_len: int, block_size: int) -> int:
    """ceil(context_len / block_size)."""
    return -(-context_len // block_size)


def rows_of(case: ReadCase) -> list[tuple[Row, slice]]:
    """Each row with the slice of query tokens that are its own."""
    pairs, start = [], 0
    for row in case.rows:
        pairs.append((row, slice(start, start + row.query_len)))
        start += row.query_len
    return pairs


def why_malformed(case: ReadCase) -> str | None:
    """Why the case contradicts itself, or None. Hand-edited and minimised cases are checked with it."""
    keys = [row.key for row in case.rows]
    if len(set(keys)) != len(keys):
        return f"two rows have one key: {keys}"
    owner: dict[int, int] = {}
    for row in case.rows:
        needed = blocks_needed(row.context_len, case.block_size)
        if len(row.table) < needed:
            return (
                f"row {row.key}: {counted(row.context_len, 'token')} need {counted(needed, 'block')}, the "
                f"table has {len(row.table)}"
            )
        if case.operation == "decode" and row.query_len != 1:
            return f"row {row.key}: a decode row has one query, not {row.query_len}"
        if case.operation == "prefill" and row.query_len > row.context_len:
            return f"row {row.key}: {counted(row.query_len, 'query')} in a context of {row.context_len}"
        if row.shared_blocks and (row.parent not in keys or row.shared_blocks > needed):
            return f"row {row.key}: its {row.shared_blocks} shared blocks have no row {row.parent}"
        for index, block in enumerate(row.table[:needed]):
            if not 0 <= block < case.num_blocks:
                return f"row {row.key}: block {block} is not in the pool of {case.num_blocks}"
            if index >= row.shared_blocks and owner.setdefault(block, row.key) != row.key:
                return f"block {block} belongs to rows {owner[block]} and {row.key}"
        if len(set(row.table[:needed])) != needed:
            return f"row {row.key}: a block occurs twice in {row.table[:needed]}"
    return None
