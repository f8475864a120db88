"""Typed access to a cache adapter: the probe of blocks targets, with the methods that a cache must have."""

from __future__ import annotations

from typing import Any

from properties.blocks.probe import Probe
from properties.cache.protocol import REQUIRED, CacheCapabilities, missing, offered
from properties.contract import AdapterError
from properties.protocol import Copy


class CacheProbe(Probe):
    """`latest_copies` are those that the last call of `copies` reported."""

    def __init__(self, target: Any) -> None:
        self.target = target
        self.latest_copies: list[Copy] = []
        lacks = missing(target)
        if lacks:
            raise AdapterError(
                f"{type(target).__name__} lacks {', '.join(lacks)}",
                f"a cache target needs {', '.join(REQUIRED)}: see properties/cache/protocol.py",
            )
        capabilities = getattr(target, "capabilities", None)
        if not isinstance(capabilities, CacheCapabilities):
            raise AdapterError(
                f"{type(target).__name__}.capabilities is {type(capabilities).__name__}",
                "set `capabilities = CacheCapabilities(...)` from properties.cache.protocol on the class",
            )
        self.capabilities = capabilities
        self.offers = offered(target)
        self.refusals = capabilities.refusals
        if not hasattr(target, "name"):
            target.name = type(target).__name__  # findings name the target

    def copies(self) -> list[Copy]:
        self.latest_copies = super().copies()
        return self.latest_copies
