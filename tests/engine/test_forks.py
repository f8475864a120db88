"""Forks of nano-vllm that differ: what stands in for a machine, and what is told where an interface is another one.

Our own small engine stands for them, with one thing changed.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from properties.contract import AdapterError, UsageError
from properties.drive import drive
from properties.specs import spec_of
from properties.targets import Target, Unavailable, load
from properties.targets.nano_vllm import NanoVllm
from properties.targets.standins import HOST_TORCH, UNSET, HostConfig, StandInError, defaults
from properties.trial import EVERYTHING

RUNNER, MANAGER, SCHEDULER = "engine/model_runner.py", "engine/block_manager.py", "engine/scheduler.py"
SEQUENCE = "engine/sequence.py"
LESSON = Path(__file__).with_name("lesson")
DIFFERS = "the interface of this fork differs from nano-vllm's"


def fork(folder: Path, *changes: tuple[str, str, str], **files: str) -> str:
    """A copy of the lesson with some lines changed, and files added (`layers__attention` is layers/attention.py)."""
    root = folder / "checkout"
    shutil.copytree(LESSON, root, ignore=shutil.ignore_patterns("__pycache__"))
    for file, old, new in changes:
        source = root / "nanovllm" / file
        text = source.read_text()
        assert text.count(old) == 1
        source.write_text(text.replace(old, new))
    for name, text in files.items():
        file_ = root / "nanovllm" / f"{name.replace('__', '/')}.py"
        file_.parent.mkdir(exist_ok=True)
        file_.write_text(text)
    return str(root)


def judged(target: Target, num_seeds: int = 40) -> tuple[AdapterError | None, dict[str, str]]:
    """The verdict ADAPTER of random traces, else the clauses that they break."""
    found: dict[str, str] = {}
    for seed in range(num_seeds):
        _, verdict = drive(spec_of(target.level), target.make, seed, tolerate=EVERYTHING)
        if verdict.adapter is not None:
            return verdict.adapter, found
        found |= {breach.property: breach.message for breach in verdict.breaches}
    return None, found


# ---- stand-ins ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("_gpu(last)\n", "torch.arange(0, len(seqs)).cuda() and _gpu(last)\n"),
        ("_gpu(last)\n", "_filled(torch.zeros(len(last), 1, dtype=torch.int32), last)\n"),
        ("_gpu(last)\n", "_filled(torch.empty((len(last), 1), device='cuda'), last)\n"),
    ],
)
def test_what_preparation_makes_of_new_arrays_is_stood_in_for(tmp_path: Path, old: str, new: str) -> None:
    helper = (
        "def _gpu(values):",
        "def _filled(t, values):\n    for i, v in enumerate(values):\n        t[i, :] = v\n"
        "    return torch.tensor([row[0] for row in t])\n\n\ndef _gpu(values):",
    )
    path = fork(tmp_path, (RUNNER, old, new), (RUNNER, *helper))

    assert judged(load(f"nano-vllm:{path}")) == (None, {})


@pytest.mark.parametrize(
    ("new", "says"),
    [
        ("torch.cumsum(_gpu(last))\n", "stands in for torch without cumsum"),
        ("_gpu(last).view(-1)\n", "stands in for a tensor without view"),
        ("_gpu(last) + 0\n", "stands in for a tensor without __add__"),
        ("_gpu(last) if _gpu(last) > 0 else 0\n", "stands in for a tensor without __gt__"),
        ("int(_gpu(last)) or last\n", "stands in for a tensor without __int__"),
        ("torch.device('cuda').type and _gpu(last)\n", "stands in for a device without type"),
        ("torch.int32.itemsize and _gpu(last)\n", "stands in for torch.int32 without itemsize"),
        ("self.device.index and _gpu(last)\n", "stands in for a device without index"),
        ("torch.tensor(7)\n", "without a tensor of no dimension"),
        ("get_plan(last)\n", "nanovllm.layers.attention.get_plan is a stub"),
        ("_gpu(last[: self.config.window])\n", "stands in for the configuration without window"),
        ("_gpu(last[: self.window])\n", "'ModelRunner' object has no attribute 'window'"),
    ],
)
def test_what_a_stand_in_lacks_is_never_a_finding(tmp_path: Path, new: str, says: str) -> None:
    attention = (RUNNER, "import torch\n", "import torch\nfrom nanovllm.layers.attention import get_plan\n")
    path = fork(tmp_path, attention, (RUNNER, "_gpu(last)\n", new), layers__attention="import a_kernel_not_here\n")

    problem, found = judged(load(f"nano-vllm:{path}"))

    assert "CRASH-1" not in found
    assert says in str(problem)
    assert "subclass SequenceEngine and override" in str(problem)


def test_a_stand_in_answers_whether_it_has_something() -> None:
    assert not hasattr(HOST_TORCH, "npu")
    assert getattr(HostConfig(eos=-1), "window", 3) == 3


def test_arrays_stand_in_for_tensors() -> None:
    grid = HOST_TORCH.zeros(2, 3)
    grid[1, :2] = HOST_TORCH.tensor([4, 5])
    grid[0][1:] = 7

    assert grid.tolist() == [[0, 7, 7], [4, 5, 0]]
    assert grid.numel() == 6
    assert HOST_TORCH.ones((1, 2)).fill_(8) == [[8, 8]]
    assert HOST_TORCH.empty(1) == [UNSET]
    with pytest.raises(RuntimeError, match="3 values are given to 2 entries"):
        grid[0][:2] = [1, 2, 3]
    copy = grid.clone()
    copy[0] = 1
    copy[1:] = 3
    assert (copy.tolist(), grid[0]) == ([[1, 1, 1], [3, 3, 3]], [0, 7, 7])
    with pytest.raises(StandInError, match="parts that are written"):
        grid[0][:2].fill_(9)
    with pytest.raises(StandInError, match="spread over several"):
        grid[:] = [1, 2, 3]
    with pytest.raises(StandInError, match="without the index"):
        grid[..., 0]


# ---- imports -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        "import triton.language as tl",
        "from flash_attn.cute import varlen",
        "import flashinfer, pynvml",
        "from nanovllm.models.registry.deep import find",
        "from nanovllm.layers import attention",
    ],
)
def test_what_needs_a_gpu_is_stood_in_for_wherever_it_is_imported(tmp_path: Path, line: str) -> None:
    before = set(sys.modules)
    bad = "raise RuntimeError('no GPU')\n"
    path = fork(tmp_path, layers__attention=bad, models__qwen3=bad)
    for file in (RUNNER, MANAGER):
        source = Path(path) / "nanovllm" / file
        source.write_text(f"{line}\n{source.read_text()}")

    assert judged(load(f"nano-vllm:{path}"), 10) == (None, {})
    assert judged(load(f"nano-vllm-manager:{path}"), 10) == (None, {})
    left = {name.partition(".")[0] for name in set(sys.modules) - before}
    assert not left & {"nanovllm", "torch", "triton", "flash_attn", "flashinfer", "pynvml"}


@pytest.mark.parametrize("line", ["import torch.nn.functional as F", "from torch.utils.data import Dataset"])
def test_torch_is_not_imported(tmp_path: Path, line: str) -> None:
    path = fork(tmp_path, (RUNNER, "import torch\n", f"import torch\n{line}\n"))
    code = f"""
import sys
from properties.targets import load
load({f"nano-vllm:{path}"!r})
assert not [name for name in sys.modules if name.split(".")[0] in ("torch", "nanovllm")]
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)

    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("file", [RUNNER, SCHEDULER])
def test_the_manager_alone_needs_neither_runner_nor_scheduler(tmp_path: Path, file: str) -> None:
    path = fork(tmp_path)
    (Path(path) / "nanovllm" / file).write_text("import not_there\n")

    assert judged(load(f"nano-vllm-manager:{path}"), 10) == (None, {})
    with pytest.raises(Unavailable, match="No module named 'not_there'"):
        load(f"nano-vllm:{path}")


CONFIG = """
from dataclasses import dataclass, field
from transformers import AutoConfig

@dataclass
class Config:
    model: str
    chunk_size: int = 512
    names: list[str] = field(default_factory=list)
    hf_config: AutoConfig | None = None
"""


def test_what_a_scheduler_reads_besides_the_sizes_has_the_default_of_the_fork(tmp_path: Path) -> None:
    reads = (
        SCHEDULER,
        "    def __init__(self, config):\n",
        "    def __init__(self, config):\n        config.names[config.chunk_size:]\n",
    )
    path = fork(tmp_path, reads, config=CONFIG)

    assert judged(load(f"nano-vllm:{path}"), 10) == (None, {})
    assert defaults(object) == {}


# ---- other interfaces --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ((MANAGER, "def can_allocate(self, seq):", "def can_allocate(self, seq, new_num_tokens):"), "'new_num_tokens'"),
        ((MANAGER, "def can_append(self, seq):", "def can_append(self, seq, ahead):"), "'ahead'"),
        ((MANAGER, "def __init__(self, num_blocks,", "def __init__(self, config, num_blocks,"), "'block_size'"),
        ((MANAGER, "-(-len(seq) // self.block_size) else", "seq + 1 else"), "unsupported operand"),
    ],
)
def test_a_manager_of_another_interface_is_not_at_fault(
    tmp_path: Path, change: tuple[str, str, str], says: str
) -> None:
    problem, found = judged(load(f"nano-vllm-manager:{fork(tmp_path, change)}"), 10)

    assert found == {}
    assert problem is not None
    assert says in problem.problem
    assert "adapter's own code" not in problem.problem
    assert "subclass SequenceManager and override" in problem.remedy
    assert "docs/engines.md" in problem.remedy


def test_a_table_of_another_name_is_not_at_fault(tmp_path: Path) -> None:
    path = fork(tmp_path)
    for file in (MANAGER, SEQUENCE):
        source = Path(path) / "nanovllm" / file
        source.write_text(source.read_text().replace("block_table", "pages"))

    problem, found = judged(load(f"nano-vllm-manager:{path}"), 10)

    assert found == {}
    assert "'Sequence' object has no attribute 'block_table'" in str(problem)
    assert "subclass SequenceManager and override" in str(problem)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ((SCHEDULER, "def schedule(self):", "def schedule(self, now):"), f"step: {DIFFERS}.*'now'"),
        (
            (SCHEDULER, "    def __init__(self, config):", "    def __init__(self, config, rank):"),
            f"open: {DIFFERS}.*'rank'",
        ),
        ((SEQUENCE, "self.is_finished = False", "config.chunk_size"), None),
    ],
)
def test_an_engine_of_another_interface_is_not_at_fault(
    tmp_path: Path, change: tuple[str, str, str], says: str | None
) -> None:
    name = f"nano-vllm:{fork(tmp_path, change)}"
    if says is None:
        with pytest.raises(UsageError, match=f"verdict ADAPTER for nano-vllm:.*{DIFFERS}"):
            load(name)
        return
    problem, found = judged(load(name), 10)

    assert found == {}
    with pytest.raises(AdapterError, match=says):
        raise problem or AssertionError


def test_a_field_that_no_default_gives_is_the_adapters_to_give(tmp_path: Path) -> None:
    reads = (
        SCHEDULER,
        "    def __init__(self, config):\n",
        "    def __init__(self, config):\n        config.chunk_size\n",
    )
    path = fork(tmp_path, reads)

    class Given(NanoVllm):
        def config(self, geometry: Any) -> Any:
            settings = super().config(geometry)
            settings.chunk_size = 8
            return settings

    problem, _ = judged(load(f"nano-vllm:{path}"), 1)
    assert "stands in for the configuration without chunk_size" in str(problem)
    assert "override config" in str(problem)
    assert judged(Target("given", "engine", lambda: Given(path)), 10) == (None, {})


def test_sampling_params_are_given_to_every_sequence(tmp_path: Path) -> None:
    wants = (SEQUENCE, "token_ids, params=None", "token_ids, params")

    assert judged(load(f"nano-vllm:{fork(tmp_path, wants)}"), 10) == (None, {})


def test_early_versions_tell_the_end_of_a_request_by_their_queues(tmp_path: Path) -> None:
    path = fork(tmp_path, (SEQUENCE, "self.is_finished = False", "self.done = False"))
    scheduler = Path(path) / "nanovllm" / SCHEDULER
    scheduler.write_text(scheduler.read_text().replace("is_finished", "done"))

    assert judged(load(f"nano-vllm:{path}")) == (None, {})


def test_a_package_of_another_name_is_told_with_what_was_found(tmp_path: Path) -> None:
    path = fork(tmp_path)
    (Path(path) / "nanovllm").rename(Path(path) / "quickllm")

    with pytest.raises(UsageError) as refusal:
        load(f"nano-vllm:{path}")
    assert "no package nanovllm" in str(refusal.value)
    assert "quickllm/engine/block_manager.py" in str(refusal.value)
    assert "git clone" not in str(refusal.value)


def test_a_folder_without_python_is_told_with_what_was_found(tmp_path: Path) -> None:
    (tmp_path / "include").mkdir()

    with pytest.raises(UsageError, match=r"no package nanovllm .* Found was include/\."):
        load(f"nano-vllm-manager:{tmp_path}")


# ---- can_append --------------------------------------------------------------------------------------------------------

ASKS = "return bool(self.free_block_ids) or len(seq) % self.block_size != 1"


@pytest.mark.parametrize(
    ("new", "clause"),
    [("return bool(self.free_block_ids)", "ALLOC-6"), ("return True", "CRASH-1"), ("return False", "ALLOC-6")],
)
def test_a_wrong_can_append_is_a_finding(tmp_path: Path, new: str, clause: str) -> None:
    problem, found = judged(load(f"nano-vllm-manager:{fork(tmp_path, (MANAGER, ASKS, new))}"))

    assert problem is None
    assert set(found) == {clause}
