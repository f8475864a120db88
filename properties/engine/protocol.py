"""What an engine target offers: a scheduler with its block manager and its batch preparation. The referee plays the model.

A step is *launched* by `step()` and *finished* by `finish()`; its copies and writes happen when it is launched, in launch
order, as on one device stream. Between the two, further steps may be launched where `max_in_flight` allows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from properties import protocol as blocks
from properties.protocol import Capabilities, Copy

if TYPE_CHECKING:
    from properties.engine.operations import EngineGeometry


class Row(NamedTuple):
    """One row of a step: positions `[start, stop)` of a sequence are computed now.

    `[0, start)` is read as it is; whatever `start` says on the first row of a sequence was taken from the prefix cache, or
    brought back. `samples` says whether a token is sampled after the last position.
    """

    name: str
    start: int
    stop: int
    samples: bool


class Step(NamedTuple):
    """A launched step: the copies to perform first, in order, then the rows. No rows: nothing could be scheduled.

    `handle` is the adapter's own; the referee hands the same `Step` back to `finish` and `batch`.
    """

    rows: Sequence[Row] = ()
    copies: Sequence[Copy] = ()
    handle: Any = None


class StepBatch(NamedTuple):
    """The target's own batch preparation for a step, rows in the order of `Step.rows`; None = it has no such thing.

    Per token: `input_ids` (-1 where the token is still on the device), `positions`, `slot_mapping`; per row and one more:
    `cu_seqlens_q`, `cu_seqlens_k`; per row: `context_lens` and `block_tables` (-1 = no block). Padding stands behind the
    real entries. A step without `block_tables` reads only what it computes itself, not the pool, where other steps of the
    engine have them; an adapter that gives none at all is not judged on them.
    """

    input_ids: Sequence[int] | None = None
    positions: Sequence[int] | None = None
    slot_mapping: Sequence[int] | None = None
    cu_seqlens_q: Sequence[int] | None = None
    cu_seqlens_k: Sequence[int] | None = None
    max_seqlen_q: int | None = None
    max_seqlen_k: int | None = None
    context_lens: Sequence[int] | None = None
    block_tables: Sequence[Sequence[int]] | None = None


class EngineCapabilities(Capabilities, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an engine accepts and promises, besides what `Capabilities` says of its manager.

    Attributes:
        refusals: exceptions by which `submit` refuses; every other call must succeed.
        max_batch_rows: smallest and largest `EngineGeometry.max_rows` that it accepts.
        chunked_prefill: a prompt may be longer than the token budget of a step.
        same_step_sharing: a hit may cover KV that another row of the same step writes, before it is read.
        max_in_flight: most steps launched and not finished.
        any_finish_order: steps in flight may be finished in any order.
        oversized: what `submit` does with a request that can never fit: "refused", or None = undefined, not tried.
        duplicates: what `submit` does with the name of a live request: "refused", or None = undefined, not tried.
        swaps: `EngineGeometry.num_host_blocks` is honoured, and the copies of a step say what is moved.
        preempts: requests that run may lose their blocks; False where each has all that it will need before it starts.
        max_idle_steps: most steps in a row that may come back empty while requests wait and nothing is in flight.
    """

    max_batch_rows: tuple[int, int] = (1, 8)
    chunked_prefill: bool = False
    same_step_sharing: bool = False
    max_in_flight: int = 1
    any_finish_order: bool = False
    oversized: Literal["refused"] | None = None
    duplicates: Literal["refused"] | None = None
    swaps: bool = False
    preempts: bool = True
    max_idle_steps: int = 3


class EngineTarget(Protocol):
    """A scheduler under test. These are required; the optional methods are listed in `OPTIONAL`."""

    capabilities: EngineCapabilities

    def open(self, config: EngineGeometry) -> None:
        """A fresh system; class-level globals are reset too. Called before every case."""

    def submit(self, name: str, tokens: Sequence[int], max_new_tokens: int) -> None:
        """A new request. It ends when `max_new_tokens` tokens were sampled. With `salts`, takes `salt=` as well."""

    def step(self) -> Step:
        """Schedule and launch one step. Called only while requests are live."""
        ...

    def slots(self, name: str) -> Sequence[int]:
        """The physical slot of each position, first to last; empty while the request has no blocks.

        Fewer than its tokens, or more (look-ahead, whole blocks), is fine.
        """
        ...

    def finish(self, step: Step, tokens: Sequence[int]) -> None:
        """A launched step is done. `tokens` has one token for each row that samples, in row order.

        Rows of requests that were cancelled meanwhile have a token too; it is to be dropped. A request that ends with its
        token has given its blocks back when `finish` returns.
        """

    def live(self) -> Sequence[str]:
        """The names of all requests that have not ended: waiting, running, preempted."""
        ...


REQUIRED = ("open", "submit", "step", "slots", "finish", "live")

OPTIONAL: dict[str, str] = {
    "cancel": "cancel(name): the request ends now, wherever it is; rows in flight are computed and dropped",
    "fork": "fork(parent, child, max_new_tokens): child is a new request that goes on from all that parent has, prompt and "
    "reply so far; it must succeed. Called while no step of parent is in flight. Copies that become due come with a step",
    "batch": "batch(step) -> StepBatch: the target's own metadata of the step that was launched last",
    "table": blocks.OPTIONAL["table"],
    "ref_count": blocks.OPTIONAL["ref_count"],
    "free_blocks": blocks.OPTIONAL["free_blocks"],
    "cached_blocks": blocks.OPTIONAL["cached_blocks"],
    "close": blocks.OPTIONAL["close"],
}
"""Optional methods of an engine target; each one that is offered makes more clauses judgeable."""


def offered(target: object) -> frozenset[str]:
    """Names of the optional methods that an adapter has."""
    return frozenset(name for name in OPTIONAL if callable(getattr(target, name, None)))
