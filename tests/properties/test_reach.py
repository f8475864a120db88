"""What declared limits put out of reach is not demanded of a run; everything else is, and is reached."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from properties.blocks.coverage import applicable, marks
from properties.protocol import Capabilities
from properties.targets.ours import OurBlocks
from tests.targets import zoo
from tests.targets.hunt import SPEC, Hunt


def declares(make: type[Any], **changes: object) -> type[Any]:
    return type(make.__name__, (make,), {"capabilities": msgspec.structs.replace(make.capabilities, **changes)})


LIMITS: list[dict[str, Any]] = [
    {"max_tokens": 1},
    {"max_tokens": 8, "block_sizes": (16,)},
    {"max_tokens": 16, "block_sizes": (16,)},
    {"block_sizes": (1,)},
    {"max_sequences": 1},
    {"max_sequences": 1, "max_tokens": 1},
    {"num_blocks": (1, 1)},
    {"num_blocks": (1, 1), "block_sizes": (1,)},
    {"num_blocks": (2, 2)},
    {"num_blocks": (20, 20), "max_tokens": 8, "max_sequences": 2},
]


@pytest.mark.parametrize("limits", LIMITS, ids=str)
def test_a_narrow_target_reaches_all_that_is_demanded_of_it(limits: dict[str, Any]) -> None:
    hunt = Hunt(declares(OurBlocks, **limits), num_seeds=60)
    offers = SPEC.offered(OurBlocks())
    demanded = applicable(hunt.make.capabilities, offers)

    assert hunt.found == {}
    assert hunt.unreached()[1] == []
    assert [clause for clause in demanded if not hunt.judged[clause]] == []


@pytest.mark.parametrize("make", [zoo.CopiesOnWrite, zoo.KeepsSomeFree, zoo.LooksAhead], ids=lambda make: make.__name__)
@pytest.mark.parametrize("limits", [{"max_tokens": 1}, {"max_tokens": 4, "block_sizes": (4,)}], ids=str)
def test_so_do_other_designs(make: type[Any], limits: dict[str, Any]) -> None:
    hunt = Hunt(declares(make, **limits), num_seeds=60)
    demanded = applicable(hunt.make.capabilities, SPEC.offered(make()))

    assert (hunt.found, hunt.unreached()[1]) == ({}, [])
    assert [clause for clause in demanded if not hunt.judged[clause]] == []


def test_only_what_is_out_of_reach_is_left_out() -> None:
    """One token more, one sequence more, one block more: the demand is back."""
    offers = SPEC.offered(OurBlocks())

    def demanded(**limits: Any) -> frozenset[str]:
        caps = msgspec.structs.replace(OurBlocks.capabilities, **limits)
        return applicable(caps, offers) | marks(caps, offers)

    everything = demanded()
    assert everything == demanded(max_sequences=2) == demanded(max_tokens=3) == demanded(num_blocks=(2, 2))
    assert everything - demanded(max_sequences=1) == {"COW-1", "COW-3P", "COW-4", "a fork", "a copy on write"}
    assert everything - demanded(block_sizes=(1,)) == {"COW-3P", "COW-4", "a copy on write"}
    assert {"HASH-1", "a prefix hit", "a full hit"} <= everything - demanded(max_tokens=16, block_sizes=(16,))
    assert "HASH-1" in demanded(max_tokens=17, block_sizes=(16,))
    assert "EVICT-2P" in demanded(max_tokens=16, block_sizes=(16,))
    assert "EVICT-2P" not in demanded(max_tokens=15, block_sizes=(16,))
    assert {"ALLOC-6", "a refusal"} <= demanded(max_sequences=3, max_tokens=3, block_sizes=(2,))
    assert not {"ALLOC-6", "a refusal"} & demanded(max_sequences=3, max_tokens=2, block_sizes=(2,))


def test_hits_that_are_recomputed_need_no_token_behind_them() -> None:
    caps = Capabilities(recomputes_hits=True, max_tokens=4, block_sizes=(4,))

    assert "a prefix hit" in marks(caps, frozenset())


def test_several_releases_in_one_step_keep_their_order() -> None:
    """At the end of a trace all sequences are freed in one step, and short ones fill the pool in several calls."""
    assert "EVICT-2P" not in Hunt(declares(OurBlocks, max_tokens=2), num_seeds=150).found
