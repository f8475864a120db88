"""The contract: every property id, its rank, and one exception class each.

Ids are stable. They are used on the command line, in reports, in the known-failures ledger and in case files. A clause
is *safety* (always judged: nothing wrong may ever be read, written, leaked or crashed) or a *promise* (judged only
where the target declares it; its id ends in `P`, so that the rank follows from the id alone).

One class per clause, because Hypothesis tells failures apart by exception type and line: two clauses that are raised
from one helper would otherwise be reported as one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

Rank = Literal["safety", "promise"]
Level = Literal["blocks", "engine", "attention", "cache"]


class PagefaultError(Exception):
    """Root of every error that pagefault raises on purpose."""


class UsageError(PagefaultError, ValueError):
    """The user asked for something impossible; the message names the value, the limit and the remedy."""


class AdapterError(PagefaultError):
    """The adapter breaks its own protocol: verdict ADAPTER, never a finding.

    `remedy` says what to change in the adapter; `trace` is the geometry and the operations that led to it, if any did, the
    one that failed at the end.
    """

    trace: tuple[Any, tuple[Any, ...]] | None = None

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(f"{problem}. Remedy: {remedy}")
        self.problem = problem
        self.remedy = remedy


FILL_IN = "fill it in"
"""The remedy for what a template leaves open."""


class ContractViolation(PagefaultError, AssertionError):
    """A clause of the contract does not hold. Subclasses carry the id; `str()` is the whole explanation."""

    id: str = ""


class Breach(NamedTuple):
    """A clause that does not hold: its id, the explanation in words, and the step (operations count from 1)."""

    property: str
    message: str
    step: int


@dataclass(frozen=True)
class Clause:
    """One clause: its id, the levels of target it is judged on, and one sentence that says what must hold."""

    id: str
    levels: tuple[Level, ...]
    text: str

    @property
    def rank(self) -> Rank:
        return "promise" if self.id.endswith("P") else "safety"

    @property
    def chapter(self) -> str:
        return self.id.split("-")[0]


_BOOKKEEPING: tuple[Level, ...] = ("blocks", "engine", "cache")
_BLOCKS: tuple[Level, ...] = ("blocks", "cache")
_TENSORS: tuple[Level, ...] = ("attention", "cache")
_ENGINE: tuple[Level, ...] = ("engine",)


def _c(id: str, levels: tuple[Level, ...], text: str) -> Clause:
    return Clause(id, levels, text)


_ALL = (
    _c("ALLOC-1", _BOOKKEEPING, "free, owned and cached blocks cover the pool, as sets, without duplicates"),
    _c("ALLOC-2", _BOOKKEEPING, "a table has enough blocks for its length, all distinct"),
    _c("ALLOC-2P", _BOOKKEEPING, "a table has exactly ceil(length / block size) blocks"),
    _c("ALLOC-3", _BLOCKS, "a failing call changes nothing"),
    _c("ALLOC-4", _BLOCKS, "a can-do answer equals what the operation then does"),
    _c("ALLOC-4P", _BLOCKS, "the predicted change of the free count is the actual one"),
    _c(
        "ALLOC-5",
        _BOOKKEEPING,
        "after everything is freed nothing is owned, and the whole pool can be allocated again",
    ),
    _c("ALLOC-6", _BLOCKS, "no refusal while free plus evictable blocks suffice"),
    _c("REF-1", _BOOKKEEPING, "a stored reference count equals the holders derived from the tables"),
    _c("REF-2", _BOOKKEEPING, "no block is both referenced and available for reuse"),
    _c("REF-3", _BLOCKS, "a double or unknown free is refused or changes nothing"),
    _c("SLOT-1", _BOOKKEEPING, "slot = table[position // block size] * block size + position % block size"),
    _c("SLOT-2", _BOOKKEEPING, "a slot about to be written belongs to exactly one live sequence"),
    _c("SLOT-3", ("engine", "attention", "cache"), "slot -1 writes nothing, and never means the last slot"),
    _c(
        "HASH-1",
        _BOOKKEEPING,
        "a hit block holds exactly that token run behind that whole prefix, with that salt",
    ),
    _c("HASH-2", _BOOKKEEPING, "no hit covers KV that will not have been written when it is read"),
    _c("HASH-3P", _BLOCKS, "an immediate repeat hits what the declared policy says"),
    _c("HASH-4", _BOOKKEEPING, "at least one token is left to compute"),
    _c("HASH-5", _BOOKKEEPING, "a hit ends at the first miss"),
    _c("COW-1", _BOOKKEEPING, "after a fork neither side sees the other's writes"),
    _c("COW-2", _TENSORS, "a copy copies K and V, every layer"),
    _c("COW-3P", _BLOCKS, "no copy where nothing is shared"),
    _c("COW-4", _BLOCKS, "capacity counts the copy"),
    _c("EVICT-1", _BOOKKEEPING, "nothing referenced, matched in the same call, or in flight is evicted"),
    _c("EVICT-2P", _BLOCKS, "blocks are evicted in the declared order"),
    _c("SWAP-1", _BOOKKEEPING, "what comes back from host memory is what went out"),
    _c("TRIM-1", _BLOCKS, "after truncation nothing of the dropped tokens is findable or read"),
    _c("BATCH-1", _ENGINE, "cu_seqlens, positions, context lengths and maxima agree"),
    _c("BATCH-2", _ENGINE, "the slot mapping covers exactly the tokens computed in this step"),
    _c("BATCH-3", ("engine", "attention", "cache"), "padding is inert"),
    _c(
        "BATCH-4",
        _ENGINE,
        "attention reads exactly [0, context) or the window, every slot written before it is read",
    ),
    _c("CONTENT-1", _BOOKKEEPING, "every slot a sequence may read holds the value its own tokens put there"),
    _c("STORE-1", _TENSORS, "the listed slots hold the exact bits, and every other byte is unchanged"),
    _c("READ-1", _TENSORS, "parity with dense attention in float64"),
    _c("READ-2", _TENSORS, "the output does not depend on any slot the sequence does not own"),
    _c("READ-3", _TENSORS, "moving pages changes nothing beyond the bound"),
    _c("READ-3P", _TENSORS, "moving pages changes no bit"),
    _c("READ-4", _TENSORS, "partitions change the result only within the bound; the LSE agrees"),
    _c("READ-5", _TENSORS, "batch order and batch-mates change nothing beyond the bound"),
    _c("READ-5P", _TENSORS, "batch order and batch-mates change no bit"),
    _c("READ-6", _TENSORS, "one token, and rows of length zero as declared"),
    _c("READ-7", _TENSORS, "strided and transposed inputs work or are refused"),
    _c("LAYOUT-1", _TENSORS, "every layout round-trips"),
    _c("PREEMPT-1", ("engine", "cache"), "a preempted sequence that comes back reads what it read before"),
    _c("LIVE-1", _ENGINE, "from every state some step makes progress within a bound"),
    _c("WINDOW-1", _BOOKKEEPING, "a sliding window frees only blocks wholly outside it, and sinks stay"),
    _c("WINDOW-1P", _BLOCKS, "blocks wholly outside the window are freed"),
    _c("MEM-1", _BLOCKS, "the memory arithmetic"),
    _c(
        "CRASH-1",
        ("blocks", "engine", "attention", "cache"),
        "a legal call raises nothing but the declared refusal",
    ),
    _c(
        "CRASH-2",
        ("blocks", "engine", "attention", "cache"),
        "a legal call ends within the time limit, in a live process",
    ),
)

CLAUSES: dict[str, Clause] = {clause.id: clause for clause in _ALL}

VIOLATIONS: dict[str, type[ContractViolation]] = {
    id: type(id.replace("-", "_"), (ContractViolation,), {"id": id, "__doc__": f"{id}: {clause.text}."})
    for id, clause in CLAUSES.items()
}
"""One exception class per clause: `VIOLATIONS["HASH-1"]`."""


def clause(id: str) -> Clause:
    """The clause of that id. Raises `UsageError` with the nearest ids for an unknown one."""
    if id in CLAUSES:
        return CLAUSES[id]
    from difflib import get_close_matches

    near = ", ".join(get_close_matches(id.upper(), CLAUSES, n=3, cutoff=0.4)) or "ALLOC-1, HASH-1, CONTENT-1"
    raise UsageError(f"no property {id!r}; near it: {near}. `pagefault targets --properties` lists all {len(CLAUSES)}")
