"""Judges of a system at its start and its end: fresh after `open`, the memory arithmetic, empty after everything is freed."""

from __future__ import annotations

from weakref import WeakSet

from paged_ref.memory import kv_bytes_per_block
from properties.blocks.probe import Probe
from properties.blocks.state import State
from properties.contract import AdapterError

RESET = "build a new implementation in open() and reset its class-level globals"
"""The remedy for what an earlier case has left."""
NOT_THE_ADAPTER = (
    "If it is the implementation that keeps it (a class attribute, a default argument, a module-level dict or free list), the "
    "fault is there: two of them in one process would share it"
)
"""Said of state that an earlier case has left, since it cannot be seen who keeps it."""
LEFT = f"if an earlier case has left it, {RESET}. {NOT_THE_ADAPTER}"
"""For what may be left from an earlier case, or plainly wrong."""
_HINT = ". If "
"""How the sentence begins that says which declaration would make a state of the pool right."""
_fresh: WeakSet[type] = WeakSet()
"""Adapter classes that gave a fresh system in some `open` of this process."""


def judge_fresh_system(state: State, adapter: type) -> None:
    """Right after `open` the pool is empty; anything else is state left from an earlier case. Raises `AdapterError`.

    Where an earlier `open` gave a fresh one no declaration would help, and none is named.
    """
    if not state.breaches and not state.cached:
        _fresh.add(adapter)
        return
    problem = state.breaches[0].message if state.breaches else f"blocks {sorted(state.cached or ())} are cached"
    if adapter not in _fresh:
        raise AdapterError(f"right after open() the system is not fresh: {problem}", RESET)
    left = f"{problem.partition(_HINT)[0]}. It was fresh for an earlier case, which has left something behind"
    raise AdapterError(f"right after open() the system is not fresh: {left}", f"{RESET}. {NOT_THE_ADAPTER}")


_MODELS = ((32, 32, 128, 2), (28, 8, 128, 2), (3, 5, 96, 4))
"""Layers, KV heads, head size, bytes an element: LLaMA-2-7B, Qwen3-0.6B, and one where every factor is odd."""


def judge_memory(state: State, probe: Probe) -> None:
    """MEM-1, where the target says how large a block is."""
    if "block_bytes" not in probe.offers:
        return
    for layers, heads, dim, itemsize in _MODELS:
        state.judged["MEM-1"] += 1
        expected = kv_bytes_per_block(state.block_size, layers, heads, dim, itemsize)
        found = probe.number("block_bytes", layers, heads, dim, itemsize)
        if found != expected:
            state.report(
                "MEM-1",
                f"a block of {state.block_size} tokens, {layers} layers, {heads} KV heads of {dim}, {itemsize} bytes an "
                f"element, takes {expected} bytes (K and V), but the target says {found}. "
                "If there is more in a block, by design, leave block_bytes out of the adapter",
            )


def judge_empty(state: State) -> None:
    """Everything was freed: is every usable block free or cached?"""
    state.judged["ALLOC-5"] += 1
    if state.free is None:
        return
    missing = sorted(state.usable - set(state.free) - (state.cached or frozenset()))
    if missing:
        state.report("ALLOC-5", f"after everything was freed, blocks {missing} are neither free nor cached: lost")
