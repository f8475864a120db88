"""A canary: a property that must fail, with its outcome inverted. If this passes, failures do reach the person."""

import subprocess
import sys
from pathlib import Path

from properties.case import read

ROOT = Path(__file__).parents[2]


def run(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "properties", "-q", "-p", "no:cacheprovider", *options]
    return subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True, timeout=120)


def test_the_canary_fails_and_says_why() -> None:
    result = run("--target", "fuzz.faults.canary:Canary", "--property", "ALLOC-1")

    assert result.returncode == 1, result.stdout
    assert "ALLOC-1: free, owned and cached blocks cover the pool" in result.stdout
    assert "nor cached: lost" in result.stdout
    assert "Falsifying example" not in result.stdout + result.stderr
    replay = next(line for line in result.stdout.splitlines() if "replay: pagefault repro" in line)
    case = ROOT / replay.split()[-1]
    assert read(case).property == "ALLOC-1"
    case.unlink()


def test_an_adapter_that_lacks_a_method_is_not_a_finding_and_told_once(tmp_path: Path) -> None:
    file = tmp_path / "lacking.py"
    file.write_text(
        "from properties.protocol import Capabilities\n"
        "class Lacking:\n    capabilities = Capabilities()\n    def open(self, config): ...\n"
    )
    result = run("--target", f"{file}:Lacking", "-rs")

    assert result.returncode == 1
    assert result.stdout.count("verdict ADAPTER") == 1 + result.stdout.count("FAILED properties/")  # and in the summary
    assert "lacks admit, append, free, slots" in result.stdout
    assert "1 failed" in result.stdout
    assert ":Lacking is not judged: properties/test_" in result.stdout
