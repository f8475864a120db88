"""What is filed of a suspect, and with which words."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuzz.campaign_state import TargetRun
from fuzz.evidence import Evidence, Suspect
from fuzz.filing import BY_CHANCE, Filing
from fuzz.folder import Folder
from properties.blocks.operations import Admit, Geometry
from properties.case import Case, encode, read
from properties.ledger import Ledger

CASE = Case(
    level="blocks",
    target="mine",
    property="SLOT-1",
    message="as it was seen",
    geometry=Geometry(block_size=2, num_blocks=4),
    operations=(Admit("A", (1, 2)),),
)


@pytest.mark.parametrize(
    ("how", "detail", "told", "blamed"),
    [
        ("flaky", "it failed in 1 of 4 fresh processes", "it failed in 1 of 4 fresh processes; ", True),
        ("error", "NameError: a mistake of ours", "it could not be confirmed: NameError: a mistake of ours", False),
    ],
)
def test_what_could_not_be_confirmed_is_kept_and_nobody_is_blamed(
    how: str, detail: str, told: str, blamed: bool, tmp_path: Path
) -> None:
    """An error of pagefault's own, on the way, asked whether the target keeps state."""
    folder = Folder(tmp_path / "o", tmp_path / "corpus")
    folder.create(resume=False)
    pending = tmp_path / "o" / "pending" / "mine-SLOT-1-1.json"
    folder.write_bytes(pending, encode(CASE))

    finding = Filing(folder, Ledger(), lambda line: None).file(
        TargetRun("mine"), Evidence(Suspect("mine", pending, "SLOT-1", 1), how, CASE, detail)
    )

    assert finding is not None
    kept = read(finding.path)
    assert kept.flaky
    assert kept.message.startswith(f"as it was seen FLAKY: {told}")
    assert kept.message.endswith(BY_CHANCE) == blamed
    assert not pending.exists()
