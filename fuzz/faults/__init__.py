"""Planted faults: variants of our own implementation, each with one bug known from the field.

They are the negative controls: for every clause there is a fault that it catches, or the clause could not fail.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from properties.contract import Level
from properties.targets import Target


@dataclass(frozen=True)
class Fault:
    """One planted fault: the clause that must catch it, where the field had it, and what makes the broken target."""

    id: str
    catches: str
    level: Level
    source: str
    make: Callable[[], Any]

    def target(self) -> Target:
        """The broken variant, as a target of its own name."""
        return Target(f"fault:{self.id}", self.level, self.make)


def all_faults() -> dict[str, Fault]:
    """Every planted fault by its id; those of caches where torch is installed."""
    from fuzz.faults import (
        blocks_content,
        blocks_pool,
        engine_batch,
        engine_fork,
        engine_manager,
        engine_scheduler,
        engine_window,
    )

    modules = [blocks_pool, blocks_content, engine_batch, engine_scheduler, engine_manager, engine_window, engine_fork]
    if find_spec("torch") is not None:
        from fuzz.faults import cache_reads, cache_writes

        modules += [cache_writes, cache_reads]
    found = [fault for module in modules for fault in module.FAULTS]
    by_id = {fault.id: fault for fault in found}
    assert len(by_id) == len(found), "two planted faults have one id: the second would hide the first"
    return by_id
