"""Cache layouts (LAYOUT)."""

from properties.chapter import check
from properties.plugin import Session


def test_layout(contract: Session, clause_id: str, target_name: str) -> None:
    check(contract, clause_id, target_name)
