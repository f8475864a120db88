"""What an engine may do by design is no false alarm, or comes with the declaration that says so."""

from __future__ import annotations

import json

from properties.engine.progress import KEEPS_A_SLOT
from properties.engine.replay import judge_history

OPEN = {"event": "open", "format": "pagefault history", "version": 1, "num_blocks": 8, "block_size": 2}


def judged(*events: dict[str, object], **opened: object) -> dict[str, str]:
    """Clause -> explanation of a history."""
    lines = [json.dumps(event).encode() + b"\n" for event in (OPEN | opened, *events)]
    verdict = judge_history(lines)
    assert verdict.error is None
    return {breach.property: breach.message for breach, _ in verdict.breaches}


OPENED = {"max_tokens_per_step": 8, "max_rows": 4}
FOUR = [0, 1, 2, 3]


def step(
    number: int, row: list[object], lens: list[int], table: list[list[int]] | None, **more: object
) -> dict[str, object]:
    given = {} if table is None else {"block_tables": table}
    return {"event": "step", "step": number, "rows": [row], "context_lens": lens, **given, **more}


def decoded(table: list[list[int]] | None) -> tuple[dict[str, object], ...]:
    """A request of four tokens, prefilled with tables or without, then decoded without."""
    return (
        {"event": "submit", "name": "r", "tokens": FOUR, "max_new_tokens": 2},
        step(1, ["r", 0, 4, True], [4], table, tables={"r": [5, 2, 1]}),
        {"event": "finish", "step": 1, "tokens": [7]},
        step(2, ["r", 4, 5, True], [5], None),
        {"event": "finish", "step": 2, "tokens": [8]},
        {"event": "close"},
    )


def test_a_history_that_never_gives_tables_is_not_judged_on_them() -> None:
    assert judged(*decoded(None), **OPENED) == {}


def test_one_step_without_tables_among_others_that_have_them_is_a_fault() -> None:
    assert "the step has no block tables" in judged(*decoded([[5, 2, 1]]), **OPENED)["BATCH-4"]


def test_a_block_that_is_shared_within_a_step_comes_with_the_declaration() -> None:
    events: tuple[dict[str, object], ...] = (
        {"event": "submit", "name": "a", "tokens": FOUR, "max_new_tokens": 2},
        {"event": "submit", "name": "b", "tokens": FOUR, "max_new_tokens": 2},
        {
            "event": "step", "step": 1, "rows": [["a", 0, 4, True], ["b", 2, 4, True]],
            "tables": {"a": [0, 1], "b": [0, 2]},
        },
        {"event": "finish", "step": 1, "tokens": [7, 7], "ended": ["a", "b"]},
        {"event": "close"},
    )  # fmt: skip

    told = judged(*events, **OPENED)

    assert "If request a writes it in the same step, before b reads it, and that is by design" in told["HASH-2"]
    assert "same_step_sharing=True" in told["HASH-2"]
    assert judged(*events, **OPENED, same_step_sharing=True) == {}


def refused(num_prompt: int, num_new: int, **opened: object) -> str:
    """What is said of a refusal, in a pool of 16 tokens."""
    event = {
        "event": "submit",
        "name": "r",
        "tokens": list(range(num_prompt)),
        "max_new_tokens": num_new,
        "refused": "TooLarge",
    }
    return judged(event, {"event": "close"}, **OPENED, **opened).get("LIVE-1", "")


def test_a_refusal_for_the_last_token_is_reckoned_and_comes_with_the_declaration_that_allows_it() -> None:
    message = refused(10, 7)
    assert (
        "needs 8 blocks of 8, for 16 tokens (10 + 7 - 1: the KV of the last token sampled is never written)" in message
    )
    assert message.endswith(KEEPS_A_SLOT)
    assert refused(10, 7, look_ahead=1) == ""


def test_a_refusal_with_more_room_than_that_does_not_name_a_declaration_that_would_not_help() -> None:
    assert refused(10, 6).endswith("declare the limit (max_tokens, watermark_blocks, look_ahead)")
    assert refused(10, 8) == ""
