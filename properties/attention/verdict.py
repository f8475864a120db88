"""What judging a case gives: findings, and counts that show how much was really judged."""

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from properties.contract import CLAUSES, VIOLATIONS

NOT_HIGH = "high block ids left out (no memory)"
"""Counted where a case or a variation was not judged because the device has no room for such blocks."""


class Finding(NamedTuple):
    """A clause that does not hold, and the whole explanation in words."""

    property: str
    message: str


@dataclass
class Verdict:
    """`findings`: what is wrong, worst first. `counts`: what the case was like; `judged`: clauses that it judged."""

    findings: list[Finding] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    judged: Counter[str] = field(default_factory=Counter)

    def add(self, property_id: str, message: str) -> None:
        """Records a finding. The id must be one of the contract's."""
        self.judged[property_id] += 1
        self.findings.append(
            Finding(property_id, f"{property_id} ({CLAUSES[property_id].text}) does not hold.\n{message}")
        )

    def raise_if_broken(self) -> None:
        """Raises the exception class of the first finding; the others are added to its notes."""
        if self.findings:
            first = self.findings[0]
            error = VIOLATIONS[first.property](first.message)
            for other in self.findings[1:]:
                error.add_note(f"also {other.message}")
            raise error
