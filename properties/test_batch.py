"""Batch metadata of engines (BATCH)."""

from properties.chapter import check
from properties.plugin import Session


def test_batch(contract: Session, clause_id: str, target_name: str) -> None:
    check(contract, clause_id, target_name)
