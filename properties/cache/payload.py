"""What the model computes: keys, values and queries that follow from the whole token run, and from nothing else.

Letters: N positions, L layers, G KV heads, H query heads, D head size.
"""

from __future__ import annotations

from array import array

import torch
import xxhash
from torch import Tensor

from paged_ref.trie import TokenRuns
from properties.attention.contents import DTYPES
from properties.cache.operations import CacheGeometry


class Payload:
    """Equal runs have equal KV, in every trace with that seed; different runs differ in every layer and head.

    A run is known by its tokens and salt, not by its number, so that a shorter trace keeps the numbers of a longer one.
    """

    def __init__(self, geometry: CacheGeometry, runs: TokenRuns) -> None:
        self._geometry = geometry
        self._runs = runs
        self._dtype = DTYPES[geometry.dtype]
        self._generator = torch.Generator()
        self._made: dict[int, Tensor] = {}

    def fused(self, runs: list[int], layer: int) -> Tensor:
        """`[N, 2 G + H, D]` on the CPU: keys, values and queries side by side, as a fused projection gives them."""
        made = self._made
        rows = [made[run] if run in made else self._make(run) for run in runs]
        return torch.stack([row[layer] for row in rows])

    def split(self, fused: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(keys, values, queries) of a fused projection, as slices of it."""
        heads = self._geometry.num_kv_heads
        return fused[:, :heads], fused[:, heads : 2 * heads], fused[:, 2 * heads :]

    def _make(self, run: int) -> Tensor:
        geometry = self._geometry
        heads = geometry.num_kv_heads * (2 + geometry.ratio)
        self._generator.manual_seed(self._digest(run))
        shape = (geometry.num_layers, heads, geometry.head_size)
        made = self._made[run] = torch.randn(shape, generator=self._generator).to(self._dtype)
        return made

    def _digest(self, run: int) -> int:
        """A number that depends on the seed, the salt and the tokens."""
        key = f"{self._geometry.seed} {self._runs.salt(run)!r}".encode() + array("q", self._runs.tokens(run)).tobytes()
        return xxhash.xxh64_intdigest(key) >> 1
