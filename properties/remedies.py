"""What to change where a run never reached a state that the target's declarations say it can reach. Imports nothing."""

from __future__ import annotations

MARKS: dict[str, str] = {
    "a refusal": "pools are filled on purpose: raise one of capabilities.refusals where there is no room (oversized=None "
    "where an engine refuses nothing)",
    "a freed block was reused": "pools are tiny: does free() give the blocks back?",
    "a prefix hit": "declare prefix_cache=False, or return from admit how many leading tokens hit (an engine: start a row "
    "behind them)",
    "a full hit": "prompts are repeated on purpose: return from admit every leading token that hit",
    "a cached block was evicted": "blocks that cached_blocks() names are never handed out again: leave cached_blocks out "
    "where nothing is evicted",
    "a fork": "every fork was refused, or raised: leave fork out where it is not supported",
    "a copy on write": "copies() never named a copy: report each copy, or leave copies out where none is ever made",
    "a truncation": "every truncation was refused: leave truncate out where it is not supported",
    "a swap to host memory": "every swap was refused, or none was reported by copies: leave the swaps out",
    "allocated, not yet computed": "every allocate was refused",
    "freed before it was computed": "no split admission was ended early",
    "a free of an unknown name": "declare unknown_free=None where it is undefined",
    "a preempted sequence came back": "no sequence was admitted again after a preemption",
    "a window released a block": "declare window=False where slots are never given back",
    "a shared block was copied": "a fork shares blocks: is the copy of a block that is not full reported by step?",
    "a preempted request came back": "pools are filled on purpose: is a request ever preempted and scheduled again? If "
    "each has all it needs before it starts, declare preempts=False",
    "a chunked prefill": "declare chunked_prefill=False where a prompt is never split over steps",
    "a cancel": "leave cancel out where it is not supported",
    "a duplicate was refused": "declare duplicates=None where a name may be used twice",
    "several steps in flight": "declare max_in_flight=1 where a step ends before the next",
    "a step finished out of order": "declare any_finish_order=False",
    "a request came back from host memory": "declare swaps=False where nothing is swapped",
}
"""State -> what the adapter may change, if more time does not help."""


def may_mean_no_room(level: str, crash: str) -> bool:
    """Whether what a CRASH-1 says, of a target that must refuse and never did, may be a refusal that is not declared.

    Of an engine only `submit` may refuse. Kernels decline shapes, and declare so without being asked.
    """
    return level in ("blocks", "cache") or (level == "engine" and crash.startswith("submit"))


def of_mark(mark: str) -> str:
    """What to change where that state is never reached, with more time besides; "" where time alone helps."""
    return MARKS.get(mark, "")
