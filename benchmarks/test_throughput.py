"""The run loop of `pagefault run`: judged operations a second on our manager, journal on, every clause on.

Time is the worker's own processor time, so that a busy machine does not change the verdict; the wall clock of the whole
command is printed beside it. `pytest benchmarks/test_throughput.py`.
"""

import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from fuzz import messages
from fuzz.loop import Loop
from properties.specs import spec_of
from properties.targets import load

LEAST_PER_S = 20_000
"""Judged operations a second on one core that a campaign promises."""
WARM_UP = 200
CASES = 600
MOST_GROWTH_MIB = 4.0
"""A night has 10,000 times as many cases: anything that stays per case would show here already."""


@pytest.fixture
def loop(tmp_path: Path) -> Any:
    """A worker's loop on our manager, writing its journal to a real file."""
    (tmp_path / "pending").mkdir()
    (tmp_path / "corpus").mkdir()
    said: list[messages.Message] = []
    target, paths = load("ours"), (tmp_path, tmp_path / "journal", tmp_path / "corpus")
    made = Loop(target, spec_of("blocks"), said.append, *paths, 1, target.make())
    made.ready()

    def run(first: int, stop: int) -> messages.Counts:
        """Run cases; the counts of all of them."""
        said.clear()
        made.obey(messages.Slice(first=first, stop=stop, seconds=600, left_s=600))
        counts = [message for message in said if isinstance(message, messages.Counts)]
        judged: dict[str, int] = {}
        for part in counts:
            for id, count in part.judged.items():
                judged[id] = judged.get(id, 0) + count
        operations, refused = sum(part.operations for part in counts), sum(part.refused for part in counts)
        return messages.Counts(next=stop, operations=operations, refused=refused, judged=judged)

    return run


def test_judged_operations_a_second_on_one_core(benchmark: Any, loop: Any) -> None:
    loop(0, WARM_UP)
    rates, counts = [], []

    def run() -> None:
        started = time.process_time()
        counts.append(loop(WARM_UP, WARM_UP + CASES))
        rates.append(counts[-1].operations / (time.process_time() - started))

    benchmark.pedantic(run, rounds=3)
    last = counts[-1]
    spec, adapter = spec_of("blocks"), load("ours").make()
    applicable = spec.applicable(adapter.capabilities, spec.offered(adapter))
    benchmark.extra_info.update(operations=last.operations, per_cpu_second=round(max(rates)))

    assert max(rates) >= LEAST_PER_S, f"{max(rates):,.0f} judged operations a second of processor time"
    assert last.refused <= last.operations / 2, "at least half of the operations succeed"
    assert applicable <= last.judged.keys(), "all clauses on"


def test_memory_stays_flat(loop: Any) -> None:
    loop(0, 2 * CASES)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    loop(2 * CASES, 6 * CASES)
    grown_mib = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024

    assert grown_mib <= MOST_GROWTH_MIB, f"{4 * CASES} cases added {grown_mib:.1f} MiB"


def test_the_whole_command(benchmark: Any, tmp_path: Path) -> None:
    """`pagefault run` as a user starts it, supervisor and pipes included; the wall clock is noted, not judged."""
    line = [sys.executable, "-m", "fuzz", "run", "-t", "ours", "--time", "5s", "--seed", "1", "--out", "o", "--json"]
    environment = {"PYTHONPATH": str(Path(__file__).parents[1])}

    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run(line, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    done = benchmark.pedantic(run, rounds=1)
    result = json.loads(done.stdout)["targets"]["ours"]
    benchmark.extra_info.update(operations_per_s=result["operations_per_s"], succeeded=result["succeeded"])

    assert done.returncode == 0, done.stderr
    assert result["succeeded"] >= 0.5
    assert result["unreached"] == []
