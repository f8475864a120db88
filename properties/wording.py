"""Words that every report shares."""


def counted(number: int, noun: str) -> str:
    """A number and what it counts.

    >>> counted(1, "step"), counted(0, "step"), counted(1200, "query"), counted(2, "broken clause")
    ('1 step', '0 steps', '1,200 queries', '2 broken clauses')
    """
    if number == 1:
        return f"1 {noun}"
    return f"{number:,} {noun[:-1]}ies" if noun.endswith("ry") else f"{number:,} {noun}s"


UNREPEATED = "the target does not repeat itself"
"""Said of a call that was wrong, and is right when it is made again: what it comes behind explains nothing then."""
HELD_ALONE = "Alone, in a fresh process, this case holds"
"""Begins what is added to a finding that was seen behind other cases; `pagefault repro` knows such a case by it."""


_UNRETURNED = "it did not return within"


def unreturned(limit_s: float) -> str:
    """The words for a call that was stopped after `limit_s` seconds."""
    return f"{_UNRETURNED} {limit_s:g} s"


def is_unreturned(words: str) -> bool:
    """Whether they are, or end with, those of `unreturned`."""
    return _UNRETURNED in words
