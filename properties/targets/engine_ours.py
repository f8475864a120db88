"""Our own engine as a target: scheduler, block manager and batch preparation. Also the longest example of an engine adapter."""

from __future__ import annotations

from collections.abc import Sequence

from paged_impl.block_manager import BlockManager
from paged_impl.errors import RequestRefused
from properties.engine.operations import EngineGeometry
from properties.engine.protocol import EngineCapabilities, Row, Step, StepBatch
from properties.protocol import Copy, slots_from_table
from properties.targets import Unavailable
from properties.targets.ours import weak_hash


class OurEngine:
    """`paged_impl.engine.Engine`."""

    level = "engine"
    capabilities = EngineCapabilities(
        refusals=(RequestRefused,),
        block_sizes=(1, 2, 3, 4, 5, 16, 256),
        salts=True,
        weak_hash=True,
        window=True,
        cached_overlaps_free=True,
        chunked_prefill=True,
        max_in_flight=3,
        any_finish_order=True,
        oversized="refused",
        duplicates="refused",
        swaps=True,
    )

    def __init__(self) -> None:
        try:
            import numpy  # noqa: F401
        except ModuleNotFoundError:
            raise Unavailable("batch preparation needs numpy: pip install 'numpy>=1.26'") from None

    def open(self, config: EngineGeometry) -> None:
        from paged_impl.engine import Engine
        from paged_impl.scheduler import Limits

        self.block_size = config.block_size
        manager = BlockManager(
            config.num_blocks,
            config.block_size,
            num_host_blocks=config.num_host_blocks,
            window=config.window,
            num_sinks=config.num_sinks,
            hash_fn=None if config.hash_bits is None else weak_hash(config.hash_bits),
        )
        limits = Limits(config.max_tokens_per_step, config.max_rows)
        self.engine = Engine(manager, limits, max_tokens=config.num_blocks * config.block_size + 1, num_lanes=4)

    def submit(self, name: str, tokens: Sequence[int], max_new_tokens: int, salt: str | None = None) -> None:
        self.engine.submit(name, tokens, max_new_tokens, salt)

    def fork(self, parent: str, child: str, max_new_tokens: int) -> None:
        self.engine.fork(parent, child, max_new_tokens)

    def cancel(self, name: str) -> None:
        self.engine.cancel(name)

    def step(self) -> Step:
        step = self.engine.step()
        return Step(
            [Row(str(name), start, stop, samples) for name, start, stop, samples in step.rows],
            [Copy(*copy) for copy in step.copies],
            step,
        )

    def batch(self, step: Step) -> StepBatch:
        batch = self.engine.batch(step.handle)
        return StepBatch(
            input_ids=batch.input_ids.tolist(),
            positions=batch.positions.tolist(),
            slot_mapping=batch.slot_mapping.tolist(),
            cu_seqlens_q=batch.cu_seqlens_q.tolist(),
            cu_seqlens_k=batch.cu_seqlens_k.tolist(),
            max_seqlen_q=batch.max_seqlen_q,
            max_seqlen_k=batch.max_seqlen_k,
            context_lens=batch.context_lens.tolist(),
            block_tables=batch.block_tables.tolist(),
        )

    def finish(self, step: Step, tokens: Sequence[int]) -> None:
        self.engine.finish(step.handle, tokens)

    def live(self) -> Sequence[str]:
        return [str(name) for name in self.engine.scheduler.live()]

    def slots(self, name: str) -> Sequence[int]:
        return slots_from_table(self.table(name), self.block_size)

    def table(self, name: str) -> Sequence[int]:
        return self.engine.scheduler.table(name)

    def ref_count(self, block: int) -> int:
        return self.engine.manager.ref_count(block)

    def free_blocks(self) -> list[int]:
        return self.engine.manager.free_blocks()

    def cached_blocks(self) -> list[int]:
        return self.engine.manager.cached_blocks()
