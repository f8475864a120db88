"""Declarations that cannot be: of another level or type, out of range, or against each other. Seen before a target is used."""

from __future__ import annotations

from collections.abc import Iterator, Set
from typing import Any

import msgspec

from properties.blame import shown
from properties.contract import CLAUSES
from properties.protocol import Capabilities

Problem = tuple[str, str]
"""What is wrong, and what to change."""

MOST_TOKENS = 1 << 24
"""Tokens of the smallest pool with the smallest block that can be judged: each takes about a hundred bytes."""


_LEVELS = {
    "Capabilities": "blocks",
    "EngineCapabilities": "engine",
    "AttentionCapabilities": "attention",
    "CacheCapabilities": "cache",
}
"""The level whose targets declare each kind of capabilities. By name: two of them need torch."""


def level_problem(adapter: Any, level: str | None = None) -> Problem | None:
    """What is wrong where the capabilities are those of another level; `level` is the adapter's own where it is not given."""
    kind = type(getattr(adapter, "capabilities", None))
    own = getattr(adapter, "level", None)
    level = level or own or "blocks"
    meant = _LEVELS.get(kind.__name__) if kind.__module__.startswith("properties.") else None
    if meant is None or meant == level:
        return None
    if own == meant:
        what = f"{type(adapter).__name__} is of level {own}, and what makes it says {level}"
        return what, f'name the class, or give the function that makes it the level: make.level = "{meant}"'
    what = f"capabilities is {kind.__name__}"
    if own is None:
        return what, f'add level = "{meant}" to the class'
    right = next(name for name, of in _LEVELS.items() if of == level)
    return f"{what}, and level is {level!r}", f'declare {right}, or level = "{meant}"'


def name_problem(adapter: Any) -> Problem | None:
    """An attention target has a name, which messages call it by."""
    if getattr(adapter, "level", None) != "attention" or isinstance(getattr(adapter, "name", None), str):
        return None
    kind = type(adapter).__name__
    return f"{kind} has no name", f'add name = "{kind.lower()}" to the class: messages call it by that'


def problems(adapter: Any) -> list[Problem]:
    """What is wrong with the capabilities of an adapter, each with its remedy."""
    caps = getattr(adapter, "capabilities", None)
    if not isinstance(caps, Capabilities):
        what = f"{type(adapter).__name__}.capabilities is {type(caps).__name__}"
        return [(what, "set `capabilities = Capabilities(...)` from properties.protocol")]
    wrong = list(_types(caps))
    return wrong or [*_sizes(caps), *_limits(caps), *_refusals(caps), *_promises(caps)]


def _types(caps: Capabilities) -> Iterator[Problem]:
    """msgspec checks no types of what Python code constructs: `block_sizes=16` arrives as it is."""
    for field in msgspec.structs.fields(caps):
        value = getattr(caps, field.encode_name)
        if field.name == "refusals":
            right = isinstance(value, tuple) and all(isinstance(item, type) for item in value)
            right = right and all(issubclass(item, BaseException) for item in value)
            if not right:
                remedy = "give a tuple of exception classes: refusals=(OutOfBlocks,)"
                yield f"refusals is {shown(value)} ({type(value).__name__})", remedy
            continue
        try:
            read = msgspec.convert(value, field.type)
            right = not isinstance(read, frozenset) or isinstance(value, Set)  # of a list there is no `&`
        except (msgspec.ValidationError, TypeError):
            right = False
        if not right:
            kind = field.type.__name__ if isinstance(field.type, type) else str(field.type)
            remedy = f"it must be {kind.replace('typing.', '').replace('Optional', 'None or ')}"
            yield f"{field.name} is {shown(value)} ({type(value).__name__})", remedy


def _sizes(caps: Capabilities) -> Iterator[Problem]:
    sizes, (least, most) = caps.block_sizes, caps.num_blocks
    smallest = min(sizes, default=0)
    if smallest < 1:
        yield f"block_sizes is {sizes}", "name at least one size of 1 token or more"
    if not 1 <= least <= most:
        yield f"num_blocks is {caps.num_blocks}", "give the smallest and the largest pool, 1 or more"
        return
    if len(caps.reserved_blocks) >= most:
        yield f"{len(caps.reserved_blocks)} reserved blocks fill the largest pool of {most}", "raise num_blocks"
    if least * smallest > MOST_TOKENS:
        what = f"the smallest pool, {least} blocks of {smallest}, has {least * smallest:,} tokens"
        yield what, f"accept pools of at most {MOST_TOKENS:,} tokens: small ones find more"
    wrong = [block for block in caps.reserved_blocks if not 0 <= block < least]
    if wrong:
        what = f"reserved block {wrong[0]} is not in the smallest pool, blocks 0 to {least - 1}"
        yield what, f"raise the least of num_blocks to {wrong[0] + 1 if wrong[0] > 0 else 1}, or leave it out"


_LEAST = {
    "max_sequences": 1,
    "max_tokens": 1,
    "max_append": 1,
    "look_ahead": 0,
    "watermark_blocks": 0,
    "max_in_flight": 1,
    "max_idle_steps": 1,
}


def _limits(caps: Capabilities) -> Iterator[Problem]:
    for name, least in _LEAST.items():
        value = getattr(caps, name, None)
        if value is not None and value < least:
            yield f"{name} is {value}", f"give {least} or more" + (", or None" if name.startswith("max_") else "")
    if hasattr(caps, "max_batch_rows") and caps.max_tokens == 1:
        yield "max_tokens is 1", "a request has a prompt and a new token: give 2 or more, or None"
    if caps.watermark_blocks + len(caps.reserved_blocks) >= caps.num_blocks[1]:
        yield (
            f"watermark_blocks is {caps.watermark_blocks} and the largest pool {caps.num_blocks[1]}",
            "raise num_blocks",
        )
    fewest, rows = getattr(caps, "max_batch_rows", (1, 1))
    if not 1 <= fewest <= rows:
        yield f"max_batch_rows is {(fewest, rows)}", "give the smallest and the largest number of rows, 1 or more"


def _refusals(caps: Capabilities) -> Iterator[Problem]:
    if any(item in (Exception, BaseException) for item in caps.refusals):
        what = "refusals holds Exception: every crash would pass for a refusal"
        yield what, "list the one class that means 'no room'"


def _promises(caps: Capabilities) -> Iterator[Problem]:
    unknown = sorted(id for id in caps.promises if id not in CLAUSES or CLAUSES[id].rank != "promise")
    if unknown:
        promises = ", ".join(id for id in CLAUSES if CLAUSES[id].rank == "promise")
        yield f"{', '.join(unknown)} is no promise", f"promises are {promises}"
    if "EVICT-2P" in caps.promises and caps.eviction is None:
        yield "EVICT-2P is promised and eviction=None is declared: no order", 'declare eviction="released"'
