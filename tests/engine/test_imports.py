"""The engine level starts without torch, and without numpy until our own engine is opened."""

from __future__ import annotations

import subprocess
import sys


def loaded_after(code: str) -> set[str]:
    """Which of the heavy packages are in memory after that code, in a fresh interpreter."""
    show = "import sys; print(*sorted({name.split('.')[0] for name in sys.modules} & {'torch', 'numpy', 'triton'}))"
    run = subprocess.run([sys.executable, "-c", f"{code}\n{show}"], check=True, capture_output=True, text=True)
    return set(run.stdout.split())


def test_the_level_the_judge_and_the_workload_need_neither() -> None:
    level = "properties.engine.spec, properties.engine.replay, properties.targets.nano_vllm"
    code = f"import {level}, fuzz.judge, fuzz.workload_engine"

    assert loaded_after(code) == set()


def test_our_engine_needs_numpy_alone() -> None:
    code = "from properties.targets import load\nload('ours-engine').make()"

    assert loaded_after(code) == {"numpy"}
