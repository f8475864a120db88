"""Judges the seeded traces of a target ahead, in several processes: what is clean there is counted, everything else is left to
be judged again by the one that gives the verdicts, who is told which clauses were broken: a wrong answer that comes once and
not again (a race, state that is kept) is a finding all the same. A crash is not: processes share the device's memory.

For a GPU: a case costs what the oracle on the host costs, and the host has many cores (ATTENTION: 20,000 cases in eight
minutes). What has to be compiled comes back through the compiler's own cache on disk, so that no compilation falls under
the time limit of a trace.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from properties.lifeline import START, command_of_ours, end
from properties.machine import Tally
from properties.trial import Verdict

BYTES_OF_A_PROCESS = 22 << 30
"""What one needs on a GPU: 20 GiB for high block ids in real memory (attention/buffers.py), and its context."""
STILL_S = 150.0
"""A process that has finished no trace for so long is given up; what it had not done is judged when its turn comes."""
MOST_UNCLEAN = 20
"""A process stops there: that target is broken, and each such trace has to be judged again."""
LOST_S = 150.0
"""So much time for unclean traces ends a process as well: a target that hangs costs the time limit of a trace each time."""
POLL_S = 0.05


class Clean(msgspec.Struct, frozen=True, tag=True):
    """What a trace without a breach adds to the tally."""

    seed: int
    steps: int
    outcomes: dict[str, int]
    judged: dict[str, int]
    marks: dict[str, int]


class Unclean(msgspec.Struct, frozen=True, tag=True):
    """A trace that has to be judged again, and the clauses that it broke here, crashes left out."""

    seed: int
    broken: tuple[str, ...]


@dataclass
class Ahead:
    """The seeds whose traces are judged already, and their tally; and the clauses that traces broke, by their seeds."""

    seeds: set[int] = field(default_factory=set)
    tally: Tally = field(default_factory=Tally)
    broken: dict[int, tuple[str, ...]] = field(default_factory=dict)


def judge_ahead(target_name: str, device: str, num_seeds: int, folder: Path) -> Ahead:
    """Judge the traces of seeds 0 .. num_seeds in as many processes as device and host have room for.

    Writes files `ahead-*` into the folder, a line for each trace. Whatever becomes of a process harms nothing: what it has
    not written is not among `seeds`.
    """
    shares = max(1, min(_room(device), (os.cpu_count() or 1) - 1, num_seeds))
    files = [folder / f"ahead-{share}" for share in range(shares)]
    arguments = [target_name, device, str(num_seeds), str(shares)]
    started = time.time()
    with _started([[*arguments, str(share), str(file)] for share, file in enumerate(files)]) as workers:
        for worker, file in zip(workers, files, strict=False):  # there may be fewer than were asked for
            _wait(worker, file, started)
    return _read(files)


@contextmanager
def _started(orders: list[list[str]]) -> Iterator[list["subprocess.Popen[bytes]"]]:
    quiet = subprocess.DEVNULL  # what a target prints is printed again by who gives the verdict
    workers: list[subprocess.Popen[bytes]] = []
    try:
        with suppress(OSError):  # no process or no file more: what is not judged ahead is judged in turn
            for order in orders:
                command = command_of_ours(__name__, "main()", *order)
                workers.append(subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet, cwd=START))
        yield workers
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()


def _wait(worker: "subprocess.Popen[bytes]", file: Path, started: float) -> None:
    """Until it ends, or has not written for STILL_S; several that stand still do so together."""
    last = started
    while worker.poll() is None:
        with suppress(OSError):  # not there yet, or not any more
            last = max(last, file.stat().st_mtime)
        if time.time() - last > STILL_S:
            return
        time.sleep(POLL_S)


def _read(files: list[Path]) -> Ahead:
    ahead = Ahead()
    for file in files:
        with suppress(OSError):  # never written, or not there any more
            for line in file.read_bytes().splitlines():
                _count(ahead, line)
    return ahead


def _count(ahead: Ahead, line: bytes) -> None:
    try:
        judged = msgspec.json.decode(line, type=Clean | Unclean)
    except msgspec.MsgspecError:  # cut short, or something else wrote into it
        return
    if isinstance(judged, Unclean):
        ahead.broken[judged.seed] = judged.broken
    elif judged.seed not in ahead.seeds:
        ahead.seeds.add(judged.seed)
        ahead.tally.count(judged.steps, judged.outcomes, judged.judged, judged.marks)


def _room(device: str) -> int:
    """Processes that a device has memory for, this one left out."""
    if device != "cuda":
        return 2
    import torch

    free, _ = torch.cuda.mem_get_info()
    return free // BYTES_OF_A_PROCESS


def run_share(target_name: str, device: str, num_seeds: int, shares: int, share: int, file: Path) -> None:
    """Every `shares`-th trace, a line for each. Ends early where too many are unclean, or cost too much time."""
    import torch

    from properties.attention.budget import on_device
    from properties.drive import drive
    from properties.specs import spec_of
    from properties.targets import load

    torch.set_num_threads(1)
    target = on_device(load(target_name), device)
    unclean, lost_s = 0, 0.0
    with file.open("wb", buffering=0) as written:
        for seed in range(share, num_seeds, shares):
            started = time.monotonic()
            _, verdict = drive(spec_of(target.level), target.make, seed)
            line = _line(seed, verdict)
            written.write(msgspec.json.encode(line) + b"\n")
            if isinstance(line, Unclean):
                unclean, lost_s = unclean + 1, lost_s + time.monotonic() - started
            if unclean >= MOST_UNCLEAN or lost_s > LOST_S:
                return


def _line(seed: int, verdict: Verdict) -> Clean | Unclean:
    if verdict.adapter is not None or verdict.breaches:
        broken = (breach.property for breach in verdict.breaches)
        return Unclean(seed, tuple(id for id in broken if not id.startswith("CRASH")))
    state = verdict.state
    return Clean(seed, len(verdict.applied), dict(verdict.outcomes), dict(state.judged), dict(state.marks))


def main() -> None:
    """One process of `judge_ahead`: target, device, number of traces, of processes, which of them this is, its file."""
    name, where, *numbers, file = sys.argv[1:]
    num_seeds, shares, share = (int(number) for number in numbers)
    run_share(name, where, num_seeds, shares, share, Path(file))
    end()
