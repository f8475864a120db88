"""No crash, no hang (CRASH)."""

from properties.chapter import check
from properties.plugin import Session


def test_crash(contract: Session, clause_id: str, target_name: str) -> None:
    check(contract, clause_id, target_name)
