"""What a cache target offers: the bookkeeping of a blocks target in its split form, and the tensors behind it.

Letters: T tokens of a step, H query heads, G KV heads, D head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from properties import protocol
from properties.attention.capabilities import DType, Poison
from properties.protocol import Capabilities

if TYPE_CHECKING:
    from torch import Tensor

    from properties.attention.target import Pool
    from properties.cache.operations import CacheGeometry


class Row(NamedTuple):
    """Positions `[start, stop)` of a sequence; attention of each reads every position up to itself."""

    name: str
    start: int
    stop: int


class CacheCapabilities(Capabilities, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a cache target accepts beside what a blocks target does; nothing else is generated.

    Attributes:
        num_layers, kv_heads, ratios, head_sizes: accepted values; `ratios` are query heads per KV head.
        dtypes, devices: accepted values.
        withstands: what slots that nobody owns may hold; () = its caller must zero the pool.
        pads: `write` and `read` take more tokens than their rows have (fixed batch shapes); these are not written.
        strided: keys, values and queries may be slices of a fused projection.
        shapes: where not empty, the only combinations of (KV heads, ratio, head size, dtype) that are generated: a target that
            compiles for each has few of them.
        tf32: float32 products are rounded to TF32.
        reads_only_owned: not even a masked-out value is loaded from a slot that the sequence does not own; the interpreter
            guard holds each program to that, by the rows of the block table that it has read.
        effort: share of the usual number of traces that `pytest properties` runs: below 1 for a slow target.
    """

    num_layers: tuple[int, ...] = (1, 2, 3)
    kv_heads: tuple[int, ...] = (1, 2, 3)
    ratios: tuple[int, ...] = (1, 2, 3, 4)
    head_sizes: tuple[int, ...] = (16, 24, 32)
    dtypes: tuple[DType, ...] = ("float32", "float16", "bfloat16")
    devices: tuple[str, ...] = ("cpu",)
    withstands: tuple[Poison, ...] = ("nan", "inf", "-inf", "huge")
    pads: bool = False
    strided: bool = True
    shapes: tuple[tuple[int, int, int, DType], ...] = ()
    tf32: bool = False
    reads_only_owned: bool = False
    effort: float = 1.0


class CacheTarget(Protocol):
    """A cache under test. Copies that sharing makes due are performed within the call that makes them due.

    They are reported by `copies()`, which is optional but for a cache that offers `fork`. Slots that hold no computed token
    of a sequence and no cached block may be zeroed at any time; written otherwise they may not be.
    """

    capabilities: CacheCapabilities

    def open(self, config: CacheGeometry) -> None:
        """A fresh system on `config.device`. Called before every case."""

    def allocate(self, name: str, tokens: Sequence[int]) -> int:
        """Blocks for a new sequence; how many leading tokens are cached. With the capability `salts`, takes `salt=`."""
        ...

    def extend(self, name: str, tokens: Sequence[int]) -> None:
        """Room for more tokens at the end. A shared tail is copied here: K and V of every layer."""

    def free(self, name: str) -> None:
        """The sequence ends."""

    def slots(self, name: str) -> Sequence[int]:
        """The physical slot of each position; -1 where a window released it."""
        ...

    def write(self, layer: int, rows: Sequence[Row], keys: Tensor, values: Tensor) -> None:
        """Store keys and values `[T, G, D]` of the rows' positions, one row after the other. Tokens behind them are padding."""

    def read(self, layer: int, rows: Sequence[Row], queries: Tensor) -> Tensor:
        """Causal attention of queries `[T, H, D]` at the rows' positions: `[T, H, D]`; padding may give anything.

        The scale is `D ** -0.5`. Rows may be those just written, or positions that were computed before.
        """
        ...

    def commit(self, rows: Sequence[Row]) -> None:
        """The KV of these rows is written in every layer: publish full blocks."""


REQUIRED = ("open", "allocate", "extend", "free", "slots", "write", "read", "commit")
_IN_HALVES = frozenset({"allocate", "extend", "computed"})
OPTIONAL: dict[str, str] = {
    **{name: text for name, text in protocol.OPTIONAL.items() if name not in _IN_HALVES},
    "copies": "copies() -> list[Copy]: the copies performed since the last call, in order. Needed beside fork, and by every "
    "cache that copies blocks: content that moves unreported looks lost",
    "pools": "pools() -> one properties.attention.target.Pool per layer: what poison is put into, and every byte compared",
}
"""Optional methods of a cache target; each one that is offered makes more clauses judgeable."""


def offered(target: object) -> frozenset[str]:
    """Names of the optional methods that an adapter has, and of the split forms, which every cache target has."""
    return frozenset(name for name in OPTIONAL if callable(getattr(target, name, None))) | _IN_HALVES


def missing(target: object) -> list[str]:
    """Names of required methods that an adapter lacks."""
    return [name for name in REQUIRED if not callable(getattr(target, name, None))]


def pools_of(target: object) -> list[Pool]:
    """The pools of a target that offers them."""
    found: list[Pool] = list(target.pools())  # type: ignore[attr-defined]
    return found
