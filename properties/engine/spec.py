"""The engine level, as campaigns and machines see it."""

from __future__ import annotations

from properties.engine.coverage import applicable, marks
from properties.engine.generate import EngineOperationMaker, choose_geometry
from properties.engine.legality import why_illegal
from properties.engine.operations import DriveToIdle, EngineGeometry, EngineOperation
from properties.engine.protocol import EngineCapabilities, offered
from properties.engine.referee import EngineReferee
from properties.engine.shrink import shrink
from properties.levels import LevelSpec


def accepts(capabilities: EngineCapabilities, geometry: EngineGeometry) -> bool:
    """Whether a target takes a geometry that was not drawn for it."""
    least, most = capabilities.num_blocks
    fewest, rows = capabilities.max_batch_rows
    return (
        geometry.block_size in capabilities.block_sizes
        and least <= geometry.num_blocks <= most
        and fewest <= geometry.max_rows <= rows
        and geometry.max_rows <= geometry.max_tokens_per_step
        and geometry.max_in_flight <= capabilities.max_in_flight
        and (capabilities.swaps or not geometry.num_host_blocks)
        and (capabilities.weak_hash or geometry.hash_bits is None)
        and (capabilities.window or geometry.window is None)
    )


SPEC = LevelSpec(
    level="engine",
    referee=EngineReferee,
    choose_geometry=choose_geometry,
    maker=EngineOperationMaker,
    closing=DriveToIdle(),
    operation=EngineOperation,
    geometry=EngineGeometry,
    applicable=applicable,
    marks=marks,
    shrink=shrink,
    offered=offered,
    accepts=accepts,
    why_illegal=why_illegal,
)
