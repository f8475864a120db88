"""What an attention target declares: which cases are legal for it, and how its answers are to be read."""

from typing import Literal

import msgspec

DType = Literal["float32", "float16", "bfloat16"]
Device = Literal["cpu", "cuda"]
LayoutName = Literal["flash", "hnd", "vllm"]
Poison = Literal["zero", "nan", "inf", "-inf", "huge", "attractor"]
Padding = Literal["minus_one", "beyond", "huge", "foreign", "zero"]


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
        window: it honours a sliding window.
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
            interpreter guard holds it to that.
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

    @property
    def layouts_of_store(self) -> tuple[LayoutName, ...]:
        """Layouts that `store` is given."""
        return self.layouts if self.store_layouts is None else self.store_layouts
