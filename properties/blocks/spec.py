"""The blocks level, as campaigns and machines see it."""

from __future__ import annotations

from properties.blocks.coverage import applicable, marks
from properties.blocks.generate import OperationMaker, accepts, choose_geometry
from properties.blocks.legality import why_illegal
from properties.blocks.operations import BlocksOperation, Drain, Geometry
from properties.blocks.referee import BlocksReferee
from properties.blocks.shrink import shrink
from properties.levels import LevelSpec
from properties.protocol import offered

SPEC = LevelSpec(
    level="blocks",
    referee=BlocksReferee,
    choose_geometry=choose_geometry,
    maker=OperationMaker,
    closing=Drain(),
    operation=BlocksOperation,
    geometry=Geometry,
    applicable=applicable,
    marks=marks,
    shrink=shrink,
    offered=offered,
    accepts=accepts,
    why_illegal=why_illegal,
)
