"""The command `pagefault bench`: exit codes, files, mistakes, the plot, the names of cases."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import msgspec
import pytest

from fuzz import cli
from fuzz.bench import peers, plot, session, suites
from fuzz.bench.cases import BadCase, Case, StoreCase, parse
from fuzz.bench.result import Ceilings, Result, Row, State, compare, from_json, with_ratios
from fuzz.bench.table import in_words
from properties.contract import UsageError
from tests.fuzz import bench_targets
from tests.fuzz.helpers import command, environment, pagefault

TARGETS = bench_targets.__file__
CASE = "3x37x4/2/16/p4"


def test_figures_json_and_plot_of_a_right_target(tmp_path: Path) -> None:
    done = pagefault(
        "bench", "-t", f"{TARGETS}:Brisk", "--against", f"{TARGETS}:Slow", "--case", CASE, "--device", "cpu",
        "--json", "out.json", "--plot", "out.png", cwd=tmp_path,
    )  # fmt: skip

    assert done.code == 0, done.err
    assert f"decode {CASE}" in done.out
    assert "ratio: time over that of" in done.out
    result = from_json((tmp_path / "out.json").read_text())
    assert [row.state for row in result.rows] == ["timed", "timed"]
    assert result.compared[0].geometric_mean > 1, "Slow sleeps three times as long"
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")


def test_a_wrong_target_exits_1_and_says_what_is_wrong(tmp_path: Path) -> None:
    done = pagefault(
        "bench",
        "-t",
        f"{TARGETS}:DropsTheLastToken",
        "--case",
        CASE,
        "--device",
        "cpu",
        "--plot",
        "p.png",
        cwd=tmp_path,
    )

    assert done.code == 1
    assert "WRONG: not timed" in done.out
    assert "float64, limit" in done.out
    assert not (tmp_path / "p.png").exists(), "there is nothing to draw"


def test_what_a_target_prints_does_not_mix_with_the_result(tmp_path: Path) -> None:
    done = pagefault("bench", "-t", f"{TARGETS}:Talks", "--case", CASE, "--device", "cpu", "--json", "-", cwd=tmp_path)

    assert done.code == 0
    assert from_json(done.out).rows[0].state == "timed"
    assert done.err.count("so far so good") > 3


def test_a_target_that_ends_the_process_is_a_finding(tmp_path: Path) -> None:
    done = pagefault("bench", "-t", f"{TARGETS}:LeavesAtOnce", "--case", CASE, "--device", "cpu", cwd=tmp_path)

    assert (done.code, done.out) == (1, "")
    assert "FAILED  the process ended itself with exit status 0, at: one decode: " in done.err


def test_ctrl_c_ends_a_target_that_does_not_hear_it(tmp_path: Path) -> None:
    arguments = command("bench", "-t", f"{TARGETS}:Waits", "--case", CASE, "--device", "cpu")
    with subprocess.Popen(
        arguments, cwd=tmp_path, env=environment(), stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as bench:
        assert bench.stderr is not None
        assert any(line == "waiting\n" for line in bench.stderr)
        os.killpg(bench.pid, signal.SIGINT)
        rest = bench.stderr.read()  # ends when nobody holds the pipe any more
        bench.wait()

    assert "Traceback" not in rest
    with pytest.raises(ProcessLookupError):
        os.killpg(bench.pid, 0)


def test_json_alone_on_standard_output(tmp_path: Path) -> None:
    done = pagefault("bench", "-t", f"{TARGETS}:Zeros", "--case", CASE, "--device", "cpu", "--json", "-", cwd=tmp_path)

    assert done.code == 1
    assert done.json["rows"][0]["state"] == "wrong"
    assert "us" not in done.json["rows"][0]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a file that is always full")
def test_numbers_that_cannot_be_written_are_printed(tmp_path: Path) -> None:
    case = ("--case", CASE, "--device", "cpu", "--json", "/dev/full")
    done = pagefault("bench", "-t", f"{TARGETS}:Zeros", *case, cwd=tmp_path)

    assert done.code == 2
    assert f"{TARGETS}:Zeros" in done.out
    assert done.err.splitlines()[-1] == (
        "pagefault: --json /dev/full cannot be written: No space left on device. The numbers are printed above"
    )


@pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1",
    reason="there is a GPU: nothing is interpreted (TRITON_INTERPRET=1 runs it)",
)
@pytest.mark.parametrize(
    ("arguments", "on_stdout"), [(("--json", "o.json"), False), (("--json", "-"), True), (("--json=-",), True)]
)
def test_a_mistake_is_json_where_the_result_would_be(
    tmp_path: Path, arguments: tuple[str, ...], on_stdout: bool
) -> None:
    done = pagefault("bench", "-t", "no-such-target", *arguments, cwd=tmp_path)

    assert done.code == 2
    assert "no target 'no-such-target'" in done.err
    assert done.out.startswith('{"error"') == on_stdout


def test_interpreted_kernels_are_not_timed(tmp_path: Path) -> None:
    alone = pagefault("bench", "-t", "ours-triton", "--case", CASE, "--device", "cpu", cwd=tmp_path)
    beside = pagefault(
        "bench", "-t", "plain-torch", "--against", "ours-triton", "--case", CASE, "--device", "cpu", cwd=tmp_path
    )

    assert alone.code == 2
    assert "Triton's interpreter here, where a time means nothing" in alone.err.splitlines()[-1]
    assert beside.code == 0
    assert "not here: ours-triton" in beside.out


BENCH = ["bench", "-t", f"{TARGETS}:Right", "--device", "cpu"]
MISTAKES = [
    (["bench"], "Missing option", "--help"),
    (["bench", "-t", "oours"], "no target 'oours'", "near it"),
    (["bench", "-t", "ours", "--device", "cpu"], "target ours is of level blocks", "attention targets"),
    (["bench", "-t", "fa3", "--device", "cpu"], "peer fa3 runs on CUDA only", "--device cuda"),
    (["bench", "-t", "plain-torch", "--device", "tpu"], "--device 'tpu' is unknown", "cpu or cuda"),
    ([*BENCH, "--against", f"{TARGETS}:Right"], "is the target itself", "name another"),
    ([*BENCH, "--suite", "read"], "--suite 'read' is unknown", "decode or prefill or store"),
    ([*BENCH, "--dtype", "int8"], "--dtype 'int8' is unknown", "float16"),
    ([*BENCH, "--case", "-3x4x2/2/8/p16"], "no number may be negative", "32x4096x32/8/128/p16"),
    ([*BENCH, "--case", "big"], "'big' names no case", "32x4096x32/8/128/p16"),
    ([*BENCH, "--case", "0x4x2/2/8/p16"], "sequences 0 is out of range", "give 1 to 65536"),
    ([*BENCH, "--case", "99999999x4x2/2/8/p16"], "sequences 99999999 is out of range", "give 1 to 65536"),
    ([*BENCH, "--case", "2x4x3/2/8/p16"], "3 query heads cannot share 2 KV heads", "multiple"),
    ([*BENCH, "--case", "2x4x2/2/8/p16/q5"], "5 queries in a context of 4 tokens", "at most 4"),
    ([*BENCH, "--case", "65536x1048576x32/32/128/p16"], "bytes", "give fewer sequences or tokens"),
    ([*BENCH, "--case", CASE, "--suite", "store"], "leave nothing", "none of the cases is a store"),
    ([*BENCH, "--plot", "no/where.png"], "there is no folder no", "a folder that exists"),
    ([*BENCH, "--plot", "x.gif"], "gif is no format", ".png or .svg or .pdf"),
    ([*BENCH, "--json", "a.png", "--plot", "a.png"], "both name a.png", "a file of its own"),
    ([*BENCH, "--json", "."], "--json . is a folder", "give a file"),
]


@pytest.mark.parametrize(("arguments", "what", "remedy"), MISTAKES, ids=[" ".join(row[0][-2:]) for row in MISTAKES])
def test_a_mistake_is_one_line_with_the_value_and_the_remedy(
    arguments: list[str],
    what: str,
    remedy: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)

    with pytest.raises(SystemExit) as caught:
        cli.main(arguments)

    last = capsys.readouterr().err.splitlines()[-1]
    assert caught.value.code == 2
    assert last.startswith("pagefault: ")
    assert what in last
    assert remedy in last
    assert list(tmp_path.iterdir()) == [], "a mistake leaves nothing behind"


def test_cuda_without_a_gpu_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)

    with pytest.raises(UsageError, match=r"torch sees no GPU here\. Give --device cpu"):
        session.run(session.Wish("plain-torch", device="cuda"), lambda text: None)


def test_a_missing_peer_is_named_with_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "PEERS", tmp_path)

    for name in ("fa3", "vllm-triton"):
        assert str(tmp_path) in (peers.found(name) or "")
        assert "pip download" in peers.PEERS_BY_NAME[name].how_to_get
    (tmp_path / "fa3.so").touch()
    assert peers.found("fa3") is None


def test_peers_that_were_asked_for_on_a_cpu_are_listed_with_how_to_get_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "PEERS", tmp_path)
    (tmp_path / "fa3.so").touch()
    contenders, missing = session._contenders(session.Wish("plain-torch", against=("peers",)), "cpu")
    _, unasked = session._contenders(session.Wish("plain-torch"), "cpu")

    assert [contender.name for contender in contenders] == ["plain-torch"]
    assert missing.keys() == peers.PEERS_BY_NAME.keys()
    assert missing["fa3"] == "runs on an NVIDIA GPU only"
    assert peers.PEERS_BY_NAME["vllm-triton"].how_to_get in missing["vllm-triton"]
    assert unasked == {}


@pytest.mark.parametrize(
    "text",
    ["32x4096x32/8/128/p16", "64x8192x32/8/128/p16/ragged", "256x1100x16/8/128/p1/mix", "8x8192x71/1/64/p24/q512"],
)
def test_a_case_is_what_its_text_says(text: str) -> None:
    case = parse(text, "float16")

    assert case.text == text
    assert isinstance(case, Case)
    assert case.kind == ("prefill" if "/q" in text else "decode")
    assert case.dtype == "float16"
    assert len(case.lengths()) == int(text.partition("x")[0])
    assert max(case.lengths()) <= case.context
    assert case.num_blocks * case.page >= sum(case.lengths())


def test_every_case_of_the_suites_has_a_text_that_names_it() -> None:
    reads = [*suites.UNIFORM, *suites.SINGLE, *suites.RAGGED, *suites.PAGES, *suites.SHAPES, *suites.SHORT]
    for case in [*reads, *suites.PREFILL, *suites.STORE]:
        assert parse(case.text) == case
    for device in ("cpu", "cuda"):
        found = suites.default_cases(suites.SUITES, device, "float32", quick=True)
        assert [case.kind for case in found] == ["decode", "prefill", "store"]


def test_bytes_of_a_store_count_both_directions() -> None:
    case = StoreCase(8192, 8, 128, 256)

    assert case.bytes_moved == 8192 * 8 * 128 * 2 * 2 * 2
    assert case.num_blocks * case.page == 2 * 8192
    with pytest.raises(BadCase, match="names no case"):
        parse("8192x8/128")


def _row(case: str, target: str, us: float, of_ceiling: float = 0.9) -> Row:
    state: State = "timed"
    return Row(
        case=case, kind="decode", dtype="bfloat16", target=target, state=state, us=us, tb_s=500 / us, of_ceiling=of_ceiling,
        how="graph",
    )  # fmt: skip


def _result(*more: Row) -> Result:
    rows = [
        *with_ratios([_row("a", "ours", 100.0), _row("a", "theirs", 125.0)], "ours"),
        *with_ratios([_row("b", "ours", 100.0), _row("b", "theirs", 80.0)], "ours"),
        *more,
    ]
    return Result(
        date="2026-11-29", device="cuda", device_name="a GPU", versions={}, target="ours", against=("theirs",),
        ceilings=Ceilings(read_tb_s=5.5), rows=tuple(rows), compared=tuple(compare(rows, "ours")), missing={}, left_out={},
    )  # fmt: skip


def test_geometric_mean_of_the_ratios() -> None:
    [compared] = _result().compared

    assert compared.geometric_mean == pytest.approx(1.0)
    assert (compared.least, compared.most, compared.num_cases) == (0.8, 1.25, 2)


def test_the_plot_has_every_point_and_the_ceiling() -> None:
    figure = plot.figure(_result())
    [axes] = figure.axes
    lines = {line.get_label(): list(line.get_ydata()) for line in axes.lines}

    assert lines == {"ours": [5.0, 5.0], "theirs": [4.0, 6.25], "read ceiling 5.5": [5.5, 5.5]}
    assert [label.get_text() for label in axes.get_xticklabels()] == ["a", "b"]
    assert "TB/s" in axes.get_title()


def test_nothing_in_the_plot_hides_its_title() -> None:
    figure = plot.figure(_result())
    figure.canvas.draw()  # type: ignore[attr-defined, unused-ignore]
    [legend] = figure.legends

    assert not figure._suptitle.get_window_extent().overlaps(legend.get_window_extent())


def test_a_rate_above_the_ceiling_is_explained() -> None:
    assert "still in the cache" not in in_words(_result())
    assert "still in the cache" in in_words(_result(_row("c", "ours", 64.0, of_ceiling=1.42)))


def test_a_busy_cpu_is_said() -> None:
    assert "this machine is busy" not in in_words(msgspec.structs.replace(_result(), load=0.2))
    assert "this machine is busy (load 2.5" in in_words(msgspec.structs.replace(_result(), load=2.5))
