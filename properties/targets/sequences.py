"""Engines of the nano-vllm family: managers that take sequence objects, a scheduler around them, batch preparation.

Many engines and lessons share this design: a `Sequence` with a `block_table`, a `BlockManager` with `can_allocate`,
`allocate`, `can_append`, `may_append` and `deallocate` (later `hash_blocks` too), a `Scheduler` with `add`, `schedule` and
`postprocess`, a `ModelRunner` with `prepare_prefill` and `prepare_decode`. A subclass says where these classes are; what
differs between versions is found out here.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from properties.blocks.operations import Geometry
from properties.engine.operations import EngineGeometry
from properties.engine.protocol import EngineCapabilities, Row, Step, StepBatch
from properties.protocol import Capabilities, slots_from_table
from properties.targets.interface import InterfaceDiffers, fits, opens
from properties.targets.standins import HOST, HOST_TORCH, HostConfig, HostTensor, defaults

__all__ = ["HOST_TORCH", "Family", "HostTensor", "SequenceEngine", "SequenceManager"]

BLOCK_SIZES = (2, 3, 4, 5, 16)
"""Block size 1 is left out: the family asks `len % block_size == 1` for a new block, and its own configuration refuses 1."""


@dataclass(frozen=True)
class Family:
    """The classes of one engine of this family, and how its runner tells what it prepared.

    `get_context()` gives the object with `cu_seqlens_q`, `slot_mapping`, ... that the last `prepare_*` call set. `config` is
    the engine's configuration class: of a dataclass the default values are taken.
    """

    sequence: Any
    sampling_params: Any
    block_manager: Any
    scheduler: Any = None
    runner: Any = None
    get_context: Any = None
    config: Any = None

    @property
    def publishes_after_compute(self) -> bool:
        """Newer versions publish blocks in `postprocess`, older ones in `allocate`, before the KV is there."""
        return hasattr(self.block_manager, "hash_blocks")

    def probe(self) -> Any:
        """A sequence of one token, to see what it has."""
        return self.sequence([0], self.sampling_params())


class SequenceManager:
    """A blocks target over the manager alone: compute and publication are done as the engine's scheduler would do them."""

    level = "blocks"

    @opens
    def __init__(self, family: Family) -> None:
        self.family = family
        family.probe()
        self.capabilities = Capabilities(
            refusals=(_NoRoom,), block_sizes=BLOCK_SIZES, cached_overlaps_free=True, unknown_free=None
        )

    @opens
    def open(self, config: Geometry) -> None:
        self.block_size = config.block_size
        reset_sequences(self.family.sequence, config.block_size)
        self.manager = self.family.block_manager(config.num_blocks, config.block_size)
        self._sequences: dict[str, Any] = {}
        self._asked = False

    @fits
    def admit(self, name: str, tokens: Sequence[int]) -> int:
        seq = self.family.sequence(list(tokens), self.family.sampling_params())
        answer = self._room(seq)
        if answer is False or (answer is not True and answer < 0):
            raise _NoRoom(f"can_allocate says {answer}")
        if answer is True:
            self.manager.allocate(seq)
        else:
            self.manager.allocate(seq, answer)
        cached = int(seq.num_cached_tokens)
        self._publish(seq, len(tokens) - cached)
        self._sequences[name] = seq
        return cached

    def _room(self, seq: Any) -> Any:
        """What `can_allocate` says. Raises `InterfaceDiffers` where it takes no sequence: the first one tells."""
        try:
            answer = self.manager.can_allocate(seq)
        except (AttributeError, TypeError) as error:
            raise error if self._asked else InterfaceDiffers(type(self), "admit", error) from error
        self._asked = True
        return answer

    @fits
    def append(self, name: str, tokens: Sequence[int]) -> None:
        seq = self._sequences[name]
        needed = -(-(len(seq) + len(tokens)) // self.block_size) - len(seq.block_table)
        if len(tokens) > 1 and needed > len(self.manager.free_block_ids):  # or more than one would be half done
            raise _NoRoom(f"{needed} blocks are needed, {len(self.manager.free_block_ids)} are free")
        for index, token in enumerate(tokens):
            self._append(seq, token, first=index == 0)

    def _append(self, seq: Any, token: int, *, first: bool) -> None:
        """One token, as the scheduler does it. A no to a later token is heard where that token is the first."""
        before, num_tokens = dict(vars(seq)) if first else {}, len(seq.token_ids)
        seq.append_token(token)
        if not self.manager.can_append(seq) and first:
            refusal = _NoRoom(
                f"can_append says no at {len(seq)} tokens, {len(self.manager.free_block_ids)} blocks are free"
            )
            vars(seq).update(before)
            del seq.token_ids[num_tokens:]
            raise refusal
        self.manager.may_append(seq)
        self._publish(seq, 1)

    def _publish(self, seq: Any, num_tokens: int) -> None:
        if self.family.publishes_after_compute:
            seq.num_scheduled_tokens = num_tokens
            self.manager.hash_blocks(seq)
            seq.num_cached_tokens += num_tokens

    @fits
    def free(self, name: str) -> None:
        self.manager.deallocate(self._sequences.pop(name))

    @fits
    def slots(self, name: str) -> Sequence[int]:
        return slots_from_table(self._sequences[name].block_table, self.block_size)

    @fits
    def table(self, name: str) -> Sequence[int]:
        return list(self._sequences[name].block_table)

    @fits
    def cached_blocks(self) -> list[int]:
        """Blocks that a lookup can still find. Told, so that a refusal to append is judged: nothing else is exchanged."""
        found = getattr(self.manager, "hash_to_block_id", None) or {}
        blocks = self.manager.blocks if found else ()
        return [block for hash_, block in found.items() if getattr(blocks[block], "hash", hash_) == hash_]


class _NoRoom(Exception):
    """The manager says that there is no room."""


def reset_sequences(sequence_class: Any, block_size: int) -> None:
    """Class-level globals: the block size of all sequences, and the counter of their ids."""
    sequence_class.block_size = block_size
    sequence_class.counter = count()


class SequenceEngine:
    """An engine target over the scheduler, its manager and the runner's batch preparation."""

    level = "engine"

    @opens
    def __init__(self, family: Family) -> None:
        self.family = family
        chunked = hasattr(family.probe(), "num_scheduled_tokens")
        postprocess = inspect.getsource(family.scheduler.postprocess)
        self._takes_phase = "is_prefill" in inspect.signature(family.scheduler.postprocess).parameters
        self._drops_token_after_return = "num_completion_tokens > 0" in postprocess
        self.capabilities = EngineCapabilities(
            block_sizes=BLOCK_SIZES,
            chunked_prefill=chunked,
            same_step_sharing=not family.publishes_after_compute,
            cached_overlaps_free=True,
            unknown_free=None,
        )

    def config(self, geometry: EngineGeometry) -> Any:
        """The configuration object that the scheduler takes: the engine's own defaults, with the sizes of the geometry.

        Override it where a fork reads more.
        """
        sizes = {
            "max_num_seqs": geometry.max_rows,
            "max_num_batched_tokens": geometry.max_tokens_per_step,
            "max_model_len": geometry.num_blocks * geometry.block_size + 1,
            "eos": -1,
            "kvcache_block_size": geometry.block_size,
            "block_size": geometry.block_size,  # its name in some forks
            "num_kvcache_blocks": geometry.num_blocks,
        }
        return HostConfig(**{**defaults(self.family.config), **sizes})

    @opens
    def open(self, config: EngineGeometry) -> None:
        self.block_size = config.block_size
        reset_sequences(self.family.sequence, config.block_size)
        settings = self.config(config)
        self.scheduler = self.family.scheduler(settings)
        self.manager = self.scheduler.block_manager
        self.runner = object.__new__(self.family.runner)  # without its __init__, which loads the model
        vars(self.runner).update(config=settings, block_size=config.block_size, device=HOST)
        vars(self.runner).update(rank=0, world_size=1, enforce_eager=True)
        self._sequences: dict[str, Any] = {}

    @fits
    def submit(self, name: str, tokens: Sequence[int], max_new_tokens: int) -> None:
        params = self.family.sampling_params(max_tokens=max_new_tokens, ignore_eos=True)
        seq = self.family.sequence(list(tokens), params)
        self._sequences[name] = seq
        seq.pagefault_name = name
        self.scheduler.add(seq)

    @fits
    def step(self) -> Step:
        seqs, is_prefill = self.scheduler.schedule()
        prepare = self.runner.prepare_prefill if is_prefill else self.runner.prepare_decode
        input_ids, positions = prepare(seqs)
        batch = self._batch(input_ids, positions, is_prefill)
        rows = self._prefill_rows(seqs, batch) if is_prefill else [self._decode_row(seq) for seq in seqs]
        return Step(rows, (), (seqs, is_prefill, batch))

    def _batch(self, input_ids: Any, positions: Any, is_prefill: bool) -> StepBatch:
        context = self.family.get_context()
        prefill: dict[str, Any] = {}
        if is_prefill:
            prefill = {
                "cu_seqlens_q": context.cu_seqlens_q,
                "cu_seqlens_k": context.cu_seqlens_k,
                "max_seqlen_q": context.max_seqlen_q,
                "max_seqlen_k": context.max_seqlen_k,
            }
        return StepBatch(
            input_ids=input_ids,
            positions=positions,
            slot_mapping=context.slot_mapping,
            context_lens=None if is_prefill else context.context_lens,
            block_tables=context.block_tables,
            **prefill,
        )

    def _decode_row(self, seq: Any) -> Row:
        return Row(seq.pagefault_name, len(seq) - 1, len(seq), True)

    def _prefill_rows(self, seqs: Sequence[Any], batch: StepBatch) -> list[Row]:
        """What a prefill computes are the positions that the runner prepared; its sums say where each row ends."""
        sums, positions = batch.cu_seqlens_q or [], batch.positions or []
        rows = []
        for index, seq in enumerate(seqs):
            part = positions[sums[index] : sums[index + 1]]
            start = part[0] if part else int(seq.num_cached_tokens)
            stop = start + len(part)
            dropped = self._drops_token_after_return and seq.num_completion_tokens > 0
            rows.append(Row(seq.pagefault_name, start, stop, stop >= len(seq) and not dropped))
        return rows

    def batch(self, step: Step) -> StepBatch:
        answer: StepBatch = step.handle[2]
        return answer

    @fits
    def finish(self, step: Step, tokens: Sequence[int]) -> None:
        seqs, is_prefill, _ = step.handle
        sampled = iter(tokens)
        per_row = [next(sampled) if row.samples else 0 for row in step.rows]
        phase = (is_prefill,) if self._takes_phase else ()
        self.scheduler.postprocess(seqs, per_row, *phase)
        for seq in seqs:
            if self._has_ended(seq):
                self._sequences.pop(seq.pagefault_name, None)

    def _has_ended(self, seq: Any) -> bool:
        """Early versions have no `is_finished`: there it has ended once no queue has it."""
        told = getattr(seq, "is_finished", None)
        return (
            not any(seq is other for other in (*self.scheduler.waiting, *self.scheduler.running))
            if told is None
            else told
        )

    @fits
    def live(self) -> Sequence[str]:
        return [seq.pagefault_name for seq in (*self.scheduler.waiting, *self.scheduler.running)]

    @fits
    def slots(self, name: str) -> Sequence[int]:
        return slots_from_table(self._sequences[name].block_table, self.block_size)

    @fits
    def table(self, name: str) -> Sequence[int]:
        return list(self._sequences[name].block_table)

    @fits
    def ref_count(self, block: int) -> int:
        return int(self.manager.blocks[block].ref_count)

    @fits
    def free_blocks(self) -> list[int]:
        return list(self.manager.free_block_ids)
