"""`pagefault bench`: a wrong answer is caught and not timed, times and ratios are those of the calls."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from fuzz.bench import memory, runner, session, timing
from fuzz.bench.result import Result, Row, from_json, to_json
from fuzz.bench.session import Wish
from fuzz.bench.table import in_words
from properties.contract import UsageError
from tests.fuzz import bench_targets

TARGETS = Path(bench_targets.__file__)
DECODE, RAGGED, PREFILL, STORE = "3x37x4/2/16/p4", "5x60x4/2/16/p4/ragged", "2x21x4/2/16/p4/q9", "50x2/16/p4"
DTYPES = ("float32", "float16", "bfloat16")
READS = (DECODE, RAGGED, "4x130x6/2/24/p5/mix", PREFILL, "1x1x2/2/16/p1")


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ceilings and cache flushes of a few megabytes, few calls."""
    product = timing.product_tflops
    monkeypatch.setattr(runner, "free_bytes", lambda device: 32 << 20)
    monkeypatch.setattr(timing, "product_tflops", lambda dtype, size, device: product(dtype, 64, device))
    monkeypatch.setattr(timing, "CPU_FLUSH_BYTES", 1 << 20)
    monkeypatch.setattr(timing, "CPU_BUDGET_S", 0.01)


def target(cls: str) -> str:
    """The target of that name in `bench_targets`."""
    return f"{TARGETS}:{cls}"


def bench(cls: str, *cases: str, against: tuple[str, ...] = (), dtype: str = "float32") -> Result:
    """A bench of that target on a CPU."""
    wish = Wish(target(cls), tuple(map(target, against)), cases=cases, dtype=dtype, device="cpu")
    return session.run(wish, lambda text: None)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cls", ["Right", "HndOnly", "VllmStore", "OneOutput"])
def test_a_right_answer_is_timed(cls: str, dtype: str) -> None:
    result = bench(cls, *READS, STORE, dtype=dtype)

    assert [row.state for row in result.rows] == ["timed"] * len(result.rows)
    assert len(result.rows) == len(READS) + 1
    for row in result.rows:
        assert row.us is not None
        assert row.us > 0
        assert row.how == "clock"
        assert row.error is not None
        assert row.error < {"float32": 1e-5, "float16": 1e-3, "bfloat16": 8e-3}[dtype]


@pytest.mark.parametrize(
    ("cls", "dtype"),
    [
        *((cls, dtype) for cls in ("Zeros", "NotANumber", "DropsTheLastToken", "IdentityTable") for dtype in DTYPES),
        ("OneSequenceWrong", "bfloat16"),
        ("WrongHead", "bfloat16"),
        ("SlightlyWrong", "float32"),
    ],
)
def test_a_wrong_read_is_found_and_not_timed(cls: str, dtype: str) -> None:
    result = bench(cls, *READS[:4], dtype=dtype)

    assert [row.state for row in result.rows] == ["wrong"] * 4
    for row in result.rows:
        assert (row.us, row.ratio) == (None, None)
        assert "limit" in row.why


def test_what_the_norm_of_a_row_hides_the_tolerance_finds() -> None:
    [row] = bench("SlightlyWrong", DECODE, dtype="bfloat16").rows

    assert row.state == "wrong"
    assert "tolerance of paged_ref/parity.py" in row.why


@pytest.mark.parametrize("cls", ["StoresOneSlotFurther", "ForgetsValues", "StoresBeforehand"])
def test_a_wrong_store_is_found_and_not_timed(cls: str) -> None:
    [row] = bench(cls, STORE).rows

    assert (row.state, row.us) == ("wrong", None)
    assert "slots of the" in row.why


def test_work_done_while_the_call_is_prepared_is_found() -> None:
    [row] = bench("ComputesBeforehand", DECODE).rows

    assert (row.state, row.us) == ("wrong", None)
    assert "does not read them when it is called" in row.why


@pytest.mark.parametrize(
    ("cls", "case", "says"),
    [("GivesUp", DECODE, "is off by 1 of its norm"), ("KeepsItsAnswers", DECODE, "is off by inf of its norm"),
     ("StoresNoMore", STORE, "slots of the key cache hold other bits")],
)  # fmt: skip
def test_a_call_that_was_fast_for_nothing_is_found(
    cls: str, case: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timing, "CPU_LEAST_CALLS", 10)
    [row] = bench(cls, case).rows

    assert (row.state, row.us) == ("wrong", None)
    assert row.why.startswith("called again after many calls, ")
    assert says in row.why


def test_a_wrong_target_is_not_timed_beside_a_right_one() -> None:
    result = bench("Right", DECODE, against=("Zeros",))

    assert [row.state for row in result.rows] == ["timed", "wrong"]
    assert result.compared == ()
    assert [row.target for row in result.findings] == [target("Zeros")]
    assert f"WRONG  {target('Zeros')}" in in_words(result)


def test_the_ratio_has_the_right_sign_and_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "CPU_BUDGET_S", 1.0)  # a dozen calls each, of which the shortest counts
    slower = bench("Brisk", "1x3x1/1/16/p4", "1x3x1/1/16/p4/q2", against=("Slow",))
    faster = bench("Slow", "1x3x1/1/16/p4", against=("Brisk",))

    for row in slower.rows:
        assert row.us is not None
        assert row.us >= (30_000 if "Brisk" in row.target else 90_000)
    assert [row.ratio for row in slower.rows if "Brisk" in row.target] == [1.0, 1.0]
    assert [(compared.kind, compared.num_cases) for compared in slower.compared] == [("decode", 1), ("prefill", 1)]
    for compared in slower.compared:
        assert compared.geometric_mean == pytest.approx(3.0, rel=0.45)
    assert faster.compared[0].geometric_mean == pytest.approx(1 / 3, rel=0.8)


def test_conversions_are_outside_the_time_where_the_target_prepares() -> None:
    result = bench("SlowToConvert", DECODE, against=("Zeros",))

    assert result.rows[0].us is not None
    assert result.rows[0].us < 400_000
    assert not result.rows[0].plain
    assert result.rows[1].plain, "Zeros has no prepare_decode"


def test_rates_and_shares_follow_from_the_time() -> None:
    result = bench("Right", DECODE, PREFILL, STORE)
    decode, prefill, store = result.rows
    ceilings = result.ceilings

    assert decode.us is not None
    assert prefill.us is not None
    assert store.us is not None
    assert decode.tb_s == pytest.approx(3 * 37 * 2 * 16 * 2 * 4 / decode.us / 1e6)
    # Two sequences of 9 queries that see 13, 14, ... 21 tokens: two products of 2 * 16 operations for each of 4 heads.
    assert prefill.tflops == pytest.approx(2 * sum(range(13, 22)) * 4 * 16 * 4 / prefill.us / 1e6)
    assert store.tb_s == pytest.approx(2 * 50 * 2 * 16 * 2 * 4 / store.us / 1e6)
    assert ceilings.read_tb_s is not None
    assert decode.of_ceiling == pytest.approx(decode.tb_s / ceilings.read_tb_s)
    assert ceilings.product_tflops is not None
    assert prefill.of_ceiling == pytest.approx(prefill.tflops / ceilings.product_tflops)
    assert ceilings.copy_tb_s is not None
    assert store.of_ceiling == pytest.approx(store.tb_s / ceilings.copy_tb_s)


def test_a_crash_is_a_finding_inside_the_declaration_and_an_answer_outside() -> None:
    [inside], [outside] = bench("Crashes", DECODE).rows, bench("CrashesOutside", DECODE).rows

    assert inside.state == "failed"
    assert "illegal memory access" in inside.why
    assert outside.state == "refused"
    assert "lies outside its declaration" in outside.why
    assert "head size 16" in outside.why


def test_a_target_that_ends_the_process_is_a_finding() -> None:
    [row] = bench("Leaves", DECODE).rows

    assert row.state == "failed"
    assert "SystemExit" in row.why


def test_an_adapter_that_cannot_be_made_is_one_line() -> None:
    with pytest.raises(UsageError, match=r"making the adapter raised KeyError: 'weights'"):
        bench("CannotBeMade", DECODE)


def test_an_adapter_at_fault_among_the_others_leaves_the_times_of_the_rest() -> None:
    rows = bench("Right", DECODE, against=("ReturnsNothing", "HndOnly")).rows

    assert [row.state for row in rows] == ["timed", "failed", "timed"]
    assert rows[1].why.startswith("verdict ADAPTER")


def test_what_derives_from_no_exception_is_a_crash() -> None:
    [row] = bench("RaisesNoException", DECODE).rows

    assert row.state == "failed"
    assert "NoException: (its text cannot be had" in row.why


@pytest.mark.parametrize(("cls", "case"), [("KeepsTheFirstBatch", DECODE), ("KeepsTheFirstTokens", STORE)])
def test_a_call_that_reads_another_batch_is_found(cls: str, case: str) -> None:
    [row] = bench(cls, case).rows

    assert (row.state, row.us) == ("wrong", None)
    assert "it was prepared for" in row.why


@pytest.mark.parametrize(
    ("cls", "case", "what"),
    [
        ("ScalesQueriesInPlace", DECODE, "(q)"), ("ClearsThePool", DECODE, "(v_cache)"),
        ("ShiftsTheSlots", STORE, "(slots)"),
    ],
)  # fmt: skip
def test_changed_inputs_are_blamed_on_who_changed_them(cls: str, case: str, what: str) -> None:
    rows = bench("Right", case, against=(cls, "HndOnly")).rows

    assert [row.state for row in rows] == ["timed", "wrong", "timed"]
    assert (rows[1].us, rows[1].how) == (None, None)
    assert f"it changes its inputs {what}" in rows[1].why


def test_two_texts_of_one_case_are_one() -> None:
    assert len(bench("Right", DECODE, f"0{DECODE}", f"{DECODE}/uniform").rows) == 1


def test_a_declared_refusal_is_an_answer() -> None:
    result = bench("Right", DECODE, STORE, against=("Refuses",))

    assert [row.state for row in result.rows] == ["timed", "refused", "timed", "timed"]
    assert result.findings == ()
    assert "blocks of 64 tokens only" in in_words(result)


def test_an_adapter_that_breaks_the_protocol_is_the_adapters_fault() -> None:
    with pytest.raises(UsageError, match=r"verdict ADAPTER.*returned NoneType"):
        bench("ReturnsNothing", DECODE)


def test_json_round_trip() -> None:
    result = bench("Right", DECODE, STORE, against=("Zeros", "Refuses"))

    assert from_json(to_json(result)) == result
    assert b'"version": 1' in to_json(result)
    with pytest.raises(msgspec.ValidationError, match="rows"):
        from_json(to_json(result).replace(b'"state": "wrong"', b'"state": "fine"'))


def test_the_table_says_everything() -> None:
    words = in_words(bench("Brisk", DECODE, STORE, against=("Slow", "Refuses")))

    for part in (
        f"decode {DECODE}",
        f"store {STORE}",
        "GB/s",
        "clock, plain call",
        "refused",
        "geometric mean",
        "it reads",
    ):
        assert part in words
    assert "…" not in words, "no cell is cut"


def test_a_case_that_is_too_big_is_refused_with_both_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda device: 1_000_000)

    with pytest.raises(UsageError, match=r"needs 68,993,024 bytes .* cpu has 1,000,000 free: give fewer"):
        bench("Right", "32x512x8/2/64/p16")


def test_default_cases_that_are_too_big_are_left_out_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda device: 12_000_000)
    result = session.run(Wish(target("Right"), suites=("decode",), device="cpu"), lambda text: None)

    assert set(result.left_out) >= {"8x512x8/2/64/p16"}
    assert {row.case for row in result.rows} == {"16x64x8/2/64/p16"}
    assert "left out: case 8x512x8/2/64/p16 needs" in in_words(result)


def test_a_gpu_that_is_lost_ends_the_bench(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost() -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    failed = Row(case=DECODE, kind="decode", dtype="float32", target="x", state="failed")
    monkeypatch.setattr("torch.cuda.synchronize", lost)

    assert runner.gpu_is_lost([failed])
    assert not runner.gpu_is_lost([msgspec.structs.replace(failed, state="timed")])
