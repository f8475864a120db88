"""Operations on a cache target beside those of the blocks level, and the geometry of its tensors."""

from __future__ import annotations

from properties.attention.capabilities import DType, Poison
from properties.blocks.operations import (
    Admit,
    Allocate,
    Append,
    BlocksOperation,
    Computed,
    Drain,
    Fork,
    Free,
    FreeAgain,
    Geometry,
    Lookup,
    Operation,
    Preempt,
    Resume,
    SwapIn,
    SwapOut,
    Truncate,
)

__all__ = [
    "Admit",
    "Allocate",
    "Append",
    "BatchStep",
    "CacheGeometry",
    "CacheOperation",
    "Computed",
    "Drain",
    "Fork",
    "Free",
    "FreeAgain",
    "Lookup",
    "Operation",
    "Preempt",
    "Resume",
    "SwapIn",
    "SwapOut",
    "Truncate",
]
"""Everything that a trace of this level may hold, so that a stand-alone test imports it from one place."""


class BatchStep(Operation, frozen=True, tag="batch"):
    """One step over several sequences, in this order: a ragged batch.

    A sequence whose tokens are all computed gets its `runs` entry appended (one token: decode); one that is allocated and not
    yet computed computes as many more positions instead (a chunk of its prompt). Sequences that are not there are left out.
    `padding` tokens that belong to nobody are added at the end, with slot -1.
    """

    names: tuple[str, ...]
    runs: tuple[tuple[int, ...], ...]
    padding: int = 0


CacheOperation = BlocksOperation | BatchStep


class CacheGeometry(Geometry, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The system a trace runs in: pools of `num_layers` layers, `num_kv_heads * ratio` query heads.

    `poison_k` and `poison_v` lie in every slot that no sequence owns. `seed` makes the payload. `strided`: keys, values and
    queries are slices of one fused projection.
    """

    num_layers: int = 1
    num_kv_heads: int = 1
    ratio: int = 1
    head_size: int = 16
    dtype: DType = "float32"
    device: str = "cpu"
    seed: int = 0
    poison_k: Poison = "nan"
    poison_v: Poison = "nan"
    strided: bool = False
