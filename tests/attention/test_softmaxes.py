"""Kernels that read the right tokens and take a mistaken softmax of them: the finding says which."""

import dataclasses

import pytest
import torch
from msgspec.structs import replace
from torch import Tensor

from properties.attention.cases import Row
from properties.attention.judges import judge
from properties.attention.target import Batch, Output, Pool
from properties.attention.targets.plain import PlainTorch
from tests.attention.test_findings import BATCH


class Plain(PlainTorch):
    capabilities = replace(PlainTorch.capabilities, max_context=300)


class SoftCap(Plain):
    def _softmax(self, scores: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        return super()._softmax(torch.where(scores.isfinite(), 50 * torch.tanh(scores / 50), scores), values)


class Online(Plain):
    """Tiles of 32 tokens, one after the other."""

    rescales_output = rescales_sum = True

    def _softmax(self, scores: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        highest = torch.full(scores.shape[:2], -1e30)
        total, out = torch.zeros(scores.shape[:2]), torch.zeros(*scores.shape[:2], values.shape[2])
        for tile, tokens in zip(scores.split(32, 2), values.split(32), strict=True):
            before, highest = highest, torch.maximum(highest, tile.amax(2))
            kept, weights = torch.exp(before - highest), torch.exp(tile - highest[..., None])
            total = total * (kept if self.rescales_sum else 1) + weights.sum(2)
            out = out * (kept[..., None] if self.rescales_output else 1)
            out = out + torch.einsum("htn,nhd->htd", weights, tokens)
        return out / total[..., None], highest + total.log()


class OutputNotRescaled(Online):
    rescales_output = False


class SumNotRescaled(Online):
    rescales_sum = False


class NothingRescaled(Online):
    rescales_output = rescales_sum = False


class KeysOfZerosCounted(Plain):
    """Up to the next 64 tokens."""

    def _softmax(self, scores: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        extra = -scores.shape[2] % 64
        return super()._softmax(
            torch.nn.functional.pad(scores, (0, extra)), torch.nn.functional.pad(values, (0, 0, 0, 0, 0, extra))
        )


class MeanOfPartitions(Plain):
    def _merge(self, outs: Tensor, lses: Tensor) -> tuple[Tensor, Tensor]:
        return outs.mean(0), torch.logsumexp(lses, 0)


class ScaleOfThePaddedHead(Plain):
    def _read(self, pool: Pool, batch: Batch) -> Output:
        size = 1 << (batch.q.shape[2] - 1).bit_length()
        return super()._read(pool, dataclasses.replace(batch, scale=size**-0.5))


ROW = Row(key=0, context_len=150, table=tuple(reversed(range(38))))
CASE = replace(BATCH, rows=(ROW,), num_blocks=40, values="normal", poison_k="zero", poison_v="zero")


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_the_kernel_they_are_made_of_is_right(dtype: str) -> None:
    assert judge(Online(), replace(CASE, dtype=dtype)).findings == []


@pytest.mark.parametrize(
    ("mistaken", "changes", "told"),
    [
        (SoftCap, {"values": "large"}, "a soft cap of 50 on the scores"),
        (OutputNotRescaled, {}, "an online softmax whose output is not rescaled when the running maximum grows (tiles of 32"),
        (SumNotRescaled, {}, "an online softmax whose sum of weights is not rescaled when the running maximum grows (tiles of"),
        (NothingRescaled, {}, "an online softmax that is not rescaled when the running maximum grows (tiles of 32 tokens)"),
        (KeysOfZerosCounted, {}, "the sum of the weights counts 42 keys of zeros behind the context (to a multiple of 64)"),
        (MeanOfPartitions, {"num_splits": 3}, "the mean of 3 partitions, combined without their LSE"),
        (ScaleOfThePaddedHead, {"head_size": 80}, "a scale of 128 ** -0.5 (the padded head size)"),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)  # fmt: skip
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_mistaken_softmax_is_named(
    mistaken: type[PlainTorch], changes: dict[str, int], told: str, dtype: str
) -> None:
    message = judge(mistaken(), replace(CASE, dtype=dtype, **changes)).findings[0].message

    assert f"  the output is that of: {told}" in message, message
    assert "this case does not tell them apart" not in message


class LseOfCappedScores(Plain):
    def _softmax(self, scores: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        out, _ = super()._softmax(scores, values)
        return out, torch.logsumexp(torch.where(scores.isfinite(), 30 * torch.tanh(scores / 30), scores), 2)


class LseOfThePaddedScale(Plain):
    def _read(self, pool: Pool, batch: Batch) -> Output:
        other = super()._read(pool, dataclasses.replace(batch, scale=128**-0.5))
        return Output(super()._read(pool, batch).out, other.lse)


@pytest.mark.parametrize(
    ("mistaken", "told"),
    [
        (LseOfCappedScores, "the LSE is that of scores with a soft cap of 30"),
        (LseOfThePaddedScale, "the LSE is that of scores with a scale of 128 ** -0.5 (the padded head size)"),
    ],
)
def test_a_mistaken_lse_is_named(mistaken: type[PlainTorch], told: str) -> None:
    finding = judge(mistaken(), replace(CASE, head_size=80, values="large")).findings[0]

    assert finding.property == "READ-4"
    assert told in finding.message
