"""A finding in words: the clause, the steps, the explanation. The same text in pytest, in `show` and in a campaign."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from properties.case import Case
from properties.contract import clause

MOST_TOKENS = 24
"""Longer runs are cut in the middle when they are printed; the case file has them whole."""


def tokens_in_words(tokens: Sequence[int]) -> str:
    """`tokens 1 0 1`, or a long run cut in the middle."""
    if len(tokens) <= MOST_TOKENS:
        return f"token{'s' * (len(tokens) != 1)} " + " ".join(map(str, tokens))
    half = MOST_TOKENS // 2
    middle = f" ... ({len(tokens)} in all) ... "
    return "tokens " + " ".join(map(str, tokens[:half])) + middle + " ".join(map(str, tokens[-half:]))


_SENTENCES = {
    "admit": "admit {name} with {tokens}{salt}",
    "append": "append {tokens} to {name}",
    "free": "free {name}",
    "free_again": "free {name}, which is not live",
    "fork": "fork {name} into {child}",
    "truncate": "truncate {name} to {length} tokens",
    "swap_out": "swap {name} out to host memory",
    "swap_in": "swap {name} in from host memory",
    "preempt": "preempt {name} (free its blocks, keep its tokens)",
    "resume": "resume {name} (admit it again with all its tokens)",
    "lookup": "look up {tokens}{salt}",
    "allocate": "allocate {name} with {tokens}{salt}, nothing computed yet",
    "computed": "{name} is computed up to position {upto}",
    "batch": "one step over {rows}",
    "drain": "free everything, then fill the whole pool once",
    "submit": "submit {name} with {tokens}{salt}; it samples {reply}",
    "fork_request": "fork {name} into {child}, which goes on from all that it has and samples {reply}",
    "resubmit": "submit {name} again, while it is live",
    "step": "step{hold}",
    "finish": "finish the step in flight{index}",
    "cancel": "cancel {name}",
    "idle": "step until every request has ended, then let one fill the pool",
}


def operation_in_words(operation: Any) -> str:
    """One step as a person would say it; an operation without a sentence is printed as its JSON."""
    fields = msgspec.to_builtins(operation)
    if fields.get("op") in ("read", "store", "copy_blocks"):
        from properties.attention.words import in_words

        return in_words(operation)
    sentence = _SENTENCES.get(fields.get("op"))
    if sentence is None:
        return msgspec.json.encode(operation).decode()
    for runs in fields.keys() & {"tokens", "reply"}:
        fields[runs] = tokens_in_words(fields[runs])
    if "runs" in fields:
        rows = zip(fields["names"], fields["runs"], strict=False)
        fields["rows"] = ", ".join(f"{name} ({tokens_in_words(run)})" for name, run in rows)
        fields["rows"] += f" and {fields['padding']} padding tokens" if fields.get("padding") else ""
    fields["hold"] = ", left in flight" if fields.get("hold") else ""
    fields["index"] = f" that is {fields['index']} behind the oldest" if fields.get("index") else ""
    fields["salt"] = f" under salt {fields['salt']!r}" if fields.get("salt") is not None else ""
    return sentence.format(**fields)


def geometry_in_words(geometry: Any) -> str:
    """The settings that a trace ran with, without those left at their default."""
    fields = msgspec.to_builtins(geometry)
    return ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in fields.items())


def steps_in_words(
    operations: Sequence[Any],
    broken_at: int | None = None,
    property: str = "",
    outcomes: Mapping[int, str] | None = None,
) -> list[str]:
    """Numbered steps, each with what it came to where its operation does not tell; the one that breaks the clause is marked."""
    lines = []
    for number, operation in enumerate(operations, 1):
        mark = f"   <- breaks {property}" if number == broken_at else ""
        outcome = f" ({outcomes[number]})" if outcomes and number in outcomes else ""
        lines.append(f"  {number:3}  {operation_in_words(operation)}{outcome}{mark}")
    return lines


def explain(case: Case, broken_at: int | None = None, replay: str | None = None) -> str:
    """The whole text of a finding: clause, settings, steps, explanation and, if given, the replay command."""
    words = geometry_in_words(case.geometry)
    settings = f" ({words})" if words else ""
    broken = clause(case.property)
    lines = [
        f"{broken.id}: {broken.text}",
        f"does not hold for {case.target}{settings}:",
        "",
        *steps_in_words(case.operations, broken_at, broken.id, case.outcomes),
        "",
        case.message,
    ]
    if replay:
        lines += ["", f"replay: {replay}"]
    return "\n".join(lines)
