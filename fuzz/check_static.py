"""What is wrong with an adapter that can be seen without calling it: methods, their arguments, declarations."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from properties.declared import Problem, level_problem, name_problem
from properties.declared import problems as declared_problems
from properties.protocol import OPTIONAL, REQUIRED, Capabilities

_ARGUMENTS: dict[str, int] = {
    "open": 1,
    "admit": 2,
    "append": 2,
    "free": 1,
    "slots": 1,
    "lookup": 1,
    "allocate": 2,
    "computed": 2,
    "fork": 2,
    "copies": 0,
    "truncate": 2,
    "swap_out": 1,
    "swap_in": 1,
    "table": 1,
    "ref_count": 1,
    "free_blocks": 0,
    "cached_blocks": 0,
    "read_slots": 1,
    "can_admit": 1,
    "can_append": 2,
    "predict_admit": 1,
    "predict_append": 2,
    "block_bytes": 4,
    "close": 0,
}
"""How many positional arguments each method is called with."""
_ENGINE_ARGUMENTS: dict[str, int] = {
    "open": 1,
    "submit": 3,
    "step": 0,
    "slots": 1,
    "finish": 2,
    "live": 0,
    "cancel": 1,
    "batch": 1,
    "table": 1,
    "ref_count": 1,
    "free_blocks": 0,
    "cached_blocks": 0,
    "close": 0,
}
_SALTED = ("admit", "lookup", "allocate", "can_admit", "predict_admit", "submit")


@dataclass(frozen=True)
class _Level:
    """The methods of a level, with its article: what is required, what is optional, how many arguments each is called with."""

    name: str
    required: tuple[str, ...]
    optional: Mapping[str, str]
    arguments: Mapping[str, int]
    where: str

    def missing(self, adapter: Any) -> list[str]:
        return [name for name in self.required if not callable(getattr(adapter, name, None))]

    def there(self, adapter: Any) -> list[str]:
        found = [*self.required, *sorted(self.optional)]
        return [name for name in found if callable(getattr(adapter, name, None))]


def _level_of(level: str) -> _Level:
    if level == "cache":
        from properties.cache import protocol as cache

        return _Level("a cache", cache.REQUIRED, cache.OPTIONAL, {}, "see CacheTarget in properties/cache/protocol.py")
    if level == "engine":
        from properties.engine import protocol as engine

        where = "see EngineTarget in properties/engine/protocol.py"
        return _Level("an engine", engine.REQUIRED, engine.OPTIONAL, _ENGINE_ARGUMENTS, where)
    return _Level("a blocks", REQUIRED, OPTIONAL, _ARGUMENTS, "see BlocksTarget in properties/protocol.py")


def static_problems(adapter: Any, level_name: str) -> list[Problem]:
    """Problems of an adapter that is used at a level, each with its remedy."""
    other = level_problem(adapter, level_name)
    if other is not None:
        return [other]  # what it lacks would be said of the wrong level
    if level_name == "attention":
        return _of_attention(adapter)
    level = _level_of(level_name)
    problems: list[Problem] = [
        (
            f"{type(adapter).__name__} has no method {name}",
            f"{level.name} target needs {', '.join(level.required)}",
        )
        for name in level.missing(adapter)
    ]
    problems += _misspelt(adapter, level)
    declared = declared_problems(adapter)
    caps = getattr(adapter, "capabilities", None)
    if isinstance(caps, Capabilities):
        problems += _arguments(adapter, caps, level)
    return [*problems, *declared]


def _of_attention(adapter: Any) -> list[Problem]:
    from properties.attention.capabilities import AttentionCapabilities
    from properties.attention.coverage import offered

    found = [problem for problem in [name_problem(adapter)] if problem is not None]
    caps = getattr(adapter, "capabilities", None)
    if not isinstance(caps, AttentionCapabilities):
        what = f"{type(adapter).__name__}.capabilities is {type(caps).__name__}"
        remedy = "set `capabilities = AttentionCapabilities(...)` from properties.attention.capabilities"
        found.append((what, remedy))
    if not offered(adapter):
        what = f"{type(adapter).__name__} has none of the methods store, decode, prefill, copy_blocks"
        found.append((what, "offer what is there: see AttentionTarget in properties/attention/target.py"))
    return found


def _misspelt(adapter: Any, level: _Level) -> list[Problem]:
    """A public method whose name is nearly that of an optional one was probably meant to be it."""
    known = {*level.required, *level.optional}
    public = [name for name in dir(adapter) if not name.startswith("_") and callable(getattr(adapter, name, None))]
    found = []
    for name in public:
        near = get_close_matches(name, known - set(public), n=1, cutoff=0.85)
        if name not in known and near:
            found.append(
                (f"the method {name} is never called", f"is it {near[0]}? Rename it, or give it a leading underscore")
            )
    return found


def _arguments(adapter: Any, caps: Capabilities, level: _Level) -> list[Problem]:
    found = []
    for name in level.there(adapter):
        if name not in level.arguments:
            continue
        keywords = {"salt": None} if caps.salts and name in _SALTED else {}
        try:
            inspect.signature(getattr(adapter, name)).bind(*[None] * level.arguments[name], **keywords)
        except TypeError as error:
            salt = " and salt=" if keywords else ""
            what = f"{name} cannot be called with {level.arguments[name]} arguments{salt}: {error}"
            found.append((what, level.optional.get(name, level.where)))
        except ValueError:
            pass  # a builtin without a signature
    return found
