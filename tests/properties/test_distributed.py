"""With xdist each target is judged once, by one worker, and what was reached is told as without it."""

from pathlib import Path

import pytest

from properties.distributed import Distributed
from tests.properties.test_canary import run

SECTION = "= pagefault: {} ="


def test_a_target_is_judged_by_one_worker_and_its_summary_told(tmp_path: Path) -> None:
    file = tmp_path / "lacking.py"
    lines = ["from properties.protocol import Capabilities", "class One:", "    capabilities = Capabilities()"]
    file.write_text("\n".join([*lines, "class Other(One):", "    slots = None", ""]))
    names = [f"{file}:One", f"{file}:Other"]

    result = run("-n", "2", *(f"--target={name}" for name in names))

    assert result.returncode == 1
    assert "2 failed" in result.stdout, "each judged by one worker, whose first test says why"
    for name in names:
        assert result.stdout.count(SECTION.format(name)) == 1, result.stdout
    assert result.stdout.count("0 traces (") == 2


def test_a_target_that_ends_its_worker_is_judged_no_further(tmp_path: Path) -> None:
    file = tmp_path / "dying.py"
    lines = ["import os", "from properties.targets.ours import OurBlocks", "class Dies(OurBlocks):"]
    file.write_text("\n".join([*lines, "    def append(self, *arguments):", "        os._exit(3)", ""]))

    result = run("-n", "2", "--target", f"{file}:Dies")

    assert result.returncode == 1
    assert "1 failed" in result.stdout
    assert f"the target did that, and is judged no further. `pagefault run -t {file}:Dies` has it" in result.stdout


@pytest.mark.parametrize(
    ("nodeid", "target"),
    [
        ("properties/test_alloc.py::test_alloc[ALLOC-1-ours]", "ours"),
        ("properties/test_alloc.py::test_alloc[ALLOC-1-ours-triton]", "ours-triton"),
        ("properties/test_read.py::test_shapes_of_real_models[ours-triton-Phi-3-mini-16]", "ours-triton"),
        ("properties/test_reached.py::test_reached[a/ours.py:Mine]", "a/ours.py:Mine"),
        ("properties/test_ours.py::test_other", "properties/test_ours.py::test_other"),
    ],
)
def test_the_target_of_a_test(nodeid: str, target: str) -> None:
    assert Distributed(["ours", "ours-triton", "a/ours.py:Mine"]).target_of(nodeid) == target
