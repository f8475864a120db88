"""Engines of the nano-vllm family from a path: our own small one stands for them, so that no checkout is needed."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fuzz.as_issue import issue_of
from properties.case import Case
from properties.contract import UsageError
from properties.drive import drive
from properties.minimise import trimmed
from properties.specs import spec_of
from properties.targets import load
from properties.trial import EVERYTHING

RUNNER, MANAGER, SCHEDULER = "engine/model_runner.py", "engine/block_manager.py", "engine/scheduler.py"
LESSON = Path(__file__).with_name("lesson")


def changed(folder: Path, file: str, old: str, new: str) -> str:
    """A copy of the lesson with one line changed."""
    root = folder / "checkout"
    shutil.copytree(LESSON, root, ignore=shutil.ignore_patterns("__pycache__"))
    source = root / "nanovllm" / file
    text = source.read_text()
    assert text.count(old) == 1
    source.write_text(text.replace(old, new))
    return str(root)


def broken(name: str, num_seeds: int = 150) -> dict[str, str]:
    """The clauses that random traces break, with their explanations."""
    target = load(name)
    spec = spec_of(target.level)
    found: dict[str, str] = {}
    for seed in range(num_seeds):
        _, verdict = drive(spec, target.make, seed, tolerate=EVERYTHING)
        assert verdict.adapter is None, verdict.adapter
        for breach in verdict.breaches:
            found.setdefault(breach.property, breach.message)
    return found


@pytest.mark.parametrize("kind", ["nano-vllm", "nano-vllm-manager"])
def test_the_lesson_is_clean(kind: str) -> None:
    assert broken(f"{kind}:{LESSON}") == {}


@pytest.mark.parametrize(
    ("file", "old", "new", "clause"),
    [
        (RUNNER, "positions += range(start, stop)", "positions += range(start + 1, stop + 1)", "BATCH-2"),
        (RUNNER, "_gpu(last)\n", "_gpu([p + 1 for p in last])\n", "BATCH-1"),
        (RUNNER, "sums_k.append(sums_k[-1] + stop)", "sums_k.append(sums_k[-1] + len(seq))", "BATCH-4"),
        (RUNNER, "position % self.block_size\n", "(position + 1) % self.block_size\n", "BATCH-2"),
        (MANAGER, "if len(seq) % self.block_size == 1:", "if len(seq) % self.block_size == 0:", "CRASH-1"),
        (MANAGER, "        seq.num_cached_tokens = 0", "        pass", "PREEMPT-1"),
        (MANAGER, "self.free_block_ids.append(block)\n", "self.free_block_ids[:0] = [block, block]\n", "ALLOC-1"),
        (SCHEDULER, "self.waiting.appendleft(last)", "pass", "LIVE-1"),
        (SCHEDULER, "self.running.remove(seq)", "pass", "LIVE-1"),
        (SCHEDULER, "can_allocate(seq) < 0:", "can_allocate(seq) > 0:", "CRASH-1"),
    ],
)
def test_a_fault_in_the_checkout_is_found(tmp_path: Path, file: str, old: str, new: str, clause: str) -> None:
    assert clause in broken(f"nano-vllm:{changed(tmp_path, file, old, new)}")


def test_a_case_becomes_a_script_that_needs_the_checkout_alone(tmp_path: Path) -> None:
    path = changed(tmp_path, MANAGER, "        seq.num_cached_tokens = 0", "        pass")
    target = load(f"nano-vllm:{path}")
    spec = spec_of("engine")
    for seed in range(100):
        geometry, verdict = drive(spec, target.make, seed, tolerate=EVERYTHING)
        if verdict.broke("PREEMPT-1"):
            break
    geometry, operations = trimmed(spec, target.make, (geometry, tuple(verdict.applied)), "PREEMPT-1")
    case = Case(
        level="engine", target=target.name, property="PREEMPT-1", message="", geometry=geometry, operations=operations
    )
    report = issue_of(case)
    script = report[report.index("```python") + len("```python") : report.rindex("```")]
    assert "pagefault" not in script
    faulty, sound = (
        subprocess.run([sys.executable, "-c", script], cwd=folder, capture_output=True, text=True, check=False)
        for folder in (path, LESSON)
    )

    assert "AssertionError" in faulty.stderr
    assert " reads its position " in faulty.stderr
    assert (sound.returncode, sound.stderr) == (0, "")


def test_two_checkouts_do_not_meet_and_nothing_stays_behind(tmp_path: Path) -> None:
    other = changed(tmp_path, "engine/scheduler.py", "self.running.remove(seq)", "pass")
    before = {name for name in sys.modules if name.split(".")[0] in ("nanovllm", "torch", "triton", "flash_attn")}

    assert broken(f"nano-vllm:{other}", 20)
    assert not broken(f"nano-vllm:{LESSON}", 20)
    assert before == {
        name for name in sys.modules if name.split(".")[0] in ("nanovllm", "torch", "triton", "flash_attn")
    }


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("nano-vllm", "needs the path of a checkout"),
        ("nano-vllm:", "needs the path of a checkout"),
        ("nano-vllm:/nowhere", "is no checkout of nano-vllm"),
    ],
)
def test_a_wrong_path_is_refused(name: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        load(name)


def test_a_checkout_that_cannot_be_imported_is_unavailable(tmp_path: Path) -> None:
    path = changed(tmp_path, "engine/scheduler.py", "from collections import deque", "import not_there")

    with pytest.raises(UsageError, match="cannot be imported: No module named 'not_there'"):
        load(f"nano-vllm:{path}")
