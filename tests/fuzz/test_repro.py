"""`repro`, `minimize` and `show`: what a case file may be, and what is said about one that is not."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest

from fuzz.as_issue import issue_of
from properties.blocks.operations import Admit, Append, Geometry
from properties.case import fingerprint, read
from properties.contract import AdapterError, UsageError
from properties.judging import CORPUS
from properties.stand_alone import check_trace
from properties.wording import HELD_ALONE
from tests.fuzz.helpers import BAD, Finished, bad, environment, pagefault

Edit = Callable[[dict[str, Any]], None]


def _edited(case: Path, to: Path, edit: Edit) -> Path:
    fields = json.loads(case.read_bytes())
    edit(fields)
    to.write_text(json.dumps(fields, indent=7, sort_keys=True))
    return to


def _steps(case: Path) -> int:
    """A campaign may find the fault in one of two shortest forms; either way its last step breaks the clause."""
    return len(read(case).operations)


def _fault(case: Path) -> str:
    """Which block leaks depends on the seeds, and these on the path of this checkout."""
    fault = read(case).message.partition(".")[0]
    assert fault in [f"block {block} has a stored reference count of 1, but is held by 0 sequences" for block in (0, 1)]
    return fault


def test_a_case_that_was_reformatted_by_hand_still_fails(leaky_case: Path, tmp_path: Path) -> None:
    path = _edited(leaky_case, tmp_path / "c.json", lambda fields: None)
    done = pagefault("repro", path, cwd=tmp_path)

    assert done.code == 1
    assert done.out.startswith(f"FAILED  {path}\n")
    assert f"REF-1 at step {_steps(leaky_case)}: block" in done.out
    assert re.search(rf"its steps: .*show {re.escape(str(path))}$", done.out, re.MULTILINE)


def test_a_case_on_a_mended_target_is_fixed(leaky_case: Path, tmp_path: Path) -> None:
    path = _edited(leaky_case, tmp_path / "c.json", lambda fields: fields.update(target=bad("Sound")))
    done = pagefault("repro", path, cwd=tmp_path)

    assert done.code == 0
    assert done.out == f"FIXED  {path}\n    {bad('Sound')}: REF-1 holds\n"


def test_another_clause_is_failed_changed(leaky_case: Path, tmp_path: Path) -> None:
    path = _edited(leaky_case, tmp_path / "c.json", lambda fields: fields.update(property="HASH-1"))
    done = pagefault("repro", path, "--json", cwd=tmp_path)

    assert done.code == 1
    assert done.json[0]["status"] == "FAILED, changed"
    assert f"HASH-1 holds, but REF-1 at step {_steps(leaky_case)}" in done.json[0]["detail"]


BROKEN: dict[str, tuple[Edit, str]] = {
    "newer": (lambda f: f.update(version=99), "has version 99; this pagefault reads up to 1: upgrade pagefault"),
    "format": (lambda f: f.update(format="a poem"), "has format 'a poem'"),
    "level": (lambda f: f.update(level="moon"), "has level 'moon'"),
    "property": (lambda f: f.update(property="HASH-99"), "no property 'HASH-99'; near it: HASH-"),
    "field": (lambda f: f.update(colour="red"), "unknown field `colour`"),
    "operation": (lambda f: f["operations"].append({"op": "explode"}), "is not a valid case"),
    "negative": (lambda f: f["geometry"].update(num_blocks=-1), "num_blocks"),
    "no target": (lambda f: f.update(target="oours"), "no target 'oours'; near it: ours"),
    "not here": (lambda f: f.update(target="nowhere.py:T"), "no such file"),
    "nobody": (
        lambda f: f["operations"].insert(0, {"op": "free", "name": "Z"}),
        "step 1 (free) has no meaning: no live sequence Z",
    ),
    "twice": (
        lambda f: f["operations"].insert(1, f["operations"][0]),
        "step 2 (admit) has no meaning: sequence A exists already",
    ),
    "truth": (
        lambda f: f["operations"].insert(0, {"op": "admit", "name": "Q", "tokens": []}),
        "step 1 (admit) has no meaning: no tokens",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_file_that_is_no_case_is_an_error_that_says_why(name: str, leaky_case: Path, tmp_path: Path) -> None:
    edit, words = BROKEN[name]

    def on_a_sound_target(fields: dict[str, Any]) -> None:
        fields["target"] = bad("Sound")
        edit(fields)

    path = _edited(leaky_case, tmp_path / "c.json", on_a_sound_target)
    done = pagefault("repro", path, "--json", cwd=tmp_path)

    assert done.code == 2
    assert done.json[0]["status"] == "ERROR"
    assert words in done.json[0]["detail"]


def test_cut_anywhere_it_is_an_error(leaky_case: Path, tmp_path: Path) -> None:
    whole = leaky_case.read_bytes()
    paths = []
    for cut in (0, 1, 40, len(whole) // 2, len(whole) - 5):
        paths.append(tmp_path / f"{cut}.json")
        paths[-1].write_bytes(whole[:cut])
    done = pagefault("repro", *paths, "--json", cwd=tmp_path)

    assert done.code == 2
    assert {result["status"] for result in done.json} == {"ERROR"}
    assert all("Was it cut off?" in result["detail"] for result in done.json)


def test_the_worst_of_several_cases_wins(leaky_case: Path, tmp_path: Path) -> None:
    fixed = _edited(leaky_case, tmp_path / "fixed.json", lambda fields: fields.update(target=bad("Sound")))
    done = pagefault("repro", fixed, leaky_case, "none.json", "--json", cwd=tmp_path)

    assert [result["status"] for result in done.json] == ["FIXED", "FAILED", "ERROR"]
    assert done.code == 2


def test_a_trace_that_a_mended_target_refuses_is_no_mistake_of_the_file(tmp_path: Path) -> None:
    operations = [
        {"op": "admit", "name": "A", "tokens": [0, 0, 0, 0]},
        {"op": "append", "name": "A", "tokens": [0]},
    ]
    case = {
        "format": "pagefault case",
        "version": 1,
        "level": "blocks",
        "target": "ours",
        "property": "REF-1",
        "message": "",
    }
    path = tmp_path / "c.json"
    path.write_text(json.dumps({**case, "geometry": {"block_size": 1, "num_blocks": 3}, "operations": operations}))
    done = pagefault("repro", path, "--json", cwd=tmp_path)

    assert done.json[0]["status"] == "FIXED", "A is refused, so that the append has no meaning: the target's doing"


def test_minimize_writes_a_smaller_case_beside_it(leaky_case: Path, tmp_path: Path) -> None:
    def padded(fields: dict[str, Any]) -> None:
        extra = [{"op": "admit", "name": f"X{n}", "tokens": [1, n, 2]} for n in range(3)]
        fields["operations"] = [*extra, *fields["operations"]]
        fields["geometry"].update(num_blocks=20)

    path = _edited(leaky_case, tmp_path / "big.json", padded)
    done = pagefault("minimize", path, "--json", cwd=tmp_path)
    smaller = read(tmp_path / "big.min.json")

    assert done.code == 0, done.err
    steps = _steps(leaky_case)
    assert (done.json["steps_before"], done.json["steps"]) == (steps + 3, steps)
    assert len(smaller.operations) == steps
    assert done.json["fingerprint"] == fingerprint(smaller)
    assert len(read(path).operations) == steps + 3, "the case itself is left as it is"


def test_minimize_refuses_a_case_that_does_not_fail(leaky_case: Path, tmp_path: Path) -> None:
    path = _edited(leaky_case, tmp_path / "c.json", lambda fields: fields.update(target="ours"))
    done = pagefault("minimize", path, cwd=tmp_path)

    assert done.code == 2
    assert "does not break REF-1 on ours here" in done.err
    assert not (tmp_path / "c.min.json").exists()


def test_show_says_it_all_without_running_anything(leaky_case: Path, tmp_path: Path) -> None:
    path = _edited(leaky_case, tmp_path / "c.json", lambda fields: fields.update(target="gone.py:Target"))
    done = pagefault("show", path, cwd=tmp_path)

    assert done.code == 0
    for words in (
        "REF-1: a stored reference count equals the holders",
        "does not hold for gone.py:Target (block size 1, num blocks",
        "1  admit A with token 0",
        "History of device block",
        f"replay: pagefault repro {path}",
        "fingerprint: ",
    ):
        assert words in done.out


def test_as_test_is_a_file_that_fails_while_the_fault_is_there(
    leaky: tuple[Path, Finished], leaky_case: Path, tmp_path: Path
) -> None:
    fixed = _edited(leaky_case, tmp_path / "fixed.json", lambda fields: fields.update(target=bad("Sound")))
    for name, case in (("test_leaky.py", leaky_case), ("test_sound.py", fixed)):
        (tmp_path / name).write_text(pagefault("show", case, "--as-test", cwd=tmp_path).out)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", tmp_path, tmp_path],
        cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert "1 failed, 1 passed" in done.stdout, done.stdout
    assert _fault(leaky_case) in done.stdout


def test_as_test_needs_no_more_than_its_own_file(leaky_case: Path, tmp_path: Path) -> None:
    """The case names its adapter by a relative path, the test runs elsewhere, in a fresh process, by public functions."""
    project, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
    findings = project / "pagefault-out" / "run" / "findings"
    for folder in (findings, elsewhere):
        folder.mkdir(parents=True)
    shutil.copy(BAD, project / "mine.py")
    case = _edited(leaky_case, findings / "c.json", lambda fields: fields.update(target="mine.py:Leaky"))
    done = pagefault("show", case, "--as-test", cwd=elsewhere)
    (elsewhere / "test_it.py").write_text(done.out)
    imports = [line.strip() for line in done.out.splitlines() if line.strip().startswith(("from ", "import "))]
    line = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", elsewhere, elsewhere]
    ran = subprocess.run(line, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False)

    assert done.err == ""
    assert f"package.module:Class\nTARGET = '{project / 'mine.py'}:Leaky'\n" in done.out
    assert imports[-1] == "from properties.stand_alone import check_trace"
    assert len(imports) == 2, imports
    assert "1 failed" in ran.stdout, ran.stdout
    assert f"REF_1: {_fault(leaky_case)}" in ran.stdout, ran.stdout
    again = pagefault("repro", case, "--json", cwd=elsewhere)
    assert (again.code, again.json[0]["status"], again.json[0]["target"]) == (1, "FAILED", "mine.py:Leaky")


def test_as_test_says_what_it_could_not_find(leaky_case: Path, tmp_path: Path) -> None:
    path = _edited(leaky_case, tmp_path / "c.json", lambda fields: fields.update(target="gone.py:Leaky"))
    done = pagefault("show", path, "--as-test", cwd=tmp_path)

    assert done.code == 0
    assert "gone.py was not found from here: put its path into TARGET" in done.err


def test_a_stand_alone_trace_says_what_is_not_the_fault() -> None:
    geometry = Geometry(block_size=1, num_blocks=1)
    trace = [Admit("A", (0, 0)), Append("A", (0,))]
    with pytest.raises(UsageError, match="1 of 2 steps have no meaning on ours any more: it behaves otherwise now"):
        check_trace("REF-1", target="ours", level="blocks", geometry=geometry, operations=trace)
    with pytest.raises(UsageError, match="target ours is of level blocks, the trace of level engine"):
        check_trace("REF-1", target="ours", level="engine", geometry=geometry, operations=trace)
    with pytest.raises(AdapterError, match="slots"):
        check_trace("REF-1", target=bad("Lacks"), level="blocks", geometry=geometry, operations=trace)


def test_minimize_says_that_a_case_is_as_small_as_can_be(leaky_case: Path, tmp_path: Path) -> None:
    path = Path(shutil.copy(leaky_case, tmp_path / "c.json"))
    before = path.read_bytes()
    done = pagefault("minimize", path, cwd=tmp_path)

    assert done.code == 0, done.err
    words = f"it is as small as can be found: {_steps(leaky_case)} steps with "
    assert words in done.out
    assert f"Nothing was written; the case is {path}" in done.out
    assert [file.name for file in tmp_path.iterdir()] == ["c.json"]
    assert path.read_bytes() == before


def test_a_case_can_be_aimed_at_another_target(leaky_case: Path, tmp_path: Path) -> None:
    """Its target may have moved, or have another name by now."""
    path = _edited(leaky_case, tmp_path / "c.json", lambda fields: fields.update(target="gone.py:Target"))
    gone = pagefault("minimize", path, cwd=tmp_path)
    smaller = pagefault("minimize", path, "-t", bad("Leaky"), "--json", cwd=tmp_path)
    shown = pagefault("show", path, "-t", bad("Leaky"), "--json", cwd=tmp_path)

    assert gone.code == 2
    assert "no such file" in gone.err
    assert smaller.code == 0, smaller.err
    assert smaller.json["steps"] == _steps(leaky_case)
    assert shown.json["target"] == bad("Leaky")


@pytest.mark.parametrize("command", ["repro", "minimize", "show"])
def test_a_target_of_another_level_is_no_finding(command: str, leaky_case: Path, tmp_path: Path) -> None:
    """Once it was: the process that judged it failed, which looked like a crash of the target."""
    case = Path(shutil.copy(leaky_case, tmp_path / "c.json"))
    done = pagefault(command, case, "-t", "ours-engine", cwd=tmp_path)

    assert done.code == 2
    words = (
        "the case is of level blocks, and ours-engine is a target of level engine: name a blocks target with --target"
    )
    assert words in done.out + done.err


def test_a_class_that_was_renamed_is_named(leaky_case: Path, tmp_path: Path) -> None:
    path = _edited(leaky_case, tmp_path / "c.json", lambda fields: fields.update(target=bad("Leakyy")))
    done = pagefault("repro", path, cwd=tmp_path)

    assert done.code == 2
    assert f"{BAD} has no 'Leakyy'; near it: Leaky" in done.out


def test_as_issue_of_a_stranger_calls_its_adapter(leaky_case: Path, tmp_path: Path) -> None:
    """Plain calls that run from anywhere, with what was expected and seen, and the versions."""
    report = pagefault("show", leaky_case, "--as-issue", cwd=tmp_path)
    script = report.out.split("```python\n")[1].split("```")[0]
    ran = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False
    )

    assert report.code == 0
    assert "Expected: a stored reference count equals the holders derived from the tables" in report.out
    assert f"Seen: {_fault(leaky_case)}" in report.out
    assert f"plain calls of the adapter {bad('Leaky')}" in report.out
    assert "Versions: python 3." in report.out
    assert (ran.returncode, ran.stderr) == (0, "")
    assert f"{_steps(leaky_case)}  free" in ran.stdout
    assert "print('    cached tokens:', target.admit('A', [0]))" in script


@pytest.mark.parametrize(
    "name",
    [
        "ALLOC-5-a-hidden-leak",
        "COW-1-no-copy-on-write",
        "SWAP-1-swaps-in-backwards",
        "BATCH-4-stale-table-row",
        "LIVE-1-preempted-requests-are-lost",
        "PREEMPT-1-preempted-requests-are-prefilled-from-their-prompt",
    ],
)
def test_as_issue_runs_for_every_operation(name: str, tmp_path: Path) -> None:
    """The shipped traces, on our own targets, which raise nothing on them."""
    text = issue_of(read(CORPUS / f"{name}.json"))
    script = text.split("```python\n")[1].split("```")[0]
    ran = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False
    )

    assert (ran.returncode, ran.stderr) == (0, "")
    assert "slots of A: [" in ran.stdout


def test_as_issue_of_tensors_brings_the_test_along() -> None:
    text = issue_of(read(CORPUS / "READ-1-cache-identity-table.json"))

    assert "check_trace('READ-1', target=TARGET, level='cache'" in text


def test_as_issue_of_an_edited_case_says_so(tmp_path: Path) -> None:
    head = {"format": "pagefault case", "version": 1, "level": "blocks", "target": "mini-vllm", "property": "REF-1"}
    operations = [{"op": "append", "name": "A", "tokens": [0]}]
    body = {"message": "", "geometry": {"block_size": 1, "num_blocks": 1}, "operations": operations}
    (tmp_path / "c.json").write_text(json.dumps({**head, **body}))
    done = pagefault("show", "c.json", "--as-issue", cwd=tmp_path)

    assert done.code == 2
    assert "a step has no meaning" in done.err


def _issue_script(case: dict[str, Any], tmp_path: Path, prelude: str = "") -> subprocess.CompletedProcess[str]:
    head = {"format": "pagefault case", "version": 1, "level": "blocks", "message": "m"}
    (tmp_path / "c.json").write_text(json.dumps({**head, **case}))
    report = pagefault("show", "c.json", "--as-issue", cwd=tmp_path)
    assert report.code == 0, report.err
    script = report.out.split("```python\n")[1].split("```")[0]
    assert "pagefault" not in report.out
    return subprocess.run(
        [sys.executable, "-c", prelude + script],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env=environment(),
    )


def test_as_issue_reproduces_the_torch_fault_with_torch_alone(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="the script runs torch: pip install 'pagefault[torch]'")
    operations = [
        {"op": "admit", "name": "A", "tokens": [0, 0]},
        {"op": "preempt", "name": "A"},
        {"op": "admit", "name": "B", "tokens": [0]},
    ]
    case = {"target": "torch-flex", "property": "CONTENT-1", "geometry": {"block_size": 1, "num_blocks": 3}}
    done = _issue_script({**case, "operations": operations}, tmp_path)

    assert "batch 0 owns pages [0]; the map that attention reads has [0, 1]" in done.stdout
    assert "AssertionError: batch 0 reads pages that it does not own" in done.stderr


LOADED = """
import sys, types
from properties.targets.support import load_file, module
timing = module("tokasaurus.manager.monitoring", track_time_decorator=lambda *key: lambda function: function)
found = load_file({distribution!r}, {path!r}, {{"tokasaurus.manager.monitoring": timing}})
name = {path!r}.removesuffix(".py").replace("/", ".")
parts = name.split(".")
for end in range(1, len(parts)):
    package = types.ModuleType(".".join(parts[:end]))
    package.__path__ = []
    sys.modules[package.__name__] = package
sys.modules[name] = found
"""
"""Puts the one file that the script imports in place of its package, whose own imports want whole engines."""


@pytest.mark.parametrize(
    ("target", "path"), [("mini-vllm", "mini_vllm/block_manager.py"), ("tokasaurus", "tokasaurus/manager/allocator.py")]
)
def test_as_issue_of_small_projects_makes_their_own_calls(target: str, path: str, tmp_path: Path) -> None:
    try:
        version(target)
    except PackageNotFoundError:
        pytest.skip(f"{target} is not installed: pip install --no-deps --ignore-requires-python -r targets.txt")
    operations = [
        {"op": "admit", "name": "A", "tokens": [0, 0]},
        {"op": "append", "name": "A", "tokens": [1]},
        {"op": "preempt", "name": "A"},
        {"op": "resume", "name": "A"},
        {"op": "drain"},
    ]
    case = {"target": target, "property": "CONTENT-1", "geometry": {"block_size": 2, "num_blocks": 4}}
    prelude = LOADED.format(distribution=target, path=path)
    done = _issue_script({**case, "operations": operations}, tmp_path, prelude)

    assert done.returncode == 0, done.stderr
    assert "A" in done.stdout


def test_a_case_that_was_found_by_chance_is_not_proven_fixed(leaky_case: Path, tmp_path: Path) -> None:
    path = _edited(leaky_case, tmp_path / "c.json", lambda fields: fields.update(target=bad("Sound"), flaky=True))
    done = pagefault("repro", path, cwd=tmp_path)

    assert done.code == 0
    assert "runs, but it was found by chance: that is no proof" in done.out


def test_a_case_that_held_alone_when_it_was_found_is_not_proven_fixed(leaky_case: Path, tmp_path: Path) -> None:
    def kept(fields: dict[str, Any]) -> None:
        fields.update(target=bad("Sound"), flaky=True, message=f"a count is wrong. {HELD_ALONE}")

    done = pagefault("repro", _edited(leaky_case, tmp_path / "c.json", kept), cwd=tmp_path)

    assert done.code == 0
    assert (
        "but it held alone when it was found, too, and broke behind other cases or by chance: that is no proof"
        in done.out
    )
