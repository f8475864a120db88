"""How a variant of the block manager, or of its adapter, becomes a planted fault."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from fuzz.faults import Fault
from paged_impl.block_manager import BlockManager
from properties.targets.ours import PROMISES, OurBlocks


def planter(found: list[Fault]) -> Callable[..., Callable[[type], type]]:
    """A decorator that registers a manager or an adapter in `found`: `@plant(clause, source, unpromised="")`.

    The id is the class name in words; `unpromised` is a promise that the variant does not declare.
    """

    def plant(catches: str, source: str, unpromised: str = "") -> Callable[[type], type]:
        def register(cls: type) -> type:
            members: dict[str, Any] = {"__doc__": cls.__doc__}
            if unpromised:
                promises = PROMISES - {unpromised}
                members["capabilities"] = msgspec.structs.replace(OurBlocks.capabilities, promises=promises)
            base = cls
            if issubclass(cls, BlockManager):
                base, members["manager_class"] = OurBlocks, cls
            found.append(Fault(_words(cls.__name__), catches, "blocks", source, type(cls.__name__, (base,), members)))
            return cls

        return register

    return plant


def _words(class_name: str) -> str:
    return "".join("-" + letter.lower() if letter.isupper() else letter for letter in class_name).strip("-")
