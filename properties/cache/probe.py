"""Typed access to a cache adapter: the probe of blocks targets, with the methods that a cache must have."""

from __future__ import annotations

from typing import Any

from properties.blocks.probe import Probe
from properties.cache.protocol import REQUIRED, CacheCapabilities, missing, offered
from properties.contract import AdapterError
from properties.protocol import Copy


class _WithComposites:
    """A cache target as the blocks probe wants it: with the composite forms, which a cache is never asked for."""

    def __init__(self, target: Any) -> None:
        self._target = target

    def admit(self) -> None: ...

    def append(self) -> None: ...

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)


class CacheProbe(Probe):
    """`latest_copies` are those that the last call of `copies` reported."""

    def __init__(self, target: Any) -> None:
        lacks = missing(target)
        if lacks:
            raise AdapterError(
                f"{type(target).__name__} lacks {', '.join(lacks)}",
                f"a cache target needs {', '.join(REQUIRED)}: see properties/cache/protocol.py",
            )
        if not isinstance(getattr(target, "capabilities", None), CacheCapabilities):
            raise AdapterError(
                f"{type(target).__name__}.capabilities is {type(target.capabilities).__name__}",
                "set `capabilities = CacheCapabilities(...)` from properties.cache.protocol on the class",
            )
        super().__init__(_WithComposites(target))
        self.target = target
        self.offers = offered(target)
        if "fork" in self.offers and "copies" not in self.offers:
            raise AdapterError(
                f"{type(target).__name__} offers fork without copies: a copy on write that is not reported looks like lost KV",
                "offer copies() -> [Copy(src, dst), ...], the block copies performed since the last call (an empty list where "
                "there were none), or leave fork out",
            )
        self.latest_copies: list[Copy] = []
        if not hasattr(target, "name"):
            target.name = type(target).__name__  # findings name the target

    def copies(self) -> list[Copy]:
        self.latest_copies = super().copies()
        return self.latest_copies
