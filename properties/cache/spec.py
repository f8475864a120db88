"""The cache level, as campaigns and machines see it."""

from __future__ import annotations

from typing import Any

from properties.blocks.operations import Drain
from properties.cache.coverage import applicable, marks
from properties.cache.generate import CacheOperationMaker, accepts, choose_geometry
from properties.cache.legality import why_illegal
from properties.cache.operations import CacheGeometry, CacheOperation
from properties.cache.protocol import offered
from properties.cache.shrink import shrink
from properties.levels import LevelSpec, Referee

STEPS_PER_TRACE = 40
LIMIT_S = 120.0
"""Interpreted kernels take tens of milliseconds a call, and on a GPU the first call of a shape compiles: neither is a hang."""


def _referee(target: Any, geometry: CacheGeometry) -> Referee:
    from properties.cache.referee import CacheReferee  # needs torch

    return CacheReferee(target, geometry)


SPEC = LevelSpec(
    level="cache",
    referee=_referee,
    choose_geometry=choose_geometry,
    maker=CacheOperationMaker,
    closing=Drain(),
    operation=CacheOperation,
    geometry=CacheGeometry,
    applicable=applicable,
    marks=marks,
    shrink=shrink,
    offered=offered,
    accepts=accepts,
    why_illegal=why_illegal,
    num_steps=STEPS_PER_TRACE,
    limit_s=LIMIT_S,
)
