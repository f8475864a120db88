"""An adapter of an engine: a scheduler with its block manager, and batch preparation if there is one. To be filled in.

    pagefault check-target THIS_FILE.py:Target      is the adapter itself sound?
    pagefault run -t THIS_FILE.py:Target            find faults behind it
    pagefault test -t THIS_FILE.py:Target           the whole contract, under pytest

pagefault plays the model: it asks for steps, and tells what was "sampled" in them. No GPU and no weights are needed. Every
`raise NotImplementedError` below wants a line or two of yours. Tokens come in tuples (`list(tokens)` where you need a list).
`properties/engine/protocol.py` describes every method. For an engine in the manner of nano-vllm,
`properties/targets/sequences.py` has a base class that does nearly all of it; an engine in another language can write its
history instead (`docs/history.md`, `pagefault judge`).
"""

from collections.abc import Sequence
from typing import Any

from properties.engine.operations import EngineGeometry
from properties.engine.protocol import EngineCapabilities, Row, Step, StepBatch
from properties.protocol import slots_from_table


class RequestRefused(Exception):
    """Stands for the exception by which your engine refuses a request. Import yours instead."""


class Target:
    """One system under test. Made without arguments; `open` comes before everything else."""

    level = "engine"
    capabilities = EngineCapabilities(
        refusals=(RequestRefused,),  # only `submit` may refuse
        block_sizes=(2, 4, 16),  # tokens per block that it accepts; small ones find most
        prefix_cache=True,  # False if no request ever reuses the blocks of an earlier one
        chunked_prefill=True,  # False if a prompt must fit the token budget of one step
        oversized=None,  # "refused" if submit refuses what can never fit the pool; None = not tried
        duplicates=None,  # "refused" if submit refuses the name of a live request; None = not tried
        max_in_flight=1,  # steps that may be launched before the first of them is finished
        unknown_free=None,
        # preempts=False,  # each request has all the blocks that it will need before it starts
        # same_step_sharing=True,  # a hit may cover KV that another row of the same step writes, before it is read
        # cached_overlaps_free=True,  # a block may be in cached_blocks() and in free_blocks() at once
    )

    def open(self, config: EngineGeometry) -> None:
        """A fresh system. Reset class-level globals too: this is called before every case."""
        self.block_size = config.block_size
        # YourEngine(config.num_blocks, config.block_size, config.max_tokens_per_step, config.max_rows)
        self.engine: Any = None
        raise NotImplementedError("open: build your scheduler and its block manager")

    def submit(self, name: str, tokens: Sequence[int], max_new_tokens: int) -> None:
        """A new request; it ends when that many tokens were sampled."""
        raise NotImplementedError("submit: put the request into the waiting queue")

    def step(self) -> Step:
        """Schedule and launch one step: which positions of which requests does it compute?"""
        # Row(name, start, stop, samples): positions [start, stop); is a token sampled behind them?
        rows: list[Row] = []
        raise NotImplementedError(f"step: schedule, and return Step({rows}, copies=[...])")

    def finish(self, step: Step, tokens: Sequence[int]) -> None:
        """The step is done; `tokens` has one for each row that samples, in the order of the rows."""
        raise NotImplementedError("finish: append the tokens, publish full blocks, end what is done")

    def live(self) -> Sequence[str]:
        """Every request that has not ended: waiting, running, preempted."""
        raise NotImplementedError("live: return their names")

    def slots(self, name: str) -> Sequence[int]:
        """The physical slot of each position; empty while the request has no blocks. From a table this is one line."""
        return slots_from_table(self.table(name), self.block_size)

    # ---- optional: each of these makes more clauses judgeable; delete what you do not have --------------------------

    def table(self, name: str) -> Sequence[int]:
        """Physical block of each logical block, first to last."""
        raise NotImplementedError("table: return the block table of the request")

    def batch(self, step: Step) -> StepBatch:
        """What your batch preparation made of the step: judged against the rows, token by token."""
        raise NotImplementedError("batch: return StepBatch(slot_mapping=..., positions=..., context_lens=..., ...)")

    def free_blocks(self) -> Sequence[int]:
        """Every block that is free. With it, leaks and double use are found at once."""
        raise NotImplementedError("free_blocks: return the ids on your free list")

    # def cancel(self, name): ...          the request ends now, wherever it is
    # def ref_count(self, block): ...      how many requests hold a block, by your own count
    # def cached_blocks(self): ...         every block that a prefix lookup can find
