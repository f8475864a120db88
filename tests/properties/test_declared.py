"""Declarations that cannot be are found before a target is used, by whatever uses it, and say what they must be."""

from __future__ import annotations

from typing import Any

import pytest

from fuzz.check_static import static_problems
from properties.attention.capabilities import AttentionCapabilities
from properties.contract import AdapterError
from properties.declared import level_problem, problems
from properties.engine.protocol import EngineCapabilities
from properties.protocol import Capabilities
from properties.targets import load
from properties.targets.ours import OurBlocks
from properties.trial import new_target


class Full(Exception):
    """No room."""


WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"block_sizes": 16}, "block_sizes is 16 (int)", "it must be tuple[int, ...]"),
    ({"block_sizes": ("16",)}, "block_sizes is ('16',) (tuple)", "tuple[int, ...]"),
    ({"block_sizes": ()}, "block_sizes is ()", "at least one size"),
    ({"num_blocks": 8}, "num_blocks is 8 (int)", "it must be tuple[int, int]"),
    ({"num_blocks": (0, 4)}, "num_blocks is (0, 4)", "1 or more"),
    ({"num_blocks": (1 << 30, 1 << 30)}, "has 1,073,741,824 tokens", "small ones find more"),
    ({"refusals": Full}, "refusals is <class", "refusals=(OutOfBlocks,)"),
    ({"refusals": (Full(),)}, "refusals is (Full(),)", "exception classes"),
    ({"refusals": (BaseException,)}, "every crash would pass", "the one class"),
    ({"reserved_blocks": 0}, "reserved_blocks is 0 (int)", "it must be tuple[int, ...]"),
    ({"reserved_blocks": (9,), "num_blocks": (4, 64)}, "reserved block 9 is not in the smallest", "to 10"),
    ({"reserved_blocks": (-1,)}, "reserved block -1", "leave it out"),
    ({"eviction": "lru"}, "eviction is 'lru' (str)", "Literal['released']"),
    ({"unknown_free": "raises"}, "unknown_free is 'raises'", "'refused', 'ignored'"),
    ({"promises": ["ALLOC-2P"]}, "promises is ['ALLOC-2P'] (list)", "it must be frozenset[str]"),
    ({"promises": "ALLOC-2P"}, "promises is 'ALLOC-2P' (str)", "frozenset[str]"),
    ({"promises": frozenset({"EVICT-2P"})}, "no order", "declare eviction="),
    ({"window": "yes"}, "window is 'yes' (str)", "it must be bool"),
    ({"max_sequences": "4"}, "max_sequences is '4' (str)", "int | None"),
    ({"max_tokens": 0}, "max_tokens is 0", "give 1 or more, or None"),
    ({"max_append": 0}, "max_append is 0", "give 1 or more, or None"),
    ({"look_ahead": -1}, "look_ahead is -1", "give 0 or more"),
]


def declaring(capabilities: Capabilities) -> type[OurBlocks]:
    return type("Declares", (OurBlocks,), {"capabilities": capabilities})


@pytest.mark.parametrize(("fields", "problem", "remedy"), WRONG, ids=lambda value: str(value)[:40])
def test_what_cannot_be_is_named(fields: dict[str, Any], problem: str, remedy: str) -> None:
    make = declaring(Capabilities(**fields))
    found = [(what, fix) for what, fix in problems(make()) if problem in what]

    assert found
    assert remedy in found[0][1]
    with pytest.raises(AdapterError, match="Remedy: "):
        new_target(make)


def test_an_engine_declares_more() -> None:
    capabilities = EngineCapabilities(max_batch_rows=(0, 4), max_in_flight=0)

    assert [what for what, _ in problems(declaring(capabilities)())] == [
        "max_in_flight is 0",
        "max_batch_rows is (0, 4)",
    ]


def test_one_wrong_declaration_does_not_hide_behind_a_sound_one() -> None:
    """Declarations that were seen to be sound are not looked at again; others are."""
    new_target(OurBlocks)
    with pytest.raises(AdapterError, match="max_tokens is 0"):
        new_target(declaring(Capabilities(max_tokens=0)))
    new_target(OurBlocks)


@pytest.mark.parametrize("name", ["ours", "ours-engine", "cache-ours"])
def test_what_our_own_targets_declare_can_be(name: str) -> None:
    assert problems(load(name).make()) == []


class Reads:
    """An attention target without a level and without a name."""

    capabilities = AttentionCapabilities()

    def decode(self, pool: object, batch: object) -> None:
        """Never called."""


NAMED = type("Reads", (Reads,), {"level": "attention", "name": "reads"})


@pytest.mark.parametrize(
    ("make", "problem", "remedy"),
    [
        (Reads, "capabilities is AttentionCapabilities", 'add level = "attention" to the class'),
        (type("Reads", (Reads,), {"level": "attention"}), "Reads has no name", 'add name = "reads" to the class'),
        (declaring(EngineCapabilities()), "capabilities is EngineCapabilities, and level is 'blocks'", "or level = "),
        (
            type("Runs", (), {"capabilities": EngineCapabilities()}),
            "capabilities is EngineCapabilities",
            'add level = "engine" to the class',
        ),
    ],
)
def test_a_level_or_name_that_was_forgotten_is_what_is_named(make: type[Any], problem: str, remedy: str) -> None:
    level = getattr(make, "level", None) or "blocks"

    assert next(what for what, _ in static_problems(make(), level)) == problem
    with pytest.raises(AdapterError) as error:
        new_target(make)
    assert error.value.problem == problem
    assert remedy in error.value.remedy


def test_what_has_its_level_and_name_is_sound() -> None:
    assert static_problems(NAMED(), "attention") == []
    new_target(NAMED)


def test_a_function_must_have_the_level_of_what_it_makes() -> None:
    assert level_problem(NAMED(), "attention") is None
    assert static_problems(NAMED(), "blocks") == [level_problem(NAMED(), "blocks")]
    assert 'make.level = "attention"' in str(level_problem(NAMED(), "blocks"))
