"""A scene: the tokens of a case laid out in a poisoned pool, and the batch that reads them.

Letters: B blocks, P block size, G KV heads, D head size, T query tokens.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from paged_ref.layouts import Layout, pack_keys, pack_values
from properties.attention.buffers import Geometry, PoolMemory, allocate
from properties.attention.cases import ReadCase, Row, blocks_needed
from properties.attention.contents import DTYPES, Content
from properties.attention.guarding.ownership import Owner, owner_of
from properties.attention.poison import fill, padding_ids
from properties.attention.target import Batch


@dataclass(frozen=True)
class Scene:
    """`keys`, `values`: what the pool holds, as [B, P, G, D] on the CPU; `owners`: the rows,
    each with the slots of its tokens; it owns them but for blocks wholly before its window, which may have been given back.
    """

    case: ReadCase
    contents: Mapping[int, Content]
    memory: PoolMemory
    batch: Batch
    keys: Tensor
    values: Tensor
    owners: tuple[Owner, ...]


def first_kept(case: ReadCase, row: Row) -> int:
    """The first position of the row's own tokens in the pool: blocks that lie wholly before every query's window may
    have been freed and reused, while a block that any query sees into still holds all of its tokens (WINDOW-1).
    """
    if case.window is None:
        return 0
    first_seen = max(0, row.context_len - max(row.query_len, 1) + 1 - case.window)
    return first_seen // case.block_size * case.block_size


def build(case: ReadCase, contents: Mapping[int, Content], device: str, *, want_lse: bool = True) -> Scene:
    """Poisons a pool, writes every row's tokens into the blocks that it keeps, and makes the batch. Fresh
    memory.
    """
    dtype, layout = DTYPES[case.dtype], Layout(case.layout)
    shape = (case.num_blocks, case.block_size, case.num_kv_heads, case.head_size)
    keys, values = torch.empty(shape, dtype=dtype), torch.empty(shape, dtype=dtype)
    fill(keys, case.poison_k, _attractor(case, contents))
    fill(values, case.poison_v)
    for row in case.rows:
        start, stop = first_kept(case, row), row.context_len
        positions = torch.arange(start, stop)
        blocks = torch.tensor(row.table, dtype=torch.long)[positions // case.block_size]
        keys[blocks, positions % case.block_size] = contents[row.key].k[start:stop]
        values[blocks, positions % case.block_size] = contents[row.key].v[start:stop]
    geometry = Geometry(case.num_blocks, case.block_size, case.num_kv_heads, case.head_size, dtype, layout)
    memory = allocate(geometry, case.pool_form, device, case.seed)
    memory.pool.key_cache.copy_(pack_keys(keys, layout))
    memory.pool.value_cache.copy_(pack_values(values, layout))
    owners = tuple(_owner(case, row) for row in case.rows)
    return Scene(case, contents, memory, _batch(case, contents, device, want_lse), keys, values, owners)


def _owner(case: ReadCase, row: Row) -> Owner:
    positions, size = np.arange(row.context_len), case.block_size
    slots = np.array(row.table, dtype=np.int64)[positions // size] * size + positions % size
    return owner_of(f"row {row.key}", slots, first_kept(case, row), row.query_len)


def _attractor(case: ReadCase, contents: Mapping[int, Content]) -> Tensor | None:
    """Per KV head the key that the last query of the first row is drawn to, well above every peak."""
    for row in case.rows:
        q = contents[row.key].q.float()
        if q.shape[0]:
            query = q[-1, :: case.ratio]
            norm = (query * query).sum(1, keepdim=True).clamp_min(1e-6)
            return query * (15.0 / (case.effective_scale * norm))
    return None


def _batch(case: ReadCase, contents: Mapping[int, Content], device: str, want_lse: bool) -> Batch:
    needed = [blocks_needed(row.context_len, case.block_size) for row in case.rows]
    width = max([1, *needed, *(len(row.table) for row in case.rows)]) + case.extra_width
    q = torch.cat([contents[row.key].q for row in case.rows]).to(device)
    if case.query_form == "fused":  # a slice of a fused projection of queries, keys and values
        heads = q.shape[1]
        fused = torch.full((q.shape[0], heads + 2 * case.num_kv_heads, q.shape[2]), torch.nan, dtype=q.dtype)
        fused = fused.to(device)
        fused[:, :heads] = q
        q = fused[:, :heads]
    return Batch(
        q=q,
        query_lens=tuple(row.query_len for row in case.rows),
        context_lens=tuple(row.context_len for row in case.rows),
        block_tables=tuple(row.table for row in case.rows),
        block_size=case.block_size,
        num_kv_heads=case.num_kv_heads,
        scale=case.effective_scale,
        window=case.window,
        num_splits=case.num_splits,
        want_lse=want_lse,
        padding=padding_ids(case.padding, width=width, num_blocks=case.num_blocks, seed=case.seed),
    )
