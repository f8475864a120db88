"""Which spec drives which level. A level is imported when it is asked for: bookkeeping must not bring torch along."""

from __future__ import annotations

from importlib import import_module

from properties.contract import Level
from properties.levels import LevelSpec


def spec_of(level: Level) -> LevelSpec:
    """The spec of a level: `SPEC` of `properties.LEVEL.spec`."""
    spec = import_module(f"properties.{level}.spec").SPEC
    assert isinstance(spec, LevelSpec)
    return spec
