"""The committed corpus: for each planted fault the smallest trace that its clause catches, replayed first on every target.

python -m fuzz.faults.corpus     rewrites the cases of faults whose case no longer catches them, and keeps the others
"""

from __future__ import annotations

import sys
from itertools import count
from pathlib import Path

from fuzz.faults import Fault, all_faults
from properties.case import Case, read, write
from properties.drive import drive
from properties.judging import CORPUS
from properties.minimise import breaks, minimise, trimmed
from properties.specs import spec_of
from properties.trial import EVERYTHING

OURS = {"blocks": "ours", "engine": "ours-engine", "cache": "cache-ours"}
"""Our own target of each level that has planted faults."""
HANGS = "CRASH-2"
"""Not in the corpus: every replay of a hang lasts as long as its limit."""


def case_of(fault: Fault) -> Case:
    """The smallest trace found for a fault, as a case of our own manager, which must not break on it."""
    spec = spec_of(fault.level)
    capabilities = fault.make().capabilities
    fails = breaks(spec, fault.make, fault.catches)
    for seed in count():
        geometry, verdict = drive(spec, fault.make, seed, tolerate=EVERYTHING)
        if verdict.broke(fault.catches):
            break
    trace = trimmed(spec, fault.make, (geometry, tuple(verdict.applied)), fault.catches)
    geometry, operations = minimise(spec, trace, fails, accepts=lambda g: spec.accepts(capabilities, g))
    return Case(
        level=fault.level,
        target=OURS[fault.level],
        property=fault.catches,
        message=f"catches the planted fault {fault.id} ({fault.source})",
        geometry=geometry,
        operations=operations,
    )


def still_catches(fault: Fault, file: Path) -> bool:
    """Whether a committed case breaks its clause on the fault that it is named after."""
    case = read(file)
    return breaks(spec_of(fault.level), fault.make, fault.catches)(case.geometry, case.operations)


def file_of(fault: Fault) -> Path:
    """Where the case of a fault lies."""
    return CORPUS / f"{fault.catches}-{fault.id}.json"


def main() -> int:
    CORPUS.mkdir(exist_ok=True)
    for fault in all_faults().values():
        if fault.catches == HANGS:
            continue
        file = file_of(fault)
        if not file.exists() or not still_catches(fault, file):
            write(case_of(fault), file)
            sys.stdout.write(f"wrote {file.name}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
