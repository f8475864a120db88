"""A small cache that shares: a prefix cache, forks and copy on write. Its hooks are where habits and bugs are put in."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from paged_ref.layouts import Layout
from properties.attention.target import Pool
from properties.cache.operations import CacheGeometry
from properties.cache.protocol import CacheCapabilities, Row
from properties.protocol import Copy, slots_from_table


class NoRoom(Exception):
    """No block is free, and none can be evicted."""


class Held(NamedTuple):
    """What one sequence holds."""

    tokens: list[int]
    table: list[int]


class SharingCache:
    """Sound. A cached block that nobody holds stays findable until it is handed out again."""

    level = "cache"
    capabilities = CacheCapabilities(
        refusals=(NoRoom,), block_sizes=(1, 2, 4), num_layers=(1, 2), dtypes=("float32",), cached_overlaps_free=True
    )

    def open(self, config: CacheGeometry) -> None:
        self.config, self.size = config, config.block_size
        shape = (config.num_layers, 2, config.num_blocks, self.size, config.num_kv_heads, config.head_size)
        self.kv = torch.zeros(shape)
        self.free_list, self.refs = list(range(config.num_blocks)), [0] * config.num_blocks
        self.found: dict[tuple[int, ...], int] = {}
        self.held: dict[str, Held] = {}
        self.performed: list[Copy] = []

    # ---- hooks

    def taken(self, block: int) -> None:
        """A block is handed out, and no lookup finds it any more."""

    def released(self, block: int) -> None:
        """The last holder has given a block up."""

    def copy(self, src: int, dst: int) -> None:
        """Keys and values of every layer."""
        self.kv[:, :, dst] = self.kv[:, :, src]

    # ---- blocks

    def take(self) -> int:
        """A free block, evicted from the prefix cache if need be."""
        block = self.free_list.pop(0)
        self.found = {key: other for key, other in self.found.items() if other != block}
        self.refs[block] = 1
        self.taken(block)
        return block

    def share(self, block: int) -> None:
        """One holder more."""
        if not self.refs[block]:
            self.free_list.remove(block)
        self.refs[block] += 1

    def release(self, block: int) -> None:
        """One holder less."""
        self.refs[block] -= 1
        if not self.refs[block]:
            self.free_list.append(block)
            self.released(block)

    def hits(self, tokens: Sequence[int]) -> list[int]:
        """The cached blocks of a prefix; one token is left to compute."""
        keys = [tuple(tokens[: stop + self.size]) for stop in range(0, len(tokens) - self.size, self.size)]
        found = [self.found.get(key) for key in keys]
        return [block for block in found[: found.index(None)] if block is not None] if None in found else found  # type: ignore[return-value]

    def allocate(self, name: str, tokens: Sequence[int]) -> int:
        hits = self.hits(tokens)
        needed = -(-len(tokens) // self.size) - len(hits)
        if needed > len(self.free_list) - sum(not self.refs[block] for block in hits):
            raise NoRoom
        for block in hits:
            self.share(block)
        self.held[name] = Held(list(tokens), hits + [self.take() for _ in range(needed)])
        return len(hits) * self.size

    def extend(self, name: str, tokens: Sequence[int]) -> None:
        held = self.held[name]
        last, within = divmod(len(held.tokens), self.size)
        shared = bool(within) and self.refs[held.table[last]] > 1
        needed = -(-(len(held.tokens) + len(tokens)) // self.size) - len(held.table)
        if needed + shared > len(self.free_list):
            raise NoRoom
        if shared:
            old, held.table[last] = held.table[last], self.take()
            self.copy(old, held.table[last])
            self.performed.append(Copy(old, held.table[last]))
            self.release(old)
        held.table.extend(self.take() for _ in range(needed))
        held.tokens.extend(tokens)

    def free(self, name: str) -> None:
        for block in reversed(self.held.pop(name).table):
            self.release(block)

    def fork(self, parent: str, child: str) -> None:
        tokens, table = self.held[parent]
        self.held[child] = Held(list(tokens), list(table))
        for block in table:
            self.share(block)

    def copies(self) -> list[Copy]:
        done, self.performed = self.performed, []
        return done

    def table(self, name: str) -> list[int]:
        return list(self.held[name].table)

    def slots(self, name: str) -> Sequence[int]:
        return slots_from_table(self.held[name].table, self.size)

    def free_blocks(self) -> list[int]:
        return list(self.free_list)

    def cached_blocks(self) -> list[int]:
        return list(self.found.values())

    # ---- tensors

    def flat(self, layer: int) -> Tensor:
        """Keys and values of a layer, `[2, slots, heads, dim]`: a view."""
        return self.kv[layer].flatten(1, 2)

    def write(self, layer: int, rows: Sequence[Row], keys: Tensor, values: Tensor) -> None:
        slots = [slot for row in rows for slot in self.slots(row.name)[row.start : row.stop]]
        self.flat(layer)[:, slots] = torch.stack([keys, values])

    def read(self, layer: int, rows: Sequence[Row], queries: Tensor) -> Tensor:
        out, at = torch.empty_like(queries, memory_format=torch.contiguous_format), 0
        for row in rows:
            for position in range(row.start, row.stop):
                out[at] = self.attend(layer, self.slots(row.name)[: position + 1], queries[at])
                at += 1
        return out

    def attend(self, layer: int, slots: Sequence[int], query: Tensor) -> Tensor:
        """One query over these slots."""
        keys, values = self.flat(layer)[:, list(slots)].repeat_interleave(self.config.ratio, 2)
        scores: Any = torch.einsum("hd,nhd->hn", query, keys) * query.shape[-1] ** -0.5
        return torch.einsum("hn,nhd->hd", scores.softmax(-1), values)

    def commit(self, rows: Sequence[Row]) -> None:
        for name, _, stop in rows:
            tokens, table = self.held[name]
            for index in range(stop // self.size):
                if table[index] not in self.found.values():
                    self.found.setdefault(tuple(tokens[: (index + 1) * self.size]), table[index])

    def pools(self) -> list[Pool]:
        return [Pool(keys, values, Layout.FLASH) for keys, values in self.kv]
