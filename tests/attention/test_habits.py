"""What right kernels do in ways of their own is no finding; where only a declaration is missing, the message names it."""

import pytest
import torch
from msgspec.structs import replace
from torch import Tensor

from properties.attention.cases import CopyCase, ReadCase, Row, StoreCase
from properties.attention.judges import judge
from properties.attention.spec import SPEC
from properties.attention.target import Batch, Output, Pool
from properties.attention.targets.plain import PlainTorch
from tests.attention.broken import CopiesOutOfOrder
from tests.attention.clean import reads_judged_clean
from tests.attention.test_findings import BATCH

WHOLE = PlainTorch.capabilities


class BitsOfItsOwn(PlainTorch):
    """Partitions end in any order, so that the last bits of float32 change from call to call."""

    capabilities = replace(WHOLE, dtypes=("float32",), promises=frozenset())

    def _read(self, pool: Pool, batch: Batch) -> Output:
        answer = super()._read(pool, batch)
        return Output(answer.out * (1 + 1.2e-7 * torch.randint(-1, 2, answer.out.shape[:1])[:, None, None]), answer.lse)


class SettlesDown(BitsOfItsOwn):
    """Its first calls are its own search for the fastest tile."""

    calls = 0

    def _read(self, pool: Pool, batch: Batch) -> Output:
        SettlesDown.calls += 1
        factor = 1 + 1.2e-7 * (SettlesDown.calls % 7 == 1)
        answer = super(BitsOfItsOwn, self)._read(pool, batch)
        return Output(answer.out * factor, answer.lse)


class DeclinesGaps(PlainTorch):
    """A view over all blocks: pools with gaps between them are declined, as it declares."""

    capabilities = replace(WHOLE, layouts=("flash",), refusals=(BufferError,))

    def _read(self, pool: Pool, batch: Batch) -> Output:
        if not pool.key_cache.is_contiguous() or not pool.value_cache.is_contiguous():
            raise BufferError("contiguous pools only")
        return super()._read(pool, batch)


class IdsAreFollowed(PlainTorch):
    """Whatever stands behind the last block is loaded too, so that it must be 0."""

    capabilities = replace(WHOLE, padding=("zero",))

    def _gather(self, pool: Pool, batch: Batch, table: Tensor, context_len: int) -> tuple[Tensor, Tensor]:
        behind = table[-(-context_len // batch.block_size) :]
        assert not behind.any(), behind
        return super()._gather(pool, batch, table, context_len)


class LseThatNobodyWrote(PlainTorch):
    """Returns its buffer whether or not it was asked to fill it."""

    def _read(self, pool: Pool, batch: Batch) -> Output:
        answer = super()._read(pool, batch)
        return answer if batch.want_lse else Output(answer.out, torch.full(answer.out.shape[:2], 7.0))


class StoresThroughFloat32(PlainTorch):
    """Exact for every number; which NaN a NaN becomes is the conversion's choice."""

    def store(self, pool: Pool, keys: Tensor, values: Tensor, slots: Tensor) -> None:
        super().store(pool, keys.float().to(keys.dtype), values.float().to(values.dtype), slots)


class StoresThroughFloat16(PlainTorch):
    """Loses bits of bfloat16 and float32, among them those of NaNs."""

    def store(self, pool: Pool, keys: Tensor, values: Tensor, slots: Tensor) -> None:
        super().store(pool, keys.half().to(keys.dtype), values, slots)


class PartitionsOfDecodesAlone(PlainTorch):
    """Its prefill has no partitions."""

    def prefill(self, pool: Pool, batch: Batch) -> Output:
        assert batch.num_splits is None, batch.num_splits
        return super().prefill(pool, batch)


@pytest.mark.parametrize(
    "right",
    [BitsOfItsOwn, SettlesDown, DeclinesGaps, IdsAreFollowed, LseThatNobodyWrote, PartitionsOfDecodesAlone],
    ids=lambda cls: cls.__name__,
)
def test_a_habit_is_no_finding(right: type[PlainTorch]) -> None:
    assert reads_judged_clean(SPEC, right, 70) >= 200


def test_a_refusal_counts_as_reached() -> None:
    verdict = judge(DeclinesGaps(), replace(BATCH, variation="high_stride"))

    assert verdict.findings == []
    assert (verdict.counts["variation high_stride"], verdict.counts["high_stride refused"]) == (1, 1)


class EmptyRowsAreInfinite(PlainTorch):
    """The LSE of flash-attn 2 where there is nothing to read."""

    def _read(self, pool: Pool, batch: Batch) -> Output:
        answer = super()._read(pool, batch)
        return Output(
            answer.out, None if answer.lse is None else answer.lse.masked_fill(answer.lse == -torch.inf, torch.inf)
        )


class DeclinesUndeclared(DeclinesGaps):
    capabilities = replace(WHOLE, layouts=("flash",))


class DiesAlways(PlainTorch):
    def _read(self, pool: Pool, batch: Batch) -> Output:
        raise BufferError("for another reason")


@pytest.mark.parametrize("variation", ["none", "pad"])
def test_empty_rows_name_their_declaration(variation: str) -> None:
    empty = Row(key=2, context_len=0, table=())
    rows = (*BATCH.rows, empty) if variation == "none" else BATCH.rows
    findings = judge(EmptyRowsAreInfinite(), replace(BATCH, rows=rows, variation=variation)).findings

    assert [finding.property for finding in findings] == ["READ-6"]
    assert "Declare empty_rows='undefined'" in findings[0].message


def test_undeclared_refusals_and_copies_name_theirs() -> None:
    case: ReadCase = replace(BATCH, variation="strided", layout="flash")
    copies = CopyCase(
        num_blocks=5, block_size=2, num_kv_heads=1, head_size=16, dtype="float32", layout="flash", seed=1, num_layers=1,
        pairs=((0, 1), (1, 2)),
    )  # fmt: skip

    (refused,) = judge(DeclinesUndeclared(), case).findings
    (unchained,) = judge(CopiesOutOfOrder(), copies).findings

    (other,) = judge(DiesAlways(), case).findings

    assert "add the exception's class to `refusals`" in refused.message
    assert "refusals" not in other.message, "its pool was an ordinary one"
    assert "copies_chained=False declares that" in unchained.message


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_any_nan_is_a_nan(dtype: str) -> None:
    cases = [
        StoreCase(dtype=dtype, layout=layout, slots=(5, -1, 9, 2, 30), block_size=4, num_blocks=8, num_kv_heads=2,
                  head_size=80, query_form=form, seed=seed)
        for layout in ("flash", "hnd") for form in ("contiguous", "fused") for seed in range(8)
    ]  # fmt: skip

    assert [judge(StoresThroughFloat32(), case).findings for case in cases] == [[]] * len(cases)
    lossy = [finding.message for case in cases for finding in judge(StoresThroughFloat16(), case).findings]
    assert len(lossy) == (len(cases) if dtype == "bfloat16" else 0)
