"""Reads (READ): attention through block tables."""

from properties.chapter import check, results_of
from properties.plugin import Session


def test_read(contract: Session, clause_id: str, target_name: str) -> None:
    check(contract, clause_id, target_name)


def test_decode_cases_are_telling(contract: Session, attention_name: str) -> None:
    """Half of the decodes have a sequence of three or more permuted blocks, a quarter two or more partitions."""
    results = results_of(contract, attention_name)
    marks, wanted = results.tally.marks, results.marks
    shares = {
        "decode with 3 or more permuted blocks": 1 / 2,
        "decode with 2 or more partitions": 1 / 4,
    }
    few = [
        f"{mark}: {marks[mark]} of {marks['decode']}"
        for mark, share in shares.items()
        if mark in wanted and marks[mark] < share * marks["decode"]
    ]
    assert not few, f"{attention_name}: too few telling cases: {'; '.join(few)}"
    if contract.profile_name != "pagefault-dev" and "decode" in wanted:
        assert marks["decode"] >= 1000, f"{attention_name}: only {marks['decode']} decodes were judged"
