"""What comes and goes is told as such, and blamed on nothing else that was changed meanwhile."""

import msgspec
import pytest

from properties.attention.cases import ReadCase
from properties.attention.judges import judge
from properties.attention.target import Batch, Output, Pool
from properties.attention.targets.plain import PlainTorch
from tests.attention.test_findings import BATCH

CASE = msgspec.structs.replace(BATCH, num_splits=2, poison_k="nan", poison_v="nan")


class WrongInSomeCalls(PlainTorch):
    """Loses a race in the calls of these numbers, counted from 0."""

    def __init__(self, *calls: int) -> None:
        self.wrong, self.calls = calls, -1

    def _read(self, pool: Pool, batch: Batch) -> Output:
        self.calls += 1
        answer = super()._read(pool, batch)
        return Output(answer.out + 1, answer.lse) if self.calls in self.wrong else answer


@pytest.mark.parametrize("variation", ["move", "repoison", "pad", "splits", "without_lse", "strided", "high_stride"])
def test_a_race_that_is_lost_in_the_variation_is_no_fault_of_what_was_varied(variation: str) -> None:
    (finding,) = judge(WrongInSomeCalls(1), msgspec.structs.replace(CASE, variation=variation)).findings

    assert finding.property == "READ-1"
    assert "Right when the same call is just repeated: the target does not repeat itself." in finding.message


@pytest.mark.parametrize("case", [BATCH, CASE], ids=["attractor", "nan"])
@pytest.mark.parametrize("calls", [(0,), (0, 1)])
def test_a_race_that_is_lost_twice_is_no_leak(calls: tuple[int, ...], case: ReadCase) -> None:
    (finding,) = judge(WrongInSomeCalls(*calls), case).findings

    assert finding.property == "READ-1"
    assert "the target does not repeat itself" in finding.message


def test_what_is_wrong_again_and_again_is_blamed_on_what_was_varied() -> None:
    (finding,) = judge(WrongInSomeCalls(*range(1, 99)), msgspec.structs.replace(CASE, variation="move")).findings

    assert finding.property == "READ-3"
    assert "the target does not repeat itself" not in finding.message
