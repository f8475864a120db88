"""Judges of what a step reads and writes: HASH, PREEMPT-1, SWAP-1, BATCH-4, SLOT-2, EVICT-1 and CONTENT-1.

Content is judged as it changes: every request knows how many of its leading positions were found right (`verified`), a
write into a block that somebody else holds takes that back, and new slots start from nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from properties.blocks.access import RECOMPUTED, describe_run
from properties.engine.protocol import Row
from properties.engine.state import EngineState, Request
from properties.wording import counted


def misread(state: EngineState, request: Request, position: int, slot: int, verb: str) -> str:
    """In words: what a position of a request should be, what its slot holds, and how the block came to that."""
    block = slot // state.block_size
    return (
        f"request {request.name}, position {position} ({describe_run(state, request.runs[position])}) {verb} "
        f"{state.shadow.describe_slot(slot, state.runs)}. History of {state.shadow.history(block)}"
    )


def first_wrong(state: EngineState, request: Request, start: int, stop: int) -> int | None:
    """The first position of `[start, stop)` whose slot does not hold its own run; None if all do."""
    slots, expected_runs = request.slots[start:stop], request.runs[start:stop]
    found = list(map(state.shadow.run.__getitem__, slots))
    if state.geometry.window and -1 in slots:  # what it released is read no more: WINDOW-1 says whether it may be
        found = [own if slot < 0 else run for run, slot, own in zip(found, slots, expected_runs, strict=False)]
    if found == expected_runs:
        return None
    for position, (run, expected) in enumerate(zip(found, expected_runs, strict=False), start):
        if run != expected:
            return position
    return start + len(found)


def judge_arrival(state: EngineState, request: Request, row: Row) -> None:
    """The first row of a request on its present blocks: `[0, row.start)` was taken over, so it must hold its own runs."""
    judged = state.judged
    if state.capabilities.prefix_cache:
        judged["HASH-4"] += 1
        if row.start and request.away != "swapped" and not request.forked:
            for id in ("HASH-1", "HASH-2", "HASH-5"):
                judged[id] += 1
    if request.away:
        judged["PREEMPT-1"] += 1
        state.marks["a preempted request came back"] += 1
    if request.away == "swapped":
        judged["SWAP-1"] += 1
    if request.forked:
        judged["COW-1"] += 1
    wrong = first_wrong(state, request, request.verified, row.start)
    if wrong is None:
        request.verified = max(request.verified, row.start)
        return
    id = "SWAP-1" if request.away == "swapped" else _bad_hit(state, request, wrong)
    _report_misread(state, request, wrong, row, id)


def _report_misread(state: EngineState, request: Request, position: int, row: Row, id: str) -> None:
    """One wrong position breaks its own clause, CONTENT-1, and PREEMPT-1 for a request that came back."""
    verb = f"is read by the row [{row.start}, {row.stop}) in" if row else "reads"
    text = misread(state, request, position, request.slots[position], verb)
    state.report(id, f"{text}{_why(request, row, id)}{_by_design(state, request, position, id)}")
    state.report("CONTENT-1", text)
    if request.away:
        state.report("PREEMPT-1", f"{text}. The request lost its blocks before ({request.away}) and has come back")
    request.verified = max(request.verified, row.stop)


def _by_design(state: EngineState, request: Request, position: int, id: str) -> str:
    """The declaration that would make a hit right on a block that another request is about to write."""
    taker = state.taker.get(request.slots[position] // state.block_size)
    if id != "HASH-2" or taker in (None, request.name) or taker not in state.requests:
        return ""
    return (
        f". If request {taker} writes it in the same step, before {request.name} reads it, and that is by design, declare "
        "same_step_sharing=True"
    )


def _why(request: Request, row: Row, id: str) -> str:
    if id == "COW-1":
        return f". Positions 0 to {row.start - 1} were shared by the fork, or copied since"
    if id.startswith("HASH"):
        return f". Positions 0 to {row.start - 1} were taken from the cache"
    if id == "BATCH-4":
        return f". The rows before this one computed up to position {request.computed - 1}"
    return ""


def _bad_hit(state: EngineState, request: Request, position: int) -> str:
    """The clause that a wrong hit breaks. A hole with a right block behind it is a hit that went on after a miss."""
    if request.forked:
        return "COW-1"
    slot, size, content = request.slots[position], state.block_size, state.shadow.run
    write = state.shadow.writes[slot]
    if write is None or write.step < state.handed[slot // size]:
        return "HASH-2"
    stop = (position // size + 1) * size
    behind = range(stop, min(len(request.slots), len(request.runs), stop + size))
    if behind and all(content[request.slots[p]] == request.runs[p] for p in behind):
        return "HASH-5"
    return "HASH-1"


def judge_zero_tokens(state: EngineState, request: Request, row: Row) -> None:
    """A row that samples has at least one token to compute."""
    if row.samples and row.start == row.stop:
        state.report(
            "HASH-4",
            f"the row [{row.start}, {row.stop}) of request {request.name} samples a token but computes none: it takes all "
            f"of its {counted(len(request.tokens), 'token')} as cached, so there is no query and no output",
        )


def judge_reads(state: EngineState, request: Request, row: Row) -> None:
    """After the writes of the step: attention reads `[0, row.stop)`, and each slot holds the request's own run."""
    judged = state.judged
    judged["BATCH-4"] += 1
    judged["CONTENT-1"] += 1
    wrong = first_wrong(state, request, 0 if request.twice else request.verified, row.stop)
    if wrong is None:
        request.verified = max(request.verified, row.stop)
        return
    skipped = request.computed <= wrong < row.start
    _report_misread(state, request, wrong, row, "BATCH-4" if skipped else "CONTENT-1")


def judge_sampling(state: EngineState, request: Request, row: Row) -> None:
    """A token is sampled only after the last position: before that it has not read the whole context."""
    if row.stop >= len(request.tokens):
        return
    text = (
        f"a token is sampled for request {request.name} after position {row.stop - 1}, but it has {len(request.tokens)} "
        f"tokens: positions {row.stop} to {len(request.tokens) - 1} are not read"
    )
    state.report("BATCH-4", text)
    if request.away:
        state.report("PREEMPT-1", f"{text}. The request lost its blocks before ({request.away}) and has come back")


def judge_untouched(state: EngineState, requests: Iterable[Request]) -> None:
    """Requests whose blocks somebody else wrote: does what they computed still stand?"""
    for request in requests:
        if request.verified >= request.computed:
            continue
        state.judged["CONTENT-1"] += 1
        wrong = first_wrong(state, request, request.verified, request.computed)
        if wrong is not None:
            state.report("CONTENT-1", misread(state, request, wrong, request.slots[wrong], "reads"))
        request.verified = request.computed


def judge_fresh(state: EngineState, request: Request, fresh: Collection[int]) -> None:
    """Blocks handed out to be written must be nobody else's, unless somebody hit them in the same step."""
    state.judged["EVICT-1"] += 1
    for block in fresh:
        if state.holders.get(block, 0) <= 1:
            continue
        others = [
            other.name
            for other in state.requests.values()
            if other is not request and block in other.blocks and block not in other.new_blocks
        ]
        if others:
            state.report(
                "EVICT-1",
                f"block {block} was handed to request {request.name} while request {others[0]} still holds it. "
                f"History of {state.shadow.history(block)}",
            )


def judge_writes(state: EngineState, request: Request, row: Row, slots: Sequence[int], written: dict[int, str]) -> None:
    """Each slot about to be written belongs to this request alone, and to no other row of the step."""
    state.judged["SLOT-2"] += 1
    holders, size = state.holders, state.block_size
    if len(request.family) > 1:
        state.judged["COW-1"] += 1
    for position, slot in enumerate(slots, row.start):
        if slot < 0:
            continue
        block = slot // size
        own = position < len(request.slots) and request.slots[position] == slot
        if own and holders.get(block, 0) <= 1 and slot not in written:
            written[slot] = request.name
            continue
        related = [
            r for r in state.requests.values() if r.name in request.family and r is not request and block in r.blocks
        ]
        if related and all(has_run_there(r, position, slot, request.runs[position]) for r in related):
            continue  # the very value that stands there, or will: the fork has not parted yet
        same = own and state.shadow.run[slot] == request.runs[position]
        if same and state.capabilities.recomputes_hits:
            state.marks["a shared slot was written once more"] += 1
            continue
        problem = _not_alone(state, request, slot, own, written)
        if problem:
            state.report(
                "COW-1" if related else "SLOT-2",
                f"request {request.name} is about to write position {position} into slot {slot} (block {block}), {problem}. "
                f"History of {state.shadow.history(block)}{f'. It holds the same KV. {RECOMPUTED}' if same else ''}",
            )
        written[slot] = request.name
        _take_back(state, request, block)


def has_run_there(request: Request, position: int, slot: int, run: int) -> bool:
    """Whether a request has that very run at that place."""
    return (
        position < min(len(request.slots), len(request.runs))
        and request.slots[position] == slot
        and request.runs[position] == run
    )


def _not_alone(state: EngineState, request: Request, slot: int, own: bool, written: dict[int, str]) -> str:
    block = slot // state.block_size
    if slot in written:
        return f"which a row of request {written[slot]} writes in the same step"
    others = [r.name for r in state.requests.values() if r is not request and block in r.blocks]
    if others and state.capabilities.same_step_sharing and state.taker.get(block) == request.name:
        return ""  # it writes its own block, which others hit meanwhile: what they read there is judged by its content
    if others:
        return f"which request {others[0]} holds too"
    if own or block in request.blocks:
        return ""  # inside its own blocks, but at another position: BATCH-2 and CONTENT-1 say so
    return "which belongs to no live request"


def _take_back(state: EngineState, writer: Request, block: int) -> None:
    """Somebody writes into a block: whoever holds it must be looked at again."""
    size = state.block_size
    for request in state.requests.values():
        if block in request.blocks:
            first = next(p for p, slot in enumerate(request.slots) if slot // size == block)
            request.verified = min(request.verified, first)


def judge_copied(state: EngineState, block: int) -> None:
    """A copy has filled a device block: its holders must be looked at again."""
    if state.holders.get(block):
        _take_back(state, next(iter(state.requests.values())), block)
