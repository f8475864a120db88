"""The attention level, as campaigns and `pytest properties` see it."""

from properties.attention.capabilities import AttentionCapabilities
from properties.attention.cases import AttentionSetting, CopyCase, Done, ReadCase, StoreCase
from properties.attention.coverage import applicable, marks, offered
from properties.attention.generate import CASES_PER_TRACE, AttentionMaker, choose_geometry
from properties.attention.shrink import shrink
from properties.levels import LevelSpec, Referee


def accepts(capabilities: AttentionCapabilities, setting: AttentionSetting) -> bool:
    """Whether a target runs where a trace ran."""
    return setting.device in capabilities.devices


def _referee(target: object, setting: AttentionSetting) -> Referee:
    from properties.attention.referee import AttentionReferee  # needs torch

    return AttentionReferee(target, setting)  # type: ignore[arg-type]


def _second_call(operation: object, capabilities: AttentionCapabilities) -> ReadCase | None:
    from properties.attention.variations import second_call  # needs torch

    return second_call(operation, capabilities) if isinstance(operation, ReadCase) else None


LIMIT_S = 120.0
"""Seconds for a trace: an interpreted call takes a tenth, on a busy machine several, and a finding needs a dozen calls."""

SPEC = LevelSpec(
    level="attention",
    referee=_referee,
    choose_geometry=choose_geometry,
    maker=AttentionMaker,
    closing=Done(),
    operation=ReadCase | StoreCase | CopyCase | Done,
    geometry=AttentionSetting,
    applicable=applicable,
    marks=marks,
    shrink=shrink,
    offered=offered,
    accepts=accepts,
    num_steps=CASES_PER_TRACE + 1,
    limit_s=LIMIT_S,
    joins=True,
    second_call=_second_call,
)
