"""Geometries and operations of cache traces: those of the blocks level, small tensors, and steps over several sequences."""

from __future__ import annotations

from typing import Any

import msgspec

from properties.attention.capabilities import Poison
from properties.blocks import generate as blocks
from properties.blocks.operations import Operation
from properties.blocks.state import State
from properties.cache.legality import why_illegal
from properties.cache.operations import BatchStep, CacheGeometry
from properties.cache.protocol import CacheCapabilities
from properties.levels import Below

WEIGHT_OF_BATCHES = 8
MOST_ROWS = 4


def choose_geometry(below: Below, capabilities: CacheCapabilities, offers: frozenset[str]) -> CacheGeometry:
    """A geometry that the target accepts. The device is the first that it declares: it is chosen, not drawn."""
    base = blocks.choose_geometry(below, capabilities, offers)

    def one(values: tuple[Any, ...]) -> Any:
        return values[below(len(values))]

    heads, ratio, head_size, dtype = (
        one(capabilities.shapes)
        if capabilities.shapes
        else map(one, (capabilities.kv_heads, capabilities.ratios, capabilities.head_sizes, capabilities.dtypes))
    )
    poison: tuple[Poison, ...] = capabilities.withstands or ("zero",)
    fields = {**msgspec.structs.asdict(base), "num_sinks": 0}  # attention that reads sinks is an engine's
    return CacheGeometry(
        **fields,
        num_layers=one(capabilities.num_layers),
        num_kv_heads=heads,
        ratio=ratio,
        head_size=head_size,
        dtype=dtype,
        device=capabilities.devices[0],
        seed=below(1 << 16),
        poison_k=poison[0] if below(2) == 0 else one(poison),
        poison_v=poison[0] if below(2) == 0 else one(poison),
        strided=capabilities.strided and below(2) == 1,
    )


def accepts(capabilities: CacheCapabilities, geometry: CacheGeometry) -> bool:
    """Whether a target takes a geometry that was not drawn for it."""
    poisons = {*capabilities.withstands, "zero"}
    shape = (geometry.num_kv_heads, geometry.ratio, geometry.head_size, geometry.dtype)
    if capabilities.shapes and shape not in capabilities.shapes:
        return False
    return (
        blocks.accepts(capabilities, geometry)
        and geometry.num_sinks == 0
        and geometry.num_layers in capabilities.num_layers
        and geometry.num_kv_heads in capabilities.kv_heads
        and geometry.ratio in capabilities.ratios
        and geometry.head_size in capabilities.head_sizes
        and geometry.dtype in capabilities.dtypes
        and geometry.device in capabilities.devices
        and {geometry.poison_k, geometry.poison_v} <= poisons
        and (capabilities.strided or not geometry.strided)
    )


class CacheOperationMaker(blocks.OperationMaker):
    """Makes operations of each kind for the state at hand."""

    def __init__(
        self, below: Below, geometry: CacheGeometry, capabilities: CacheCapabilities, offers: frozenset[str]
    ) -> None:
        super().__init__(below, geometry, capabilities, offers)
        self._pads = capabilities.pads
        self.kinds = [*self.kinds, BatchStep]
        self.wheel += [BatchStep] * WEIGHT_OF_BATCHES

    def swarm(self) -> None:
        self.kinds.remove(BatchStep)  # its weight is known here alone
        super().swarm()
        self.kinds.append(BatchStep)
        self.wheel += [BatchStep] * (WEIGHT_OF_BATCHES * (1, 1, 2, 0)[self.below(4)])

    def next(self, state: State) -> Operation:
        wheel, below = self.wheel, self.below
        for _ in range(6):
            operation = self.make(wheel[below(len(wheel))], state)
            if operation is not None:
                return operation
        self.wheel = [kind for kind in wheel if kind is not BatchStep] or wheel
        try:
            return super().next(state)
        finally:
            self.wheel = wheel

    def make(self, kind: type[Operation], state: State) -> Operation | None:
        return self.batch(state) if kind is BatchStep else super().make(kind, state)

    def batch(self, state: State) -> Operation | None:
        """Some of the live sequences in any order, one token each, or now and then a few."""
        below = self.below
        names = list(state.live)
        relatives = [name for name in names if len(state.live[name].family) > 1]
        if relatives and below(2) == 1:  # sides of a fork that write next to each other: copies are due
            names = relatives
        count = min(len(names), 1 + below(MOST_ROWS))
        chosen = []
        for _ in range(count):
            chosen.append(names.pop(below(len(names))))
        decode = below(2) == 0
        runs = tuple(self._run(state, name, decode) for name in chosen)
        padding = 1 + below(3) if self._pads and below(3) == 0 else 0
        operation = BatchStep(tuple(chosen), runs, padding)
        return operation if why_illegal(state, operation) is None else None

    def _run(self, state: State, name: str, decode: bool) -> tuple[int, ...]:
        most = self.capabilities.max_append or self.geometry.block_size + 2
        return self._tokens(1 if decode else 1 + self.below(most))
