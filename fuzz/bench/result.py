"""The record of a bench: what `--json` writes and the table and the plot are made from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import msgspec

VERSION = 1
State = Literal["timed", "wrong", "failed", "refused"]
How = Literal["graph", "events", "clock"]


class Ceilings(msgspec.Struct, frozen=True, kw_only=True):
    """What the machine can do, measured in the same process. None: not needed for these cases."""

    read_tb_s: float | None = None
    copy_tb_s: float | None = None
    product_tflops: float | None = None


class Row(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One target on one case.

    state: `wrong` and `failed` are findings and are not timed; `refused` is an answer. us: time of a call in microseconds.
    of_ceiling: share of the read ceiling (decode), the copy ceiling (store) or the matrix product (prefill).
    ratio: this target's time over that of the target under test, so above 1 the target under test is faster. error: norm of
    the error over the norm of the float64 answer (store: 0). how: by graph replay, between events, by the clock. plain: the
    adapter has no `prepare_*` for this, so that its conversions are in the time. why: what is wrong, or was refused.
    """

    case: str
    kind: str
    dtype: str
    target: str
    state: State
    us: float | None = None
    tb_s: float | None = None
    tflops: float | None = None
    of_ceiling: float | None = None
    ratio: float | None = None
    error: float | None = None
    how: How | None = None
    plain: bool = False
    why: str = ""


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """The target under test against one other, over the cases that both ran: ratios as in `Row`."""

    against: str
    kind: str
    geometric_mean: float
    least: float
    most: float
    num_cases: int


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """A whole bench. missing: targets that cannot run here, and why; left_out: default cases too big for this memory.

    load: on a CPU, what else kept each processor busy while it started (1 = one more process); None on a GPU.
    """

    version: int = VERSION
    date: str
    device: str
    device_name: str
    load: float | None = None
    versions: dict[str, str]
    target: str
    against: tuple[str, ...]
    ceilings: Ceilings
    rows: tuple[Row, ...]
    compared: tuple[Compared, ...]
    missing: dict[str, str]
    left_out: dict[str, str]

    @property
    def findings(self) -> tuple[Row, ...]:
        """Rows with a wrong answer or a crash."""
        return tuple(row for row in self.rows if row.state in ("wrong", "failed"))


def to_json(result: Result) -> bytes:
    """The result as one JSON object."""
    return msgspec.json.format(msgspec.json.encode(result), indent=1)


def from_json(text: bytes | str) -> Result:
    """Inverse of `to_json`. Raises `msgspec.ValidationError`, which names the field, for anything else."""
    return msgspec.json.decode(text, type=Result)


def with_ratios(rows: Sequence[Row], target: str) -> list[Row]:
    """The rows of one case with `ratio` filled in, where both were timed."""
    base = next((row.us for row in rows if row.target == target and row.us), None)
    if base is None:
        return list(rows)
    return [row if row.us is None else msgspec.structs.replace(row, ratio=row.us / base) for row in rows]


def compare(rows: Sequence[Row], target: str) -> list[Compared]:
    """Every other target against the one under test, kind by kind."""
    found = []
    for key in dict.fromkeys((row.target, row.kind) for row in rows if row.target != target):
        ratios = [row.ratio for row in rows if (row.target, row.kind) == key and row.ratio is not None]
        if ratios:
            mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
            least, most = min(ratios), max(ratios)
            found.append(
                Compared(
                    against=key[0], kind=key[1], geometric_mean=mean, least=least, most=most, num_cases=len(ratios)
                )
            )
    return found
