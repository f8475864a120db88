"""What an attention target declares: which cases are legal for it, and how its answers are to be read."""

from collections.abc import Collection
from typing import Literal, get_args

import msgspec

DType = Literal["float32", "float16", "bfloat16"]
Device = Literal["cpu", "cuda"]
LayoutName = Literal["flash", "hnd", "vllm"]
Poison = Literal["zero", "nan", "inf", "-inf", "huge", "attractor"]
Padding = Literal["minus_one", "beyond", "huge", "foreign", "zero"]


MOST = 2**24
"""Beyond this a number is a slip of the keyboard."""


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """One geometry of reads, for targets that compile for each (see `AttentionCapabilities.shapes`)."""

    dtype: DType
    block_size: int
    num_kv_heads: int
    ratio: int
    head_size: int
    window: int | None = None


class AttentionCapabilities(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Every default is what a careful implementation does; nothing outside the declaration is generated.

    Raises ValueError for a declaration from which no case could be drawn.

    Attributes:
        layouts: cache layouts that it takes: "flash", "hnd", "vllm" (see `paged_ref.layouts`).
        store_layouts: layouts that `store` takes; None = `layouts`.
        dtypes, devices, block_sizes, kv_heads, ratios, head_sizes: what cases are drawn from; `ratios` are query heads
            per KV head.
        real_shapes: it takes the shapes of real models (`named.SHAPES`) too, whatever those lists hold.
        shapes: where each geometry costs a compilation: reads take one of these instead of drawing from the lists above.
        max_context: longest context in tokens that is generated; keep it small where a call is slow.
        max_queries: most query tokens of one sequence in a prefill.
        max_rows: most sequences in a batch.
        max_programs: most rows x KV heads x partitions of a case, to keep interpreted calls cheap; None = no limit.
        num_splits: it honours `Batch.num_splits` (partitions of the context).
        window: it honours a sliding window. Blocks wholly before it may be freed, so they hold what `withstands` says.
        any_scale: it takes the scale as an argument; False = always head_size ** -0.5.
        lse_base: base of the logarithm that it returns beside the output: "e", "2", or None = no LSE.
        empty_rows: what a row of context length 0 gives: "zeros" (and LSE -inf), "undefined" (anything, but it must not
            disturb other rows), or "refused" (such rows are not legal).
        withstands: what unowned slots may hold. () = its caller must zero the pool.
        padding: what block-table entries behind a sequence's last block may hold.
        refusals: exceptions with which it declines; a refusal of a strided input is an answer, not a finding.
        copies_chained: block copies run in order, so that one may read what an earlier one wrote; False = all are read
            before any is written.
        tf32: float32 products are rounded to TF32.
        reads_only_owned: not even a masked-out value is loaded from a slot that the sequence does not own; the
            interpreter guard holds each program to that, by the rows of the block table that it has read.
        promises: "READ-3P", "READ-5P": bit-exact placement and batch invariance.
    """

    layouts: tuple[LayoutName, ...] = ("flash",)
    store_layouts: tuple[LayoutName, ...] | None = None
    dtypes: tuple[DType, ...] = ("float32", "float16", "bfloat16")
    devices: tuple[Device, ...] = ("cpu", "cuda")
    block_sizes: tuple[int, ...] = (1, 2, 3, 4, 5, 7, 16)
    kv_heads: tuple[int, ...] = (1, 2, 3)
    ratios: tuple[int, ...] = (1, 2, 3, 4, 5, 7, 8)
    head_sizes: tuple[int, ...] = (16, 24, 32, 64, 80)
    real_shapes: bool = False
    shapes: tuple[Shape, ...] = ()
    max_context: int = 64
    max_queries: int = 12
    max_rows: int = 4
    max_programs: int | None = None
    num_splits: bool = False
    window: bool = False
    any_scale: bool = True
    lse_base: Literal["e", "2"] | None = None
    empty_rows: Literal["zeros", "undefined", "refused"] = "zeros"
    withstands: tuple[Poison, ...] = ("nan", "inf", "-inf", "huge", "attractor")
    padding: tuple[Padding, ...] = ("minus_one", "beyond", "huge", "foreign", "zero")
    refusals: tuple[type[BaseException], ...] = (ValueError, NotImplementedError)
    copies_chained: bool = True
    tf32: bool = False
    reads_only_owned: bool = False
    promises: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        for field in ("layouts", "store_layouts", "dtypes", "devices", "withstands", "padding", "promises"):
            values = getattr(self, field)
            if values is not None:
                _check_list(field, values, _names(field), may_be_empty=field in ("withstands", "promises"))
        for field in ("block_sizes", "kv_heads", "ratios", "head_sizes"):
            _check_list(field, getattr(self, field), None)
            for number in getattr(self, field):
                _check_number(f"a number of {field}", number)
        for field in ("max_context", "max_queries", "max_rows", "max_programs"):
            if field != "max_programs" or self.max_programs is not None:
                _check_number(field, getattr(self, field))
        for dtype in self.dtypes if "vllm" in (*self.layouts, *self.layouts_of_store) else ():
            packed = 4 if dtype == "float32" else 8
            if not any(size % packed == 0 for size in self.head_sizes):
                raise ValueError(
                    f"head_sizes={self.head_sizes}: the vllm layout packs {packed} elements of {dtype}, so that at least one "
                    f"has to be a multiple of {packed}"
                )

    @property
    def layouts_of_store(self) -> tuple[LayoutName, ...]:
        """Layouts that `store` is given."""
        return self.layouts if self.store_layouts is None else self.store_layouts


def _names(field: str) -> tuple[str, ...]:
    """What a field may list."""
    if field == "promises":
        return ("READ-3P", "READ-5P")
    kinds = {"dtypes": DType, "devices": Device, "withstands": Poison, "padding": Padding}
    return get_args(kinds.get(field, LayoutName))


def _check_list(field: str, values: object, names: Collection[str] | None, *, may_be_empty: bool = False) -> None:
    if isinstance(values, str) or not isinstance(values, Collection):
        raise ValueError(f"{field}={values!r}: give a tuple, such as ({values!r},)")
    if not values and not may_be_empty:
        raise ValueError(f"{field}={values!r}: no case can be drawn from nothing; leave it out for the default")
    unknown = [value for value in values if names is not None and value not in names]
    if names is not None and unknown:
        raise ValueError(f"{field} names {unknown[0]!r}: known are {', '.join(names)}")


def _check_number(what: str, value: object) -> None:
    if not isinstance(value, int) or not 1 <= value <= MOST:
        raise ValueError(f"{what} is {value!r}: give a whole number from 1 to {MOST}")
