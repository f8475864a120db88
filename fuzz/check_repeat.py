"""Does an adapter give the same answers twice: in a second process, and on an adapter that was opened before?"""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import msgspec
import xxhash

from fuzz import messages
from fuzz.case_in_fork import MADE_WRONG
from fuzz.check_where import Whereabouts, driven, require_alive
from fuzz.isolate import Emit
from fuzz.own_error import in_guarded_fork
from fuzz.seeds import case_seed
from properties.declared import Problem
from properties.drive import NUM_STEPS as USUAL
from properties.levels import LevelSpec
from properties.targets import Target

NUM_REPEATED = 40
"""Traces that are run three times; what depends on time, chance or hash order shows in the first few."""
LEAST_REPEATED = 2
"""Traces that are repeated at least."""
NUM_STEPS = {"cache": 15}
"""Operations of each, where they are slow."""
_OPENS = "build a new implementation in open(), and reset its class-level globals there"


def repeat(target: Target, spec: LevelSpec, limit_s: float, where: Whereabouts, seconds: float) -> messages.Checked:
    """The same traces twice, one behind the other on one adapter object, and each in a process of its own.

    Takes about three times `seconds`. Raises `Stopped`.
    """
    seeds = [case_seed(1, target.name, number) for number in range(NUM_REPEATED)]
    once = digests(target, spec, seeds, limit_s, where, seconds)
    seeds = seeds[: len(once)]  # fewer where the target is slow
    twice = digests(target, spec, seeds, limit_s, where)
    alone = [digest for seed in seeds for digest in digests(target, spec, [seed], limit_s, where)]
    pairs = zip(once, twice, alone, strict=True)
    problems: list[Problem] = []
    for number, (first, second, fresh) in enumerate(pairs, 1):
        if first != second:
            what = f"the same trace (number {number}) gave other answers in a second process"
            problems.append((what, "no clocks, no unseeded randomness, no order of a set or of hash()"))
            break
        if first != fresh:
            what = f"the same trace (number {number}) gave other answers on an adapter that was opened before"
            problems.append((what, _OPENS))
            break
    return messages.Checked(
        problems=tuple(problems), notes=(f"{len(seeds)} traces gave their answers three times over",)
    )


def digests(
    target: Target, spec: LevelSpec, seeds: list[int], limit_s: float, where: Whereabouts, seconds: float = float("inf")
) -> list[str]:
    """A digest of the answers of each trace, run one behind the other in one fork. Raises `Stopped`."""

    def work(emit: Emit) -> None:
        where.say(MADE_WRONG)
        shared = target.make()
        found: list[str] = []
        stop, num_steps = time.monotonic() + seconds, NUM_STEPS.get(spec.level, USUAL)
        for number, seed in enumerate(seeds, 1):
            where.begin(f"the same answers again, trace {number} of {len(seeds)}")
            if len(found) >= LEAST_REPEATED and time.monotonic() > stop:
                break
            watch = _Answers(spec)
            driven(watch.spec, lambda: shared, seed, where, emit, num_steps)
            found.append(watch.digest())
        emit(msgspec.json.encode(found))

    ended = in_guarded_fork(work, limit_s=limit_s)
    require_alive(ended, limit_s, where)
    return msgspec.json.decode(ended.frames[-1], type=list[str])


class _Answers:
    """The spec with a referee whose view of the target is digested after every operation."""

    def __init__(self, spec: LevelSpec) -> None:
        self._plain, self._hash = spec, xxhash.xxh64()
        self.spec = dataclasses.replace(spec, referee=self._referee)

    def digest(self) -> str:
        """Sixteen hexadecimal digits."""
        return self._hash.hexdigest()

    def _referee(self, target: Any, geometry: Any) -> Any:
        referee: Any = self._plain.referee(target, geometry)
        apply, state = referee.apply, referee.state

        def watched(operation: Any) -> str:
            outcome: str = apply(operation)
            self._hash.update(repr((outcome, *_seen(state))).encode())
            return outcome

        referee.apply = watched
        return referee


def _seen(state: Any) -> list[object]:
    """What the referee has seen of the target, as far as its level keeps it: slots, free and cached blocks, breaches."""
    live = getattr(state, "live", None)
    sequences = live.values() if isinstance(live, dict) else ()
    slots = [(seq.name, tuple(seq.slots)) for seq in sequences if hasattr(seq, "slots")]
    pools = [sorted(blocks) for name in ("free", "cached") if (blocks := getattr(state, name, None)) is not None]
    return [slots, pools, [breach.property for breach in state.breaches]]
