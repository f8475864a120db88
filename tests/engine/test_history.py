"""Histories: recorded, written in C, cut, contradictory; judged like the engine itself."""

from __future__ import annotations

import io
import json
import random
import re
import shutil
import subprocess
import tracemalloc
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest
from typer.testing import CliRunner

from fuzz.cli import app
from fuzz.faults import all_faults
from properties.drive import LEFT_OPEN, drive
from properties.engine.history import HistoryEvent, Recorder, json_schema
from properties.engine.protocol import offered
from properties.engine.replay import judge_history
from properties.engine.spec import SPEC
from properties.targets.engine_ours import OurEngine

DOCS = Path(__file__).parents[2] / "docs"


def recorded(target: Callable[[], OurEngine], seed: int) -> list[bytes]:
    """The history of one random trace."""
    file = io.BytesIO()
    drive(SPEC, lambda: Recorder(target(), file), seed)
    return file.getvalue().splitlines(keepends=True)


def test_our_engine_is_clean_on_record_too() -> None:
    for seed in range(60):
        verdict = judge_history(recorded(OurEngine, seed))

        assert verdict.error is None
        assert verdict.cut is None or seed % LEFT_OPEN == LEFT_OPEN - 1
        assert not verdict.breaches
        assert verdict.num_steps > 0


def test_a_recorder_offers_what_its_target_offers() -> None:
    class Plain(OurEngine):
        cancel = fork = None  # type: ignore[assignment]

    assert offered(Recorder(OurEngine(), io.BytesIO())) == offered(OurEngine()) | {"close"}
    assert offered(Recorder(Plain(), io.BytesIO())) == offered(Plain()) | {"close"}
    verdict = judge_history(recorded(Plain, 5))
    assert (verdict.error, verdict.cut, verdict.breaches) == (None, None, [])


SEEN_ON_RECORD = (
    "decode-slot-one-too-far",
    "chunk-reads-to-the-end",
    "stale-table-row",
    "padding-writes-the-last-slot",
    "tokens-scheduled-before-the-hit-is-known",
    "preempted-requests-are-prefilled-from-their-prompt",
    "a-full-hit-computes-nothing",
    "swap-ins-run-before-swap-outs",
    "the-hash-leaves-out-the-parent",
    "blocks-are-published-before-they-are-computed",
    "the-window-ends-one-token-too-late",
    "forks-write-into-one-block",
    "the-copy-of-a-fork-is-lost",
)


@pytest.mark.parametrize("id", SEEN_ON_RECORD)
def test_a_fault_is_found_on_record(id: str) -> None:
    fault = all_faults()[id]
    for seed in range(600):
        verdict = judge_history(recorded(fault.make, seed))
        found = {breach.property: breach.message for breach, _ in verdict.breaches}
        if fault.catches in found:
            assert found[fault.catches]
            return

    pytest.fail(f"{id}: {fault.catches} was not found on record")


def test_every_line_fits_the_schema() -> None:
    schema = json.loads((DOCS / "history.schema.json").read_text())
    validator = jsonschema.Draft202012Validator(schema)
    for line in recorded(OurEngine, 3):
        validator.validate(json.loads(line))
    with pytest.raises(jsonschema.ValidationError):
        validator.validate({"event": "step", "rows": []})


def test_the_schema_in_the_docs_is_the_present_one() -> None:
    assert json.loads((DOCS / "history.schema.json").read_text()) == json_schema()


def test_the_docs_name_every_event() -> None:
    text = (DOCS / "history.md").read_text()
    for event in HistoryEvent.__args__:
        assert f"`{event.__struct_config__.tag}`" in text


# ---- the file is wrong, not the engine


OPEN = (
    b'{"event":"open","format":"pagefault history","version":1,"block_size":2,"num_blocks":4,'
    b'"max_tokens_per_step":8,"max_rows":2}\n'
)
SUBMIT = b'{"event":"submit","name":"A","tokens":[1,2,3],"max_new_tokens":2}\n'
STEP = b'{"event":"step","step":1,"rows":[["A",0,3,true]],"tables":{"A":[3,1]}}\n'
FINISH = b'{"event":"finish","step":1,"tokens":[5]}\n'
STEP_2 = b'{"event":"step","step":2,"rows":[["A",3,4,true]]}\n'
FINISH_2 = b'{"event":"finish","step":2,"tokens":[6]}\n'
CLOSE = b'{"event":"close"}\n'
WHOLE = [OPEN, SUBMIT, STEP, FINISH, STEP_2, FINISH_2, CLOSE]


def test_a_whole_history_is_clean() -> None:
    verdict = judge_history(WHOLE)

    assert (verdict.error, verdict.cut, verdict.breaches, verdict.live) == (None, None, [], [])
    assert (verdict.num_requests, verdict.num_steps) == (1, 2)


@pytest.mark.parametrize(
    ("lines", "line", "says"),
    [
        ([], 1, "empty"),
        ([SUBMIT], 1, "first event is not open"),
        ([b"[1]\n"], 1, "not an event"),
        ([b"nonsense\n", SUBMIT], 1, "not JSON"),
        ([b'{"event":' + b"[" * 100_000 + b"\n"], 1, "line 1"),
        ([b'{"event":"open","format":"\xff"}\n'], 1, "not JSON"),
        ([OPEN.replace(b'"num_blocks":4', b'"num_blocks":4000000000')], 1, "8000000000 slots"),
        ([OPEN, OPEN], 2, "second open"),
        ([OPEN.replace(b'"version":1', b'"version":9')], 1, "version is 9"),
        ([OPEN.replace(b'"num_blocks":4', b'"num_blocks":0')], 1, "num_blocks is 0"),
        ([OPEN, SUBMIT, SUBMIT], 3, "second request A"),
        ([OPEN, STEP], 2, "never submitted"),
        ([OPEN, SUBMIT, STEP, FINISH, STEP], 5, "comes after step 1"),
        ([OPEN, SUBMIT, FINISH], 3, "not launched"),
        ([OPEN, SUBMIT, STEP, FINISH, FINISH], 5, "finished before"),
        ([OPEN, SUBMIT, STEP, b'{"event":"finish","step":1,"tokens":[5,6]}\n'], 3, "samples 1 token"),
        ([OPEN, SUBMIT, STEP.replace(b"0,3", b"3,0"), FINISH], 3, "backward"),
        ([OPEN, SUBMIT, b'{"event":"cancel","name":"B"}\n'], 3, "not live"),
        ([OPEN, SUBMIT, b'{"event":"step","step":1,"rows":[],"tables":{"B":[1]}}\n'], 3, "not live"),
        ([OPEN, b'{"event":"submit","name":"A","tokens":[],"max_new_tokens":1}\n'], 2, "0 tokens"),
        ([*WHOLE, SUBMIT], 8, "behind close"),
        ([b"\x00" * 5000], 1, "only line is no whole JSON object"),
        ([b"\x1f\x8b\x08\x00rest\n"], 1, "gzip"),
        ([b"\xef\xbb\xbf" + OPEN], 1, "byte order mark"),
        ([b"\xff\xfe{\x00\n"], 1, "UTF-16"),
        ([OPEN.replace(b'"max_rows":2', b'"max_rows":2,"max_idle_steps":-1')], 1, "max_idle_steps is -1"),
        ([OPEN.replace(b'"max_rows":2', b'"max_rows":2,"look_ahead":-1')], 1, "look_ahead is -1"),
        ([OPEN.replace(b'"max_rows":2', b'"max_rows":2,"reserved_blocks":[9]')], 1, "block 9 is reserved"),
        ([OPEN.replace(b'"max_rows":2', b'"max_rows":2,"reserved_blocks":[0,1,2,3]')], 1, "all 4 blocks are reserved"),
        ([OPEN.replace(b'"max_rows":2', b'"max_rows":%d' % 2**80)], 1, "9223372036854775807"),
        ([OPEN, SUBMIT.replace(b"[1,2,3]", b"[1,%d]" % 2**63)], 2, "9223372036854775807 - at `$.tokens[1]`"),
        ([OPEN, SUBMIT.replace(b"[1,2,3]", b"[1,NaN]")], 2, "not JSON"),
        ([OPEN, SUBMIT.replace(b"[1,2,3]", b"[1,2.5]")], 2, "Expected `int`, got `float`"),
        ([OPEN, SUBMIT.replace(b"[1,2,3]", b"[1,-2]")], 2, "the token -2"),
        ([OPEN, SUBMIT, STEP.replace(b"[3,1]", b"[%d,1]" % 2**64), FINISH], 3, "9223372036854775807"),
        ([OPEN, SUBMIT, STEP.replace(b"true]]", b"1]]"), FINISH], 3, "Expected `bool`"),
        ([OPEN, SUBMIT, STEP, FINISH.replace(b"[5]", b"[]"), STEP_2, FINISH_2, CLOSE], 3, "its finish has 0"),
        ([OPEN, SUBMIT, STEP, FINISH.replace(b"[5]", b"[-5]")], 3, "the token -5"),
        ([OPEN, SUBMIT, STEP, FINISH.replace(b"}", b',"ended":["A","A"]}')], 4, "ends twice"),
        (
            [OPEN, SUBMIT, STEP.replace(b'"tables"', b'"slots":{"A":[6,7,2]},"tables"'), FINISH],
            3,
            "both a table and slots",
        ),
    ],
)
def test_a_wrong_history_is_not_a_fault(lines: list[bytes], line: int, says: str) -> None:
    verdict = judge_history(lines)

    assert verdict.error is not None
    assert verdict.error.line == line
    assert says in str(verdict.error)
    assert not verdict.breaches


def test_a_line_or_a_prompt_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("properties.engine.events.MOST_LINE", 500)
    monkeypatch.setattr("properties.engine.replay.MOST_PROMPT", 100)
    long_line = judge_history([OPEN, SUBMIT.replace(b"[1,2,3]", b"[" + b"1," * 500 + b"1]")])
    long_prompt = judge_history([OPEN, SUBMIT.replace(b"[1,2,3]", b"[" + b"1," * 120 + b"1]")])

    assert "line 2: it is longer than" in str(long_line.error)
    assert "121 tokens. At most 100" in str(long_prompt.error)


def test_a_refused_request_may_be_of_any_size() -> None:
    refused = SUBMIT.replace(b'"max_new_tokens":2', b'"max_new_tokens":%d,"refused":"too long"' % 10**15)
    verdict = judge_history([OPEN, refused, *WHOLE[1:]])

    assert (verdict.error, verdict.breaches) == (None, [])


@pytest.mark.parametrize(
    ("content", "code", "says"),
    [
        (b"".join(WHOLE), 0, "no fault, "),
        (b"".join(WHOLE[:-1]), 2, "CUT"),
        (b"".join([OPEN, CLOSE]), 2, "nothing was shown"),
        (OPEN + b"x" * 3000, 2, "HISTORY"),
        (b"".join([OPEN, SUBMIT, STEP.replace(b"[3,1]", b"[9,1]"), FINISH, CLOSE]), 1, "FAULT  ALLOC-1"),
        (b"".join([OPEN, SUBMIT, STEP.replace(b"[3,1]", b"[9,1]"), FINISH]), 1, "CUT"),
    ],
)
def test_the_command_tells_a_fault_from_a_bad_file(
    content: bytes, code: int, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("properties.engine.events.MOST_LINE", 2000)
    monkeypatch.setattr("fuzz.judge.MOST_LINE", 2000)
    path = tmp_path / "history.jsonl"
    path.write_bytes(content)
    result = CliRunner().invoke(app, ["judge", str(path)], standalone_mode=False)

    assert result.exception is None
    assert result.return_value == code
    assert says in result.output
    assert ("no fault" in result.output) == (code != 1)


def test_a_history_cut_anywhere_is_cut_and_no_fault() -> None:
    whole = b"".join(WHOLE)
    for kept in range(len(whole) - 1):
        verdict = judge_history(whole[:kept].splitlines(keepends=True))

        assert not verdict.breaches
        assert (verdict.error is None) == (kept >= len(OPEN) - 1), f"cut after {kept} bytes"
        assert verdict.error or verdict.cut, f"cut after {kept} bytes"


def test_whatever_stands_in_a_history_it_is_judged_or_refused() -> None:
    """Lines left out, doubled, exchanged, numbers changed: never anything but a verdict."""
    draw = random.Random(1)
    kinds = Counter[str]()
    histories = [recorded(OurEngine, seed) for seed in range(12)]
    for number in range(400):
        lines = list(histories[number % 12])
        for _ in range(draw.randint(1, 3)):
            index = draw.randrange(len(lines))
            how = draw.randrange(4)
            if how == 0:
                del lines[index]
            elif how == 1:
                lines.insert(draw.randrange(len(lines)), lines[index])
            elif how == 2:
                other = draw.randrange(len(lines))
                lines[index], lines[other] = lines[other], lines[index]
            else:
                numbers = list(re.finditer(rb"-?\d+", lines[index]))
                if numbers:
                    found = draw.choice(numbers)
                    value = str(draw.choice((-1, 0, 1, 7, 10**6, 2**70))).encode()
                    lines[index] = lines[index][: found.start()] + value + lines[index][found.end() :]
            if len(lines) < 2:
                break
        verdict = judge_history(lines)
        kinds["error" if verdict.error else "fault" if verdict.breaches else "cut" if verdict.cut else "clean"] += 1

    assert all(kinds[kind] for kind in ("error", "fault", "cut", "clean")), kinds


def test_a_fault_stays_a_fault_in_a_cut_history() -> None:
    foreign = STEP.replace(b"[3,1]", b"[9,1]")
    verdict = judge_history([OPEN, SUBMIT, foreign, FINISH])

    breach, line = verdict.breaches[0]
    assert (breach.property, line) == ("ALLOC-1", 3)
    assert "slot 18" in breach.message
    assert verdict.cut is not None


# ---- another language, and length


@pytest.fixture(scope="module")
def engine_in_c(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler: install cc or gcc to test the writer in C")
    binary = tmp_path_factory.mktemp("engine") / "engine"
    subprocess.run([compiler, "-O2", str(DOCS / "examples" / "engine.c"), "-o", str(binary)], check=True)
    return binary


def written(binary: Path, num_requests: int, fault: int) -> list[bytes]:
    run = subprocess.run([str(binary), str(num_requests), str(fault)], check=True, capture_output=True)
    return run.stdout.splitlines(keepends=True)


def test_an_engine_in_c_is_judged(engine_in_c: Path) -> None:
    clean, faulty = (judge_history(written(engine_in_c, 100, fault)) for fault in (0, 1))

    assert (clean.error, clean.cut, clean.breaches) == (None, None, [])
    assert clean.num_requests == 100
    assert faulty.error is None
    assert {"EVICT-1", "CONTENT-1"} & {breach.property for breach, _ in faulty.breaches}
    assert any("r20" in breach.message for breach, _ in faulty.breaches)


def test_memory_is_flat_in_the_number_of_finished_requests(engine_in_c: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("properties.engine.replay.MOST_RUNS", 2_000)
    monkeypatch.setattr("properties.engine.replay.TIDY_EVERY", 256)
    monkeypatch.setattr("properties.engine.bench.MOST_ENDED", 50)
    peaks = []
    for num_requests in (300, 900):
        lines = written(engine_in_c, num_requests, 0)
        tracemalloc.start()
        assert not judge_history(lines).breaches
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()

    assert peaks[1] < 1.25 * peaks[0]


# ---- a sliding window

WINDOWED = OPEN.replace(b'"max_rows":2', b'"max_rows":2,"window":2')
RELEASES = STEP_2.replace(b'"rows"', b'"tables":{"A":[-1,1]},"rows"')
KEEPS = b'{"event":"step","step":2,"rows":[["A",3,4,true]],"tables":{"A":[3,-1]}}\n'


def test_what_a_window_has_passed_may_be_released() -> None:
    verdict = judge_history([WINDOWED, SUBMIT, STEP, FINISH, RELEASES, FINISH_2, CLOSE])

    assert (verdict.error, verdict.breaches) == (None, [])
    assert verdict.judged["WINDOW-1"] == 2


@pytest.mark.parametrize(
    ("opened", "step", "clause", "says"),
    [
        (WINDOWED, KEEPS, "WINDOW-1", "with a window of 2 the query at 3 reads from position 2 on"),
        (WINDOWED.replace(b'"window":2', b'"window":3'), RELEASES, "WINDOW-1", "reads from position 1 on"),
        (WINDOWED.replace(b'"window":2', b'"window":2,"num_sinks":1'), RELEASES, "WINDOW-1", "one of 1 sinks"),
        (OPEN, RELEASES, "ALLOC-2", "position 0 has no slot"),
    ],
)
def test_what_a_window_still_reads_must_stay(opened: bytes, step: bytes, clause: str, says: str) -> None:
    verdict = judge_history([opened, SUBMIT, STEP, FINISH, step, FINISH_2, CLOSE])
    found = {breach.property: breach.message for breach, _ in verdict.breaches}

    assert found.keys() == {clause}
    assert says in found[clause]


# ---- a fork

FORK = b'{"event":"fork","name":"A","child":"B","max_new_tokens":1}\n'
BOTH = (
    b'{"event":"step","step":2,"rows":[["A",3,4,true],["B",3,4,true]],"copies":[[1,2,"device","device"]],'
    b'"tables":{"A":[3,2],"B":[3,1]}}\n'
)
FINISH_BOTH = b'{"event":"finish","step":2,"tokens":[6,7]}\n'
FORKED = [OPEN, SUBMIT, STEP, FINISH, FORK, BOTH, FINISH_BOTH, CLOSE]


def test_a_fork_goes_on_from_what_its_parent_has() -> None:
    verdict = judge_history(FORKED)

    assert (verdict.error, verdict.breaches, verdict.live) == (None, [], [])
    assert verdict.num_requests == 2
    assert verdict.judged["COW-1"] == 3


def test_a_copy_that_a_fork_needs_and_does_not_get_is_found() -> None:
    lost = BOTH.replace(b'"copies":[[1,2,"device","device"]],', b'"slots":{},')
    verdict = judge_history([OPEN, SUBMIT, STEP, FINISH, FORK, lost, FINISH_BOTH, CLOSE])

    assert "CONTENT-1" in {breach.property for breach, _ in verdict.breaches}


def test_a_fork_that_writes_into_the_shared_block_is_found() -> None:
    """The two write the same value first, which harms nobody; the token after that parts them."""
    opened = OPEN.replace(b'"block_size":2', b'"block_size":8')
    submit, fork = (line.replace(b'"max_new_tokens":', b'"max_new_tokens":2') for line in (SUBMIT, FORK))
    prompt = STEP.replace(b"[3,1]", b"[3]")
    same = b'{"event":"step","step":2,"rows":[["A",3,4,true],["B",3,4,true]],"tables":{"B":[3]}}\n'
    parted = b'{"event":"step","step":3,"rows":[["A",4,5,true],["B",4,5,true]]}\n'
    last = b'{"event":"finish","step":3,"tokens":[8,9]}\n'
    verdict = judge_history([opened, submit, prompt, FINISH, fork, same, FINISH_BOTH, parted, last])
    breach, line = verdict.breaches[0]

    assert (breach.property, line) == ("COW-1", 8)
    assert "which request B holds too" in breach.message


@pytest.mark.parametrize(
    ("lines", "line", "says"),
    [
        ([OPEN, FORK], 2, "is forked, but it is not live"),
        ([OPEN, SUBMIT, FORK.replace(b'"B"', b'"A"')], 3, "a second request A"),
        ([OPEN, SUBMIT, FORK.replace(b":1}", b":0}")], 3, "max_new_tokens is 0"),
        ([OPEN, SUBMIT, STEP, FORK, FINISH], 4, "while a step of it is in flight"),
    ],
)
def test_a_fork_that_cannot_be_is_no_fault(lines: list[bytes], line: int, says: str) -> None:
    verdict = judge_history(lines)

    assert verdict.error is not None
    assert verdict.error.line == line
    assert says in str(verdict.error)
    assert not verdict.breaches
