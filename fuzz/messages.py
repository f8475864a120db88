"""What a supervisor and its child processes say to each other: one JSON object on a line, on pipes of their own.

Targets print garbage, crash and hang, so a child's standard output is never trusted with a message.
"""

from __future__ import annotations

import msgspec


class Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind"):
    """Root of both directions."""


# ---- supervisor to child ------------------------------------------------------------------------------------------


class Slice(Message, frozen=True, tag="slice"):
    """Run generated cases `[first, stop)` for at most `seconds`; a case that was begun may take until `left_s` are over.

    `tolerate` are clauses that do not end a trace any more; `seen` how often each was broken so far.
    """

    first: int
    stop: int
    seconds: float
    left_s: float
    tolerate: tuple[str, ...] = ()
    seen: dict[str, int] = {}


class Rerun(Message, frozen=True, tag="rerun"):
    """Run the saved traces at these paths, as in a slice."""

    paths: tuple[str, ...]
    seconds: float
    left_s: float
    tolerate: tuple[str, ...] = ()
    seen: dict[str, int] = {}


class Replay(Message, frozen=True, tag="replay"):
    """Judge a case in a process of its own; no operation may take longer than `limit_s`."""

    case: str
    limit_s: float


class Confirm(Message, frozen=True, tag="confirm"):
    """Does a case fail again, alone? If not, does it fail behind the generated cases `preceding`?"""

    case: str
    limit_s: float
    preceding: tuple[tuple[int, int], ...] = ()


class Minimise(Message, frozen=True, tag="minimise"):
    """Make a case smaller for at most `seconds`; with `isolated` each candidate has a process of its own."""

    case: str
    limit_s: float
    seconds: float
    isolated: bool = False


class CheckTarget(Message, frozen=True, tag="check"):
    """Is the adapter sound? Takes about `seconds`; no call may take longer than `limit_s`.

    `progress` is a file into which each call is written, in memory that both map (`fuzz.check_where`).
    """

    limit_s: float
    seconds: float
    progress: str = ""


class Make(Message, frozen=True, tag="make"):
    """Can the adapter be made? In a fork, which may take `limit_s`."""

    limit_s: float


Command = Slice | Rerun | Replay | Confirm | Minimise | CheckTarget | Make


# ---- child to supervisor ------------------------------------------------------------------------------------------


class Ready(Message, frozen=True, tag="ready"):
    """The target is loaded: what a campaign on it must reach."""

    level: str
    versions: dict[str, str]
    applicable: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()
    offers: tuple[str, ...] = ()


class Making(Message, frozen=True, tag="making"):
    """The target is loaded, and its adapter is being made for the first time: sent again while it imports modules.

    `limit_s` is the least time that its level gives a call.
    """

    limit_s: float = 0.0


class Unusable(Message, frozen=True, tag="unusable"):
    """The child cannot go on. `why` is "usage", "unavailable", "adapter", "disk", "internal" or "restart"."""

    why: str
    message: str


class Counts(Message, frozen=True, tag="counts"):
    """What was done since the last counts; `next` is the next case to run."""

    next: int
    cases: int = 0
    operations: int = 0
    refused: int = 0
    busy_s: float = 0.0
    judged: dict[str, int] = {}
    marks: dict[str, int] = {}
    broken: dict[str, int] = {}
    finished: bool = False


class Found(Message, frozen=True, tag="found"):
    """A clause was broken; the case is saved at `path`. `preceding` are `(seed, steps)` of the cases before it."""

    path: str
    property: str
    occurrence: int
    preceding: tuple[tuple[int, int], ...] = ()


class Note(Message, frozen=True, tag="note"):
    """A line for the user."""

    text: str


class Broken(Message, frozen=True, tag="broken"):
    """The adapter breaks its own protocol."""

    problem: str
    remedy: str
    case_index: int
    trace: str = ""


class Judged(Message, frozen=True, tag="judged"):
    """What came of a replay. `breaches` are `(property, message, step)`.

    `illegal` says why an operation has no meaning; `skipped` are the indices of all that had none. `adapter` says that the
    adapter broke its protocol, `died` how the process ended. `step` is the last operation that was begun. `outcomes` is as
    in a case.
    """

    breaches: tuple[tuple[str, str, int], ...] = ()
    illegal: str = ""
    skipped: tuple[int, ...] = ()
    adapter: str = ""
    died: str = ""
    step: int = 0
    outcomes: dict[int, str] = {}


class Confirmed(Message, frozen=True, tag="confirmed"):
    """`how` is "failed", "flaky" (sometimes), "leaks" (only behind other cases) or "gone" (never again).

    detail: why, in a line; below it the steps of the earlier case and of this one, where something leaks.
    case: the case that failed, where that is another one: the operations of earlier cases before it.
    """

    how: str
    case: str = ""
    detail: str = ""
    died: bool = False
    signal: int = 0


class Smaller(Message, frozen=True, tag="smaller"):
    """The smallest case found; `held` says that it fails each time in a process of its own.

    missed: of REPEATS - 1 more runs those in which the case that was to be made smaller did not fail as before.
    """

    case: str
    held: bool
    missed: int = 0


class Checked(Message, frozen=True, tag="checked"):
    """`problems` are `(what, remedy)`; `notes` what was seen, in words."""

    problems: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()


class Made(Message, frozen=True, tag="made"):
    """`problem` is "" if the adapter can be made."""

    problem: str = ""


Reply = Note | Made | Making | Ready | Unusable | Counts | Found | Broken | Judged | Confirmed | Smaller | Checked

_ENCODER = msgspec.json.Encoder()
_COMMANDS: msgspec.json.Decoder[Command] = msgspec.json.Decoder(Command)
_REPLIES: msgspec.json.Decoder[Reply] = msgspec.json.Decoder(Reply)


def encode(message: Message) -> bytes:
    """One line."""
    return _ENCODER.encode(message) + b"\n"


def decode_command(line: bytes) -> Command:
    """Read a line from the supervisor."""
    return _COMMANDS.decode(line)


def decode_reply(line: bytes) -> Reply:
    """Read a line from a child. Raises `msgspec.DecodeError`."""
    return _REPLIES.decode(line)
