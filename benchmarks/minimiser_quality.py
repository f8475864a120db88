"""Does the minimiser reach the shortest traces? Failing traces of five planted faults, each minimised from many seeds.

    python benchmarks/minimiser_quality.py --seeds 200 --out benchmarks/results/minimiser_quality.json

Prints, for each fault, the length of the shortest trace, how long the traces were to begin with, and the share of the seeds
that end at most one operation above the shortest. Exits 1 where that share is below 95 %.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections import Counter
from itertools import count
from pathlib import Path
from typing import Any

from fuzz.faults import Fault, all_faults
from properties.drive import drive
from properties.minimise import breaks, minimise, trimmed
from properties.specs import spec_of

SHORTEST = {
    "leak-tail": 2,  # allocate inside a block, free
    "fork-without-reference": 2,  # admit, fork
    "no-copy-on-write": 3,  # admit inside a block, fork, append to one side
    "swaps-in-backwards": 3,  # admit two blocks, out, in
    "keeps-dropped-hashes": 4,  # admit a full block, truncate it, append something else, admit the first again
}
"""Known by construction: each step named is needed, and the test of the faults shows that they are enough."""
SPEC = spec_of("blocks")


def lengths(fault: Fault, num_seeds: int) -> tuple[list[int], list[int]]:
    """Lengths before and after minimising, of the first `num_seeds` seeds whose trace breaks the fault's clause."""
    before, after = [], []
    capabilities = fault.make().capabilities
    fails = breaks(SPEC, fault.make, fault.catches)
    for seed in count():
        geometry, verdict = drive(SPEC, fault.make, seed)
        if not verdict.broke(fault.catches):
            continue
        trace = trimmed(SPEC, fault.make, (geometry, tuple(verdict.applied)), fault.catches)
        _, smallest = minimise(SPEC, trace, fails, accepts=lambda g: SPEC.accepts(capabilities, g))
        before.append(len(verdict.applied))
        after.append(len(smallest))
        if len(after) == num_seeds:
            return before, after
    raise AssertionError("count() has no end")


def measure(fault_id: str, num_seeds: int) -> dict[str, Any]:
    """One row of the table."""
    started = time.perf_counter()
    before, after = lengths(all_faults()[fault_id], num_seeds)
    shortest = SHORTEST[fault_id]
    return {
        "fault": fault_id,
        "shortest": shortest,
        "mean_before": round(statistics.mean(before), 1),
        "lengths": dict(sorted(Counter(after).items())),
        "share_within_one": sum(length <= shortest + 1 for length in after) / len(after),
        "seconds_each": round((time.perf_counter() - started) / num_seeds, 3),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = [measure(fault_id, options.seeds) for fault_id in SHORTEST]
    for row in rows:
        sys.stdout.write(json.dumps(row) + "\n")
    if options.out is not None:
        options.out.write_text(json.dumps({"seeds": options.seeds, "rows": rows}, indent=1) + "\n")
    return 0 if all(row["share_within_one"] >= 0.95 for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
