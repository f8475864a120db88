"""What a finding says, and that it comes down to a small case that still breaks the same clause."""

import dataclasses
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor

from fuzz.as_test import as_test
from properties.attention.cases import (
    AttentionCase,
    AttentionSetting,
    ReadCase,
    Row,
    StoreCase,
    from_json,
    to_json,
    why_malformed,
)
from properties.attention.generate import READ_VARIATIONS
from properties.attention.judges import judge
from properties.attention.shrink import simpler
from properties.attention.spec import SPEC
from properties.attention.target import Batch, Output, Pool
from properties.attention.targets.plain import PlainTorch
from properties.attention.words import VARIED, in_words
from properties.case import Case
from properties.contract import VIOLATIONS, AdapterError, UsageError
from properties.drive import drive
from properties.minimise import breaks, minimise, trimmed
from tests.attention.broken import (
    Broken,
    LastTokenDropped,
    MinusOneIsTheLastSlot,
    NoValueMask,
    OneTokenUsesAStaleBuffer,
)

BATCH = ReadCase(
    operation="decode",
    rows=(
        Row(key=0, context_len=9, table=(5, 2, 7)),
        Row(key=1, context_len=6, table=(5, 0), parent=0, shared_blocks=1),
    ),
    num_blocks=9,
    block_size=4,
    num_kv_heads=2,
    ratio=3,
    seed=4,
    poison_k="attractor",
    poison_v="attractor",
)


def test_a_finding_tells_both_errors_the_place_and_the_decoy() -> None:
    finding = judge(LastTokenDropped(), BATCH).findings[0]

    lines = finding.message.splitlines()
    assert finding.property == "READ-1"
    assert lines[0] == "READ-1 (parity with dense attention in float64) does not hold."
    assert lines[1] == "decode, block size 4, 9 blocks, 6 query heads on 2 KV heads of 16, float32, layout flash"
    assert lines[2].startswith("row 0: context 9, 1 query, blocks [5, 2, 7]: ")
    assert "worst at [0, " in lines[3]
    assert "float64 oracle" in lines[3]
    assert "max error" in lines[4]
    assert "plain float32 run" in lines[4]
    assert lines[5].strip().startswith("the output is that of: the last token dropped")


def test_findings_raise_the_class_of_their_clause() -> None:
    verdict = judge(LastTokenDropped(), BATCH)

    with pytest.raises(VIOLATIONS["READ-1"], match="last token dropped"):
        verdict.raise_if_broken()


def test_a_store_finding_names_slot_block_and_token() -> None:
    case = StoreCase(slots=(5, -1, 0), num_blocks=3, block_size=4)

    finding = judge(MinusOneIsTheLastSlot(), case).findings[0]

    assert finding.property == "SLOT-3"
    assert "slot 11 (block 2, position 3), key: holds token 1, whose slot is -1" in finding.message


def test_a_leak_that_only_another_block_size_shows_is_a_leak() -> None:
    """Blocks of one token have no tail; blocks of another size have, with poison in it."""
    case = ReadCase(
        operation="decode",
        rows=(Row(key=0, context_len=5, table=(4, 1, 3, 0, 2)),),
        num_blocks=6,
        block_size=1,
        variation="block_size",
    )

    findings = judge(NoValueMask(), case).findings

    assert [finding.property for finding in findings] == ["READ-2"]
    assert "wrong with the same tokens in blocks of another size" in findings[0].message
    assert "what reaches the output: values of slots that no query of the sequence may read" in findings[0].message


class _FillsTables(NoValueMask):
    """Its caller fills the table behind the last block with -1, and with nothing else."""

    capabilities = msgspec.structs.replace(NoValueMask.capabilities, padding=("minus_one",))


def test_a_leak_is_a_leak_whatever_the_table_is_filled_with() -> None:
    """It was READ-1, or READ-6, without a word of poison, where table padding of 0 is not declared."""
    row = Row(key=0, context_len=5, table=(4, 1))
    case = ReadCase(
        operation="decode", rows=(row,), num_blocks=6, block_size=4, poison_k="nan", poison_v="nan", padding="minus_one"
    )

    (finding,) = judge(_FillsTables(), case).findings

    assert finding.property == "READ-2"
    assert "Right on a clean pool; what reaches the output: values of slots that no query of" in finding.message


def test_a_store_of_nothing_but_padding_comes_down_to_one_block_and_no_fewer() -> None:
    """Slot -1 is below every block: what is left must still be a pool."""
    setting, operations = AttentionSetting(), (StoreCase(slots=(-1, -1), num_blocks=3, block_size=4),)

    _, (case,) = minimise(SPEC, (setting, operations), breaks(SPEC, MinusOneIsTheLastSlot, "SLOT-3"))

    assert isinstance(case, StoreCase)
    assert (case.slots, case.num_blocks) == ((-1,), 1)


class _Lse(PlainTorch):
    """Gives out something else than the LSE."""

    def __init__(self, mistake: str) -> None:
        self.mistake = mistake

    def _softmax(self, scores: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        out, lse = super()._softmax(scores, values)
        largest = scores.amax(2)
        return out, {"no sum": largest, "no maximum": lse - largest, "sign": -lse}[self.mistake]

    def _merge(self, outs: Tensor, lses: Tensor) -> tuple[Tensor, Tensor]:
        return outs[0], lses[0]


@pytest.mark.parametrize(
    ("mistake", "clue"),
    [
        ("no sum", "the LSE is the largest score: the logarithm of the sum is missing"),
        ("no maximum", "the LSE is the logarithm of the sum alone: the largest score is missing"),
        ("sign", "the LSE is that with the opposite sign"),
    ],
)
def test_a_wrong_lse_is_told_with_its_mistake(mistake: str, clue: str) -> None:
    case = msgspec.structs.replace(BATCH, num_splits=1, poison_k="zero", poison_v="zero")

    (finding,) = judge(_Lse(mistake), case).findings

    assert finding.property == "READ-4"
    assert clue in finding.message


class _ReadsOn(PlainTorch):
    """The first block of a table, and those that lie behind it in the pool."""

    def _attend(self, pool: Pool, batch: Batch, table: Tensor, rows: slice, context_len: int) -> tuple[Tensor, Tensor]:
        table = table[0] + torch.arange(len(table))
        return super()._attend(pool, batch, table.clamp(max=pool.key_cache.shape[0] - 1), rows, context_len)


class _FirstHeadUnwritten(PlainTorch):
    """Nobody writes the first query head."""

    def decode(self, pool: Pool, batch: Batch) -> Output:
        output = super().decode(pool, batch)
        output.out[:, 0] = 0.0
        return output


class _SdpaCausal(PlainTorch):
    """One query with is_causal=True of torch's SDPA sees the first token alone."""

    def decode(self, pool: Pool, batch: Batch) -> Output:
        return super().decode(pool, dataclasses.replace(batch, context_lens=(1,) * len(batch.context_lens)))


@pytest.mark.parametrize(
    ("target", "clue"),
    [
        (_ReadsOn(), "the blocks behind the first one in the pool, not those of the table"),
        (_SdpaCausal(), "the causal mask aligned at the top left"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_wrong_output_is_told_with_its_mistake(target: PlainTorch, clue: str) -> None:
    (row, _) = BATCH.rows
    case = msgspec.structs.replace(BATCH, rows=(msgspec.structs.replace(row, table=(2, 7, 5)),))

    (finding,) = judge(target, case).findings

    assert f"the output is that of: {clue}" in finding.message


def test_what_was_not_written_is_told_so() -> None:
    """It was "0 times the right output: what a (token, head) is divided by ..."."""
    (finding,) = judge(_FirstHeadUnwritten(), msgspec.structs.replace(BATCH, rows=BATCH.rows[:1])).findings

    assert "it is zero: was it written?" in finding.message


class _Store(PlainTorch):
    """Each way to store wrongly that a reader is told apart."""

    def __init__(self, mistake: str) -> None:
        self.mistake = mistake

    def store(self, pool: Pool, keys: Tensor, values: Tensor, slot_mapping: Tensor) -> None:
        if self.mistake == "dense keys":
            keys = keys.as_strided(keys.shape, (keys[0].numel(), keys.shape[2], 1))
        if self.mistake == "dense blocks":
            strides = (pool.value_cache[0].numel(), *pool.value_cache.stride()[1:])
            pool = dataclasses.replace(pool, value_cache=pool.value_cache.as_strided(pool.value_cache.shape, strides))
        if self.mistake == "swapped":
            keys, values = values, keys
        if self.mistake == "last head":
            pool = dataclasses.replace(pool, key_cache=pool.key_cache[:, :, :-1])
            PlainTorch().store(pool, keys[:, :-1], values, slot_mapping)
            return
        PlainTorch().store(pool, keys, values, slot_mapping)


@pytest.mark.parametrize(
    ("mistake", "changes", "clue"),
    [
        ("dense keys", {"query_form": "fused"}, "right with contiguous keys and values"),
        ("dense blocks", {"pool_form": "uneven", "query_form": "fused"}, "right with dense caches"),
        ("swapped", {}, "key: holds the value of its token"),
        ("last head", {"num_kv_heads": 3}, "key: not written in KV head 2 (16 of 48 elements)"),
    ],
)
def test_a_wrong_store_is_told_with_its_mistake(mistake: str, changes: dict[str, Any], clue: str) -> None:
    case = msgspec.structs.replace(StoreCase(slots=(1, 6), num_blocks=3, block_size=4), **changes)

    (finding,) = judge(_Store(mistake), case).findings

    assert finding.property == "STORE-1"
    assert clue in finding.message
    assert ("right with" in finding.message) == mistake.startswith("dense")


@pytest.mark.parametrize(
    ("broken", "most_rows", "most_tokens"),
    # READ-6 is told from READ-1 by a longer row that is right.
    [(LastTokenDropped, 1, 2), (NoValueMask, 1, 1), (OneTokenUsesAStaleBuffer, 2, 2)],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_a_random_finding_comes_down_to_a_small_case(broken: type[Broken], most_rows: int, most_tokens: int) -> None:
    for seed in range(200):
        setting, verdict = drive(SPEC, broken, seed)
        if verdict.broke(broken.breaks):
            break
    trace = trimmed(SPEC, broken, (setting, tuple(verdict.applied)), broken.breaks)

    setting, operations = minimise(SPEC, trace, breaks(SPEC, broken, broken.breaks))

    (case,) = operations
    assert isinstance(case, ReadCase)
    assert len(case.rows) <= most_rows
    assert max(row.context_len for row in case.rows) <= most_tokens
    assert (case.num_kv_heads, case.ratio, case.dtype, case.variation) == (1, 1, "float32", "none")


def test_every_simplification_is_well_formed_and_different() -> None:
    smaller = list(simpler(BATCH))

    assert len(smaller) > 10
    assert all(isinstance(case, ReadCase) and why_malformed(case) is None and case != BATCH for case in smaller)


def test_cases_are_readable_json_that_names_its_operation() -> None:
    text = to_json(BATCH)

    assert text.startswith(b'{"op":"read","operation":"decode","rows":[{"key":0,"context_len":9,"table":[5,2,7]}')
    assert from_json(text) == BATCH
    with pytest.raises(msgspec.ValidationError, match="unknown field"):
        from_json(text.replace(b'"seed"', b'"sead"'))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dtype": "float64"}, "declare dtype=float64"),
        ({"block_size": 6}, "declare block_size=6"),
        ({"rows": (Row(key=0, context_len=9, table=(5, 2)),)}, "9 tokens need 3 blocks, the table has 2"),
        ({"rows": (Row(key=0, context_len=2, table=(9,)),)}, "block 9 is not in the pool of 9"),
        (
            {"rows": (Row(key=0, context_len=2, table=(1,)), Row(key=1, context_len=2, table=(1,)))},
            "block 1 belongs to rows",
        ),
    ],
)
def test_an_impossible_case_is_the_users_mistake(change: dict[str, object], message: str) -> None:
    case: AttentionCase = msgspec.structs.replace(BATCH, **change)

    with pytest.raises(UsageError, match=message):
        judge(PlainTorch(), case)


def test_a_target_keeps_to_its_declared_device() -> None:
    class OnlyCuda(PlainTorch):
        capabilities = msgspec.structs.replace(PlainTorch.capabilities, devices=("cuda",))

    with pytest.raises(UsageError, match="runs on cuda, not on cpu"):
        SPEC.referee(OnlyCuda(), AttentionSetting(device="cpu"))


def test_a_case_in_words() -> None:
    words = in_words(msgspec.structs.replace(BATCH, variation="move", window=5, num_splits=2))

    assert words == (
        "decode: row 0: 9 tokens in blocks 5 2 7; row 1: 6 tokens in blocks 5 0, 1 shared with row 0 (6 query heads, "
        "9 blocks of 4, 2 KV heads of 16, float32; window 5, 2 partitions, unowned slots hold attractor keys and "
        "attractor values), then with the tokens moved to other blocks"
    )
    assert set(VARIED) | {"none"} == set(READ_VARIATIONS)


def test_a_finding_as_a_pytest_file_fails_for_the_broken_target_and_passes_for_the_right_one() -> None:
    for target, fails in (("tests.attention.broken:LastTokenDropped", True), ("plain-torch", False)):
        case = Case(
            level="attention",
            target=target,
            property="READ-1",
            message="",
            geometry=AttentionSetting(),
            operations=(BATCH,),
        )
        names: dict[str, object] = {}
        exec(compile(as_test(case, case.target), "shown.py", "exec"), names)
        test = names["test_read_1"]
        assert callable(test)
        if fails:
            with pytest.raises(AssertionError, match="last token dropped"):
                test()
        else:
            test()


def test_an_lse_that_is_declared_must_come() -> None:
    class Forgets(PlainTorch):
        def decode(self, pool: Pool, batch: Batch) -> Output:
            return Output(super().decode(pool, batch).out)

    with pytest.raises(AdapterError, match="declares lse_base='e' and returned no LSE"):
        judge(Forgets(), BATCH)


def test_ids_behind_the_last_block_are_told() -> None:
    """What they are may be the whole cause."""
    rows = (Row(key=0, context_len=6, table=(5, 2, 0, -1)), Row(key=1, context_len=4, table=(1,)))

    assert "row 0: 6 tokens in blocks 5 2 (behind them in its table 0 -1); row 1: 4 tokens in blocks 1 (" in in_words(
        msgspec.structs.replace(BATCH, rows=rows)
    )


class Slanted(PlainTorch):
    """A little wrong everywhere: by more than the limit, and by less than any known mistake of these inputs."""

    def _read(self, pool: Pool, batch: Batch) -> Output:
        answer = super()._read(pool, batch)
        return Output(answer.out + 0.004, answer.lse)


def test_what_is_no_nearer_than_the_right_answer_explains_nothing() -> None:
    row = Row(key=0, context_len=60, table=tuple(range(15)))
    plain = {"values": "equal", "poison_k": "zero", "poison_v": "zero", "dtype": "float16"}
    even = msgspec.structs.replace(BATCH, rows=(row,), num_blocks=16, **plain)

    message = judge(Slanted(), even).findings[0].message

    assert "no known mistake gives this output; it is right to the precision of bfloat16" in message


class LongContexts(PlainTorch):
    capabilities = msgspec.structs.replace(PlainTorch.capabilities, max_context=300)


class Tf32Products(LongContexts):
    """Rounds the factors of its products to 10 bits, as Triton's dot does unless it is told not to."""

    def _read(self, pool: Pool, batch: Batch) -> Output:
        return super()._read(pool, dataclasses.replace(batch, q=self._cut(batch.q)))

    def _gather(self, pool: Pool, batch: Batch, table: Tensor, context_len: int) -> tuple[Tensor, Tensor]:
        keys, values = super()._gather(pool, batch, table, context_len)
        return self._cut(keys), self._cut(values)

    def _cut(self, factor: Tensor) -> Tensor:
        return (factor.contiguous().view(torch.int32) & ~0x1FFF).view(torch.float32)


class SumsInFloat16(LongContexts):
    """Adds weighted values up in float16, as llama.cpp does."""

    def _softmax(self, scores: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        lse = torch.logsumexp(scores, 2)
        weights, total = torch.exp(scores - scores.amax(2)[..., None]), torch.zeros(1).half()
        for n in range(scores.shape[2]):
            total = (total + weights[:, :, n, None] * values[n][:, None]).half()
        return total / weights.sum(2)[..., None], lse


class LseInBfloat16(LongContexts):
    def _read(self, pool: Pool, batch: Batch) -> Output:
        out, lse = super()._read(pool, batch)
        return Output(out, None if lse is None else lse.bfloat16().float())


@pytest.mark.parametrize(
    ("imprecise", "dtype", "told"),
    [
        (Tf32Products, "float32", "it is right to the precision of TF32 products: declare tf32=True if they are meant"),
        (SumsInFloat16, "float16", "it is as far off as sums of weighted values in float16 are: keep them in float32"),
        (LseInBfloat16, "float16", "it is right to the precision of bfloat16: keep the LSE in float32"),
    ],
)
def test_a_result_that_is_merely_imprecise_is_told_so(imprecise: type[PlainTorch], dtype: str, told: str) -> None:
    row = Row(key=0, context_len=300, table=tuple(range(75)))
    case = msgspec.structs.replace(BATCH, rows=(row,), num_blocks=76, dtype=dtype, values="equal")

    assert told in judge(imprecise(), case).findings[0].message


class WindowTooWide(PlainTorch):
    """By one token, where it begins within a block."""

    def _read(self, pool: Pool, batch: Batch) -> Output:
        window = batch.window
        begins_within = window is not None and (max(batch.context_lens) - window) % batch.block_size
        return super()._read(pool, dataclasses.replace(batch, window=window + 1) if window and begins_within else batch)


def test_a_window_shrinks_with_its_context() -> None:
    row = Row(key=0, context_len=51, table=tuple(range(13)))
    case = msgspec.structs.replace(BATCH, rows=(row,), num_blocks=14, window=38, poison_k="zero", poison_v="zero")
    setting = AttentionSetting(device="cpu")
    fails = breaks(SPEC, WindowTooWide, "READ-1")

    assert fails(setting, (case,))
    _, (small,) = minimise(SPEC, (setting, (case,)), fails)

    assert small.window is not None
    assert small.window <= 3
    assert small.rows[0].context_len <= 8


class FollowsTheBatch(PlainTorch):
    """As many partitions as there are rows, which is right, and not what it promises."""

    def _read(self, pool: Pool, batch: Batch) -> Output:
        return super()._read(pool, dataclasses.replace(batch, num_splits=len(batch.context_lens)))


class EndsInAnyOrder(PlainTorch):
    """Another number of partitions in every call, as where sums end in any order."""

    calls = 0

    def _read(self, pool: Pool, batch: Batch) -> Output:
        self.calls += 1
        return super()._read(pool, dataclasses.replace(batch, num_splits=1 + self.calls % 5))


@pytest.mark.parametrize(
    ("correct", "told"),
    [
        (FollowsTheBatch, "READ-5P is declared in `promises`: leave it out if the batch chooses partitions or tiles"),
        (EndsInAnyOrder, "READ-5P is declared in `promises`: leave it out if sums end in any order, as with atomics"),
    ],
)
def test_a_promise_that_is_not_kept_names_its_declaration(correct: type[PlainTorch], told: str) -> None:
    case = msgspec.structs.replace(BATCH, variation="alone")

    (finding,) = judge(correct(), case).findings
    assert finding.property == "READ-5P"
    assert told in finding.message
    modest = type(
        "Modest", (correct,), {"capabilities": msgspec.structs.replace(correct.capabilities, promises=frozenset())}
    )
    assert not judge(modest(), case).findings


class ForgetsAToken(LongContexts):
    """The token before each 16th is left out."""

    def _softmax(self, scores: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        scores = scores.clone()
        scores[:, :, 15:-1:16] = -torch.inf
        return super()._softmax(scores, values)


class SumIsNotRescaled(LongContexts):
    """The sum of the weights is 2 % too large."""

    def _softmax(self, scores: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        out, lse = super()._softmax(scores, values)
        return out / 1.02, lse


class RoundsToBfloat16(LongContexts):
    def _softmax(self, scores: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        out, lse = super()._softmax(scores, values)
        return out.bfloat16().float(), lse


@pytest.mark.parametrize(
    ("wrong", "context_len", "told"),
    [
        (ForgetsAToken, 18, "the output is that of: token 15 of the context left out (block 3)"),
        (
            SumIsNotRescaled,
            18,
            "times the right output: what a (token, head) is divided by is not the sum of its weights",
        ),
        (SumIsNotRescaled, 1, "it is 0.9803"),
        (RoundsToBfloat16, 1, "every value is rounded to bfloat16"),
        (RoundsToBfloat16, 18, "every value is rounded to bfloat16"),
    ],
)
def test_what_is_not_imprecise_is_not_told_to_be(wrong: type[PlainTorch], context_len: int, told: str) -> None:
    """All of it is within the limits of coarser products, in a small case."""
    row = Row(key=0, context_len=context_len, table=tuple(range(5)))
    case = msgspec.structs.replace(BATCH, rows=(row,), num_blocks=5, poison_k="zero", poison_v="zero")

    message = judge(wrong(), case).findings[0].message
    assert told in message
    assert "TF32" not in message


class ScoresInBfloat16(LongContexts):
    def _softmax(self, scores: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        return super()._softmax(scores.bfloat16().float(), values)


@pytest.mark.parametrize(
    ("wrong", "context_len", "declares"),
    [(Tf32Products, 1, True), (Tf32Products, 2, True), (Tf32Products, 9, True), (ScoresInBfloat16, 2, False)],
)
def test_tf32_is_to_be_declared_where_it_is_the_cause(
    wrong: type[PlainTorch], context_len: int, declares: bool
) -> None:
    """A float16 number is one of TF32; and in small cases other mistakes are within the limits of TF32."""
    rows, messages = (Row(key=0, context_len=context_len, table=(0, 1, 2)),), []
    for seed in (*range(8), 25, 35):
        case = msgspec.structs.replace(
            BATCH, rows=rows, num_blocks=5, seed=seed, ratio=1, num_kv_heads=1, values="normal"
        )
        messages += [
            finding.message for finding in judge(wrong(), case).findings if " of out are wrong" in finding.message
        ]

    assert messages
    for message in messages:
        assert ("TF32 products: declare tf32=True if they are meant" in message) is declares


class AddsToTheSum(PlainTorch):
    """1e-6 is added to the sum of the weights, in the one partition and where the partitions are merged, as vLLM does."""

    def _softmax(self, scores: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        out, lse = super()._softmax(scores, values)
        total = torch.exp(lse - scores.amax(2))[..., None]
        return out * (total / (total + 1e-6)) * (total / (total + 1e-6)), lse


@pytest.mark.parametrize("context_len", [1, 2, 9, 33])
@pytest.mark.parametrize("seed", range(8))
def test_an_epsilon_in_the_sum_of_the_weights_is_right(context_len: int, seed: int) -> None:
    row = Row(key=0, context_len=context_len, table=tuple(range(9)))
    case = msgspec.structs.replace(BATCH, rows=(row,), num_blocks=9, seed=seed, poison_k="zero", poison_v="zero")

    assert not judge(AddsToTheSum(), case).findings
