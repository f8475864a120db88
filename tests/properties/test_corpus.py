"""The committed corpus still bites: each case breaks its clause on the fault it is named after, and nothing on our manager."""

import pytest

from fuzz.faults import Fault, all_faults
from fuzz.faults.corpus import HANGS, file_of, still_catches
from properties.case import read
from properties.judging import CORPUS, read_corpus
from properties.minimise import judge
from properties.specs import spec_of
from properties.targets import load

FAULTS = [fault for fault in all_faults().values() if fault.catches != HANGS]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.id)
def test_the_case_of_a_fault_catches_it(fault: Fault) -> None:
    assert still_catches(fault, file_of(fault)), "python -m fuzz.faults.corpus writes it anew"


@pytest.mark.parametrize("case", read_corpus(), ids=lambda case: f"{case.property}-{len(case.operations)}")
def test_our_manager_passes_the_case(case) -> None:
    assert judge(spec_of(case.level), load(case.target).make, case.geometry, case.operations).breaches == []


def test_no_case_is_left_over() -> None:
    """Cases found in our own manager are kept beside those of the faults; anything else has lost its fault."""
    names = {file_of(fault).name for fault in FAULTS}
    others = [read(file) for file in CORPUS.glob("*.json") if file.name not in names]

    assert all(case.message.startswith("found in our own") for case in others)
