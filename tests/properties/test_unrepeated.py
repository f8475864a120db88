"""A target whose calls have other outcomes each time: Hypothesis gives up with an error of its own, and the run goes on."""

import pytest
from hypothesis.errors import FlakyStrategyDefinition

from properties import machine
from properties.blocks.spec import SPEC
from properties.judging import judge_target
from properties.ledger import Ledger
from properties.machine import PROFILES
from properties.plugin import summary
from properties.targets import Target
from tests.targets import zoo

ADMITTED: list[str] = []


class NotEveryTime(zoo.Sound):
    """Refuses every fourth sequence of the whole process, room or none."""

    def admit(self, name: str, *arguments: object) -> object:
        ADMITTED.append(name)
        if len(ADMITTED) % 4 == 0:
            raise zoo.NoRoom("not now")
        return super().admit(name, *arguments)  # type: ignore[arg-type]


@pytest.fixture
def _gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def gives_up(*arguments: object, **options: object) -> None:
        raise FlakyStrategyDefinition("Inconsistent data generation!")

    monkeypatch.setattr(machine, "run_state_machine_as_test", gives_up)


@pytest.mark.usefixtures("_gives_up")
def test_seeded_traces_go_on_and_the_report_says_why() -> None:
    results = judge_target(Target("mine", "blocks", zoo.Sound), PROFILES["pagefault-dev"], 5, Ledger(), [])

    assert (results.tally.given_up, results.findings, results.adapter) == (1, {}, None)
    assert results.tally.traces == 5
    assert any("did not always have the same outcome" in line for line in summary(results))


def test_such_a_target_has_findings_or_a_verdict_and_no_error_of_ours() -> None:
    results = judge_target(Target("mine", "blocks", NotEveryTime), PROFILES["pagefault-dev"], 20, Ledger(), [])

    assert results.findings or results.adapter is not None


def test_a_sound_target_repeats_itself() -> None:
    tally = machine.search(SPEC, zoo.Sound, PROFILES["pagefault-dev"])

    assert tally.given_up == 0
