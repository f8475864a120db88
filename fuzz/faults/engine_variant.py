"""What the planted faults of engines are made of: our engine with some of its parts exchanged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fuzz.faults import Fault
from properties.engine.operations import EngineGeometry
from properties.targets.engine_ours import OurEngine


class Variant(OurEngine):
    """Our engine, and `seed`, which puts a fault into it."""

    def open(self, config: EngineGeometry) -> None:
        super().open(config)
        self.scheduler: Any = self.engine.scheduler
        self.manager: Any = self.engine.manager
        self.batches: Any = self.engine.batches
        self.seed()

    def seed(self) -> None:
        """Put the fault in."""


def exchange(part: object, cls: type) -> None:
    """Let an object go on as one of another class, with all that it has."""
    part.__class__ = cls


def planter(found: list[Fault]) -> Callable[[str, str], Callable[[type[Variant]], type[Variant]]]:
    """A decorator that registers a variant as a fault. The id is the class name in words."""

    def plant(catches: str, source: str) -> Callable[[type[Variant]], type[Variant]]:
        def register(cls: type[Variant]) -> type[Variant]:
            id = "".join("-" + c.lower() if c.isupper() else c for c in cls.__name__).strip("-")
            found.append(Fault(id, catches, "engine", source, cls))
            return cls

        return register

    return plant
