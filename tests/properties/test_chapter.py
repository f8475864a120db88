"""What a verdict that reached too little says: a sentence, and no source code of pagefault."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from properties import chapter, test_reached
from properties.judging import Results
from properties.machine import Tally
from properties.targets import load


def contract_of(**fields: Any) -> Any:
    """A session with one target, whose results are what is given."""
    results = Results(load("ours"), **fields)
    return SimpleNamespace(judge=lambda name: results)


@pytest.mark.parametrize(
    ("test", "fields", "says"),
    [
        (
            lambda contract: chapter.check(contract, "REF-1", "ours"),
            {"applicable": frozenset({"REF-1"})},
            "REF-1 applies to ours but was never judged",
        ),
        (
            lambda contract: test_reached.test_states_were_reached(contract, "ours"),
            {"marks": frozenset({"a refusal"})},
            "ours: no trace ever reached: a refusal",
        ),
        (
            lambda contract: test_reached.test_most_operations_were_useful(contract, "ours"),
            {"tally": Tally(steps=10, outcomes=Counter(done=2))},
            "ours: only 20% of 10 operations were done",
        ),
    ],
)
def test_what_was_not_reached_is_a_sentence(test: Any, fields: dict[str, Any], says: str) -> None:
    with pytest.raises(pytest.fail.Exception) as failed:
        test(contract_of(**fields))

    assert str(failed.value).startswith(says)
    assert not failed.value.pytrace
