"""Operations on a blocks target, and the geometry they run in: what a trace is made of.

Operations name sequences, not draw positions, so that deleting one keeps the meaning of the rest. They are msgspec
structs: tagged JSON that stays readable, and a codec fast enough to journal every operation before it is applied.
"""

from __future__ import annotations

from typing import Annotated

import msgspec


class Operation(msgspec.Struct, frozen=True, tag_field="op", omit_defaults=True, forbid_unknown_fields=True):
    """One thing that is done to a target. `name` is the sequence it is done to."""

    @property
    def kind(self) -> str:
        """The name of the operation in JSON and in messages: `admit`, `swap_out`."""
        return str(self.__struct_config__.tag)


class Admit(Operation, frozen=True, tag="admit"):
    """A new sequence: allocate its blocks, compute its KV, publish what is full."""

    name: str
    tokens: tuple[int, ...]
    salt: str | None = None


class Append(Operation, frozen=True, tag="append"):
    """More tokens at the end of a live sequence, computed at once."""

    name: str
    tokens: tuple[int, ...]


class Free(Operation, frozen=True, tag="free"):
    """The sequence ends; its blocks may be reused."""

    name: str


class FreeAgain(Operation, frozen=True, tag="free_again"):
    """A free of a name that is not live: a double free, or one never admitted (REF-3)."""

    name: str


class Fork(Operation, frozen=True, tag="fork"):
    """`child` continues from everything `name` holds; neither may see the other's later writes."""

    name: str
    child: str


class Truncate(Operation, frozen=True, tag="truncate"):
    """Keep the first `length` tokens (a roll-back of drafts)."""

    name: str
    length: int


class SwapOut(Operation, frozen=True, tag="swap_out"):
    """Move the sequence's KV to host memory."""

    name: str


class SwapIn(Operation, frozen=True, tag="swap_in"):
    """Bring the sequence's KV back."""

    name: str


class Preempt(Operation, frozen=True, tag="preempt"):
    """Free the sequence's blocks; its tokens are kept for `resume` (preemption by recompute)."""

    name: str


class Resume(Operation, frozen=True, tag="resume"):
    """Admit a preempted sequence again, with all its tokens (PREEMPT-1)."""

    name: str


class Lookup(Operation, frozen=True, tag="lookup"):
    """Ask how many tokens of a run are cached. Changes nothing."""

    tokens: tuple[int, ...]
    salt: str | None = None


class Allocate(Operation, frozen=True, tag="allocate"):
    """Split form of `admit`: take the blocks; nothing is computed or published yet."""

    name: str
    tokens: tuple[int, ...]
    salt: str | None = None


class Computed(Operation, frozen=True, tag="computed"):
    """Split form of `admit`: the KV of positions below `upto` is now written."""

    name: str
    upto: int


class Drain(Operation, frozen=True, tag="drain"):
    """Free everything, then fill the whole pool once and free it again (ALLOC-5)."""


BlocksOperation = (
    Admit
    | Append
    | Free
    | FreeAgain
    | Fork
    | Truncate
    | SwapOut
    | SwapIn
    | Preempt
    | Resume
    | Lookup
    | Allocate
    | Computed
    | Drain
)


class Geometry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The system a trace runs in.

    `block_size` is tokens per block; `num_blocks` is the whole pool, reserved blocks included; `num_host_blocks` is the
    swap space; `hash_bits` keeps only that many bits of the block hash (a deliberately weak hash), None = all of them;
    `window` is the sliding window in tokens and `num_sinks` the first tokens that stay outside it.
    """

    block_size: Annotated[int, msgspec.Meta(ge=1, le=1 << 20)]
    num_blocks: Annotated[int, msgspec.Meta(ge=1, le=1 << 24)]
    num_host_blocks: Annotated[int, msgspec.Meta(ge=0, le=1 << 24)] = 0
    hash_bits: Annotated[int, msgspec.Meta(ge=1, le=64)] | None = None
    window: Annotated[int, msgspec.Meta(ge=1)] | None = None
    num_sinks: Annotated[int, msgspec.Meta(ge=0)] = 0
