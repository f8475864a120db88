"""The tensor side of the bench: what the referee writes, copies and poisons, and whether every byte is as it must be."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from paged_ref.ownership import LiveSequence
from properties.attention.buffers import PoolMemory
from properties.attention.execute import Fault, Refused, execute, uninitialised_memory_filled
from properties.attention.guarding import guard
from properties.attention.guarding.ownership import owner_of
from properties.attention.guarding.protection import Protected, reading, writing
from properties.blocks.probe import Crashed, Probe
from properties.blocks.state import State
from properties.cache.mirror import Mirror, contents_of, fill_slots, only_zeros_came, slots_that_differ
from properties.cache.operations import CacheGeometry
from properties.cache.payload import Payload
from properties.cache.planned import Planned
from properties.cache.pools import KINDS, shown_pools
from properties.cache.protocol import Row
from properties.protocol import Copy
from properties.torch_defaults import keep_ours
from properties.wording import counted

PADDING = 123.0
"""What keys, values and queries of padding tokens hold: no payload and no poison."""
_CLAUSE_OF_FAULT = {"load": "READ-2", "store": "STORE-1", "overflow": "READ-3"}


with uninitialised_memory_filled("cpu"):
    pass  # its first use imports much of torch: not within somebody's time limit


class Faulted(Exception):
    """A kernel touched memory that it must not touch. Reported already; the trace cannot go on."""


class Part(NamedTuple):
    """Positions `[start, stop)` of one sequence, computed or read in one call."""

    seq: LiveSequence
    start: int
    stop: int

    @property
    def row(self) -> Row:
        """The same, as the target is told."""
        return Row(self.seq.name, self.start, self.stop)


class Tensors:
    """The model's tensors beside one target. `pools` is empty where the target does not show them."""

    def __init__(self, probe: Probe, state: State, geometry: CacheGeometry) -> None:
        keep_ours(probe.target)
        self.probe, self.state, self.geometry = probe, state, geometry
        self.payload = Payload(geometry, state.runs)
        self.mirror = Mirror(geometry)
        self.planned = Planned(geometry.num_layers)
        dtype = self.mirror.device.dtype
        self.pools = shown_pools(probe.target, geometry, dtype) if "pools" in probe.offers else []
        self._usable = torch.zeros_like(self.mirror.poisoned)
        for block in state.usable:  # reserved blocks are the target's own: padding may be written there, and read
            self._usable[block * geometry.block_size : (block + 1) * geometry.block_size] = True
        for pool in self.pools:
            fill_slots(pool, self._usable.nonzero().flatten(), self.mirror.poison)

    def call(self, method: str, *arguments: Any) -> Any:
        """Call `write`, `read` or `commit`: guarded where kernels are interpreted, with uninitialised memory filled."""
        target, protected = self.probe.target, self._protected(method, arguments)
        result = execute(target, lambda: getattr(target, method)(*arguments), protected, device=self.geometry.device)
        if isinstance(result, Fault) and result.kind in _CLAUSE_OF_FAULT:
            id = _CLAUSE_OF_FAULT[result.kind]
            self.state.judged[id] += 1
            self.state.report(id, f"{method}({', '.join(map(_short, arguments[:2]))}): {result.message}")
            raise Faulted
        if isinstance(result, Fault | Refused):
            raise Crashed(f"{method}({', '.join(map(_short, arguments[:2]))}): {result.message}")
        return result

    def _protected(self, method: str, arguments: Sequence[Any]) -> tuple[Protected, ...]:
        """What an interpreted kernel may touch of the layer's pool: the slots of the rows, each by its own block table."""
        interpreted = os.environ.get("TRITON_INTERPRET") == "1" and guard.why_unavailable() is None
        if method == "commit" or not self.pools or not interpreted:
            return ()
        layer, rows = arguments[:2]
        memory, size, live = PoolMemory(self.pools[layer], ()), self.state.block_size, self.state.live
        if method == "write":
            return writing(memory, [slot for row in rows for slot in live[row.name].slots[row.start : row.stop]], size)
        owners = [
            owner_of(f"sequence {row.name}", live[row.name].slots[: row.stop], query_len=row.stop - row.start)
            for row in rows
        ]
        strict = self.probe.capabilities.reads_only_owned  # type: ignore[attr-defined]
        return reading(memory, owners, size, strict=strict)

    # ---- inputs

    def inputs(
        self, layer: int, parts: Sequence[Part], padding: int, *, strided: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """(keys, values, queries) of the parts' positions on the target's device; padding tokens hold `PADDING`."""
        runs = [run for part in parts for run in part.seq.runs[part.start : part.stop]]
        fused = self.payload.fused(runs, layer)
        if padding:
            fused = torch.cat([fused, torch.full((padding, *fused.shape[1:]), PADDING, dtype=fused.dtype)])
        keys, values, queries = self.payload.split(fused.to(self.geometry.device))
        return (keys, values, queries) if strided else (keys.contiguous(), values.contiguous(), queries.contiguous())

    # ---- writes

    def write(self, layer: int, parts: Sequence[Part], padding: int) -> None:
        """Let the target store one layer of the parts, and compare every byte of that layer."""
        keys, values, _ = self.inputs(layer, parts, padding, strided=self.geometry.strided)
        self.call("write", layer, [part.row for part in parts], keys, values)
        judged = self.state.judged
        judged["STORE-1"] += bool(self.pools)
        if padding:
            judged["SLOT-3"] += bool(self.pools)
        self._expect_written(layer, parts)
        for kind, slots in self._different([layer]):
            self._report_store(layer, kind, slots, parts, padding)

    def _expect_written(self, layer: int, parts: Sequence[Part]) -> None:
        for part in parts:
            slots = torch.tensor(part.seq.slots[part.start : part.stop])
            keys, values, _ = self.payload.split(self.payload.fused(part.seq.runs[part.start : part.stop], layer))
            self.mirror.written(layer, slots, keys, values)
        self.planned.written(layer)

    def _report_store(self, layer: int, kind: str, slots: list[int], parts: Sequence[Part], padding: int) -> None:
        listed = {part.seq.slots[p]: part.seq.runs[p] for part in parts for p in range(part.start, part.stop)}
        size, last = self.state.block_size, self.state.shadow.num_slots - 1
        padded = [
            s for s in slots if padding and bool((self.mirror.device[KINDS.index(kind), layer, s] == PADDING).all())
        ]
        if padded:
            self.state.report(
                "SLOT-3",
                f"layer {layer}, {kind}: a padding token (slot -1) was written into slot {padded[0]}"
                + (", the last of the pool" if padded[0] == last else ""),
            )
            slots = [slot for slot in slots if slot not in padded]
        missing = [slot for slot in slots if slot in listed]
        foreign = [slot for slot in slots if slot not in listed]
        if missing:
            slot = missing[0]
            self.state.report(
                "STORE-1",
                f"layer {layer}, {kind}: slot {slot} (block {slot // size}, offset {slot % size}) was to be written and "
                f"does not hold the bits that were given{self._found_instead(layer, kind, slot, listed[slot], foreign)}; "
                f"{len(missing)} of {counted(len(listed), 'slot')} are wrong"
                + (f"; slot {foreign[0]}, which was not listed, changed" if foreign else ""),
            )
        elif foreign:
            slot, block = foreign[0], foreign[0] // size
            self.state.report(
                "STORE-1",
                f"layer {layer}, {kind}: slot {slot} (block {block}, offset {slot % size}) changed, and no token of this step "
                f"goes there. History of {self.state.shadow.history(block)}",
            )

    def _found_instead(self, layer: int, kind: str, slot: int, run: int, foreign: Sequence[int]) -> str:
        """Where what was to be written into a slot of a layer lies, in words; "" where it is not near."""
        given = self.payload.split(self.payload.fused([run], layer))[KINDS.index(kind)]
        for other, pool in enumerate(self.pools):
            for what, content in zip(KINDS, contents_of(pool), strict=True):
                for place in foreign if (other, what) == (layer, kind) else [slot]:
                    if not len(slots_that_differ(content[place : place + 1], given)):
                        return f", which are in slot {place} of layer {other}, {what}"
        return ""

    # ---- copies

    def copied(self, seq: LiveSequence, copies: Sequence[Copy]) -> None:
        """The target performed these copies: did K and V of every layer arrive?"""
        size = self.state.block_size
        for copy in copies:
            width = size if copy.unit == "block" else 1
            for offset in range(width):
                self.mirror.copy(copy.src * width + offset, copy.dst * width + offset, copy.src_space, copy.dst_space)
        if not self.pools or not copies:
            return
        back = any(copy.src_space == "host" for copy in copies)
        self.state.judged["SWAP-1" if back else "COW-2"] += any(copy.dst_space == "device" for copy in copies)
        arrived = self._arrived(copies)
        behind = torch.zeros_like(self.mirror.poisoned)
        behind[sorted(arrived)] = True
        behind &= self.mirror.poisoned | self.mirror.cleared  # a copy may leave out what lies behind the tokens
        wrong: dict[tuple[int, str], list[int]] = {}
        for layer in range(self.geometry.num_layers):
            for kind, slots in self._different([layer], ignore=behind, due=arrived):
                wrong[layer, kind] = slots
        missed = {where: [s for s in slots if s in arrived] for where, slots in wrong.items() if arrived & set(slots)}
        if missed:
            self._report_copy(seq, copies, missed, "SWAP-1" if back else "COW-2")
        for (layer, kind), slots in wrong.items():
            self._report_clobbered(layer, kind, [slot for slot in slots if slot not in arrived], copies)

    def _arrived(self, copies: Sequence[Copy]) -> set[int]:
        size, found = self.state.block_size, set()
        for copy in copies:
            if copy.dst_space == "device":
                found |= set(range(copy.dst * size, copy.dst * size + size)) if copy.unit == "block" else {copy.dst}
        return found

    def _report_copy(
        self, seq: LiveSequence, copies: Sequence[Copy], wrong: dict[tuple[int, str], list[int]], id: str
    ) -> None:
        kinds = self.geometry.num_layers * len(KINDS)
        bad = ", ".join(f"{kind} of layer {layer}" for layer, kind in wrong)
        slot = next(iter(wrong.values()))[0]
        block = slot // self.state.block_size
        source = next((f" of {c.src_space} block {c.src}" for c in copies if c.unit == "block" and c.dst == block), "")
        self.state.report(
            id,
            f"block {block} was to be a copy{source} for sequence {seq.name}, but {bad} did not arrive "
            f"({len(wrong)} of {kinds} parts; first at slot {slot}). History of {self.state.shadow.history(block)}",
        )

    def _report_clobbered(self, layer: int, kind: str, slots: list[int], copies: Sequence[Copy]) -> None:
        if slots:
            destinations = ", ".join(f"{copy.dst_space} {copy.unit} {copy.dst}" for copy in copies)
            self.state.report(
                "STORE-1",
                f"layer {layer}, {kind}: slot {slots[0]} changed in a copy to {destinations}, where it does not lie. "
                f"History of {self.state.shadow.history(slots[0] // self.state.block_size)}",
            )

    # ---- every byte, and poison

    def _different(
        self, layers: Sequence[int], ignore: Tensor | None = None, due: Collection[int] = ()
    ) -> list[tuple[str, list[int]]]:
        """(keys or values, slots) that are not as expected; they are taken as they are from now on.

        Not among them: what is to be ignored, and zeros in slots that hold nothing for anybody, unless a copy is due there.
        """
        found = []
        for layer in layers if self.pools else ():
            for kind, actual in enumerate(contents_of(self.pools[layer])):
                slots = slots_that_differ(actual, self.mirror.device[kind, layer])
                slots = slots[self._usable[slots]]
                if ignore is not None:
                    quiet = slots[ignore[slots]]
                    self.mirror.device[kind, layer, quiet] = actual[quiet]
                    self.mirror.poisoned[quiet] = False
                    slots = slots[~ignore[slots]]
                slots = self._without_cleared(layer, kind, actual, slots, due)
                if len(slots):
                    self.mirror.adopt(layer, kind, actual, slots)
                    found.append((KINDS[kind], slots.tolist()))
        return found

    def _without_cleared(self, layer: int, kind: int, actual: Tensor, slots: Tensor, due: Collection[int]) -> Tensor:
        """The slots but those that the target may have cleared, for safety's sake: all zeros, and nobody's content."""
        if not len(slots):
            return slots
        zeros = only_zeros_came(actual[slots], self.mirror.device[kind, layer, slots])
        if not bool(zeros.any()):
            return slots
        kept = self._holds_content(layer)
        kept[list(due)] = True
        cleared = zeros & ~kept[slots]
        self.mirror.clear(layer, kind, actual, slots[cleared])
        return slots[~cleared]

    def _holds_content(self, layer: int) -> Tensor:
        """The slots whose content of a layer somebody needs, asked of the target now: it may be in the middle of a step."""
        state, probe = self.state, self.probe
        slots: list[int] = []
        for seq in state.live.values():
            stop = self.planned.first_unwritten(seq.name, layer, seq.computed)
            slots += probe.slots(seq.name, seq.slots)[:stop]
        size = state.block_size
        cached = probe.ids("cached_blocks") if "cached_blocks" in probe.offers else ()
        slots += [block * size + offset for block in cached for offset in range(size)]
        kept = torch.zeros_like(self._usable)
        kept[[slot for slot in slots if 0 <= slot < len(kept)]] = True
        return kept

    def judge_quiet(self, live: Sequence[LiveSequence]) -> None:
        """Nothing may have changed since the last look but what was judged."""
        for layer in range(self.geometry.num_layers):
            for kind, slots in self._different([layer]):
                slot = slots[0]
                owner = next((s for s in live if slot in s.slots[: s.computed]), None)
                block = slot // self.state.block_size
                text = (
                    f"layer {layer}, {kind}: slot {slot} (block {block}) changed, and nothing was to be written there"
                )
                if owner is None:
                    self.state.report("STORE-1", f"{text}. History of {self.state.shadow.history(block)}")
                else:
                    position = list(owner.slots).index(slot)
                    self.state.report(
                        "CONTENT-1", f"{text}: sequence {owner.name} reads its position {position} from it"
                    )

    def poison_unowned(self, live: Sequence[LiveSequence]) -> None:
        """Poison in every slot that holds no computed token of a live sequence and no cached block."""
        if not self.pools or not self._knows_cached():
            return
        unowned = self._usable & ~self._owned(live) & ~self.mirror.poisoned
        self._poison(unowned.nonzero().flatten())

    def poisoned_slots(self) -> Tensor:
        """The slots that hold poison now, or zeros of the target in its place."""
        return ((self.mirror.poisoned | self.mirror.cleared) & self._usable).nonzero().flatten()

    def poison_before_write(self, parts: Sequence[Part], live: Sequence[LiveSequence]) -> None:
        """Where a target does not say what is cached: poison in what its sequences are about to write, tails included."""
        if not self.pools or self._knows_cached():
            return
        size = self.state.block_size
        blocks = {slot // size for part in parts for slot in part.seq.slots[part.start :]}
        ahead = torch.zeros_like(self.mirror.poisoned)
        for block in blocks:
            ahead[block * size : block * size + size] = True
        self._poison((ahead & ~self._owned(live, below={p.seq.name: p.start for p in parts})).nonzero().flatten())

    def _poison(self, slots: Tensor) -> None:
        if len(slots):
            self.mirror.fill(slots)
            for pool in self.pools:
                fill_slots(pool, slots, self.mirror.poison)

    def _knows_cached(self) -> bool:
        return self.state.cached is not None or not self.state.capabilities.prefix_cache

    def _owned(self, live: Sequence[LiveSequence], below: dict[str, int] | None = None) -> Tensor:
        size = self.state.block_size
        owned = torch.zeros_like(self.mirror.poisoned)
        slots = [s for seq in live for s in seq.slots[: (below or {}).get(seq.name, seq.computed)] if s >= 0]
        slots += [block * size + offset for block in self.state.cached or () for offset in range(size)]
        owned[slots] = True
        return owned


def _short(argument: object) -> str:
    if isinstance(argument, list):
        return "[" + ", ".join(f"{row.name} [{row.start}, {row.stop})" for row in argument) + "]"
    return str(argument)
