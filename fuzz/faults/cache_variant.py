"""What the planted faults of caches are made of: `PagedKVCache` with a method of its own."""

from __future__ import annotations

from collections.abc import Callable

from fuzz.faults import Fault
from paged_impl.cache import PagedKVCache
from properties.targets.cache_ours import OurCache


class Broken(PagedKVCache):
    """Base of the variants."""


class VariantTarget(OurCache):
    """Our cache target with a variant in place of the cache. `clue`: words that the explanation must contain."""

    variant: type[Broken]
    clue: str = ""

    def cache_class(self) -> type[PagedKVCache]:
        return self.variant


def planter(found: list[Fault]) -> Callable[..., Callable[[type[Broken]], type[Broken]]]:
    """A decorator that registers a variant as a fault. The id is "cache" and the class name in words."""

    def plant(catches: str, source: str, clue: str = "") -> Callable[[type[Broken]], type[Broken]]:
        def register(cls: type[Broken]) -> type[Broken]:
            id = "cache" + "".join("-" + c.lower() if c.isupper() else c for c in cls.__name__)
            members = {"variant": cls, "clue": clue, "__doc__": cls.__doc__}
            found.append(Fault(id, catches, "cache", source, type(cls.__name__, (VariantTarget,), members)))
            return cls

        return register

    return plant
