"""The child of `elsewhere`: `main(FOLDER)` carries out FOLDER/order and writes FOLDER/answer."""

from __future__ import annotations

import os
import pickle
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from properties.blame import is_own, last_lines, said
from properties.contract import AdapterError, UsageError
from properties.elsewhere import FULL, LOST, NO_ROOM, NOTE, ORDER, Answer, Order
from properties.ledger import Ledger
from properties.levels import LevelSpec
from properties.lifeline import end


class Noted:
    """A referee that notes each operation before it is applied, and ends the process when the device is lost."""

    def __init__(self, referee: Any, geometry: Any, folder: Path, device: str) -> None:
        self.referee, self.device, self.folder = referee, device, folder
        self.state = referee.state
        self.file = (folder / NOTE).open("wb", buffering=0)
        self._note(geometry)

    def apply(self, operation: Any) -> str:
        self._note(operation)
        outcome: str = self.referee.apply(operation)
        leave_if_lost(self.device, self.folder)
        return outcome

    def _note(self, value: Any) -> None:
        with leaving_if_full(self.folder):
            self.file.write(msgspec.json.encode(value) + b"\n")

    def close(self) -> None:
        self.referee.close()
        self.file.close()


@contextmanager
def leaving_if_full(folder: Path) -> Iterator[None]:
    """Ends the process if the disk is full: that is nobody's finding. The order is removed, which needs no room, so that a
    target that ends with this status does not pass for it."""
    try:
        yield
    except OSError as error:
        if error.errno in NO_ROOM:
            with suppress(OSError):
                (folder / ORDER).unlink()
            os._exit(FULL)
        raise


def leave_if_lost(device: str, folder: Path) -> None:
    """Ends the process if the device answers nothing any more: every later call would fail, and be blamed wrongly."""
    if device != "cuda":
        return
    import torch

    try:
        torch.cuda.synchronize()
    except RuntimeError as error:
        _leave(folder, f"the device faulted: {str(error).splitlines()[0]}")


def _leave(folder: Path, words: str) -> None:
    with leaving_if_full(folder):
        (folder / "lost").write_text(words)
    os._exit(LOST)


def noted(spec: LevelSpec, folder: Path, device: str) -> LevelSpec:
    """The level with its referees noting what they do."""

    def referee(target: Any, geometry: Any) -> Any:
        return Noted(spec.referee(target, geometry), geometry, folder, device)

    return replace(spec, referee=referee)


def judge(order: Order, folder: Path, write: Callable[[Answer], None]) -> None:
    """Everything that `pytest properties` judges. What applies is written first, so that it is known after a death."""
    from properties.ahead import judge_ahead
    from properties.effort import effort_for
    from properties.judging import judge_target, read_corpus
    from properties.specs import spec_of
    from properties.targets import load
    from properties.trial import new_target

    target, profile, num_seeds = effort_for(load(order.target), order.profile_name, order.device)
    spec = spec_of(target.level)
    sample = new_target(target.make)
    offers = spec.offered(sample)
    early = {
        "applicable": spec.applicable(sample.capabilities, offers),
        "marks": spec.marks(sample.capabilities, offers),
    }
    write(Answer(results=early))
    ahead = judge_ahead(order.target, order.device, num_seeds, folder) if order.device == "cuda" else None
    spec = noted(spec, folder, order.device)
    results = judge_target(target, profile, num_seeds, Ledger(order.known), read_corpus(), spec, ahead)
    if results.adapter is not None:
        raise results.adapter
    fields = ("findings", "tally", "applicable", "marks", "corpus")
    write(Answer(complete=True, results={name: getattr(results, name) for name in fields}))


def run_one(order: Order, folder: Path, write: Callable[[Answer], None]) -> None:
    """One trace: what it breaks, if the process survives it."""
    from properties.effort import effort_for
    from properties.specs import spec_of
    from properties.targets import load
    from properties.trial import EVERYTHING, run_trace

    target, *_ = effort_for(load(order.target), order.profile_name, order.device)
    spec = noted(spec_of(target.level), folder, order.device)
    verdict = run_trace(spec, target.make, *order.trace, tolerate=EVERYTHING)
    if verdict.adapter is not None and not verdict.breaches:
        raise verdict.adapter
    write(Answer(complete=True, results={"broken": {breach.property: breach.step for breach in verdict.breaches}}))


def shapes(order: Order, folder: Path, write: Callable[[Answer], None]) -> None:
    """Every shape of a real model; the one in work is written as None before it begins."""
    from properties.attention.budget import on_device
    from properties.attention.judge_read import judge_read
    from properties.attention.named import named_cases
    from properties.targets import load
    from properties.trial import new_target

    target = new_target(on_device(load(order.target), order.device).make)
    found: dict[str, str | None] = {}
    for name, case in named_cases().items() if target.capabilities.real_shapes else ():
        found[name] = None
        write(Answer(results={"shapes": found}))
        verdict = judge_read(target, case, order.device)
        leave_if_lost(order.device, folder)
        found[name] = verdict.findings[0].message if verdict.findings else None
    write(Answer(complete=True, results={"shapes": found}))


def main(name: str) -> None:
    """Carry out the order in a folder."""
    folder = Path(name)
    os.environ["OMP_NUM_THREADS"] = "1"  # tensors this small are slower on several threads; bookkeeping needs no torch
    order: Order = pickle.loads((folder / ORDER).read_bytes())

    def write(answer: Answer) -> None:
        with leaving_if_full(folder):
            (folder / "next").write_bytes(pickle.dumps(answer))
        (folder / "next").replace(folder / "answer")

    try:
        {"judge": judge, "trace": run_one, "shapes": shapes}[order.what](order, folder, write)
    except BaseException as error:
        leave_if_lost(order.device, folder)
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(error, torch.OutOfMemoryError):  # whoever asked for it in vain
            _leave(folder, f"the device has no memory left: {str(error).splitlines()[0]}")
        answer = _excuse(error, begun=(folder / NOTE).exists())
        if answer is None:
            raise
        write(answer)
    end()


def _excuse(error: BaseException, *, begun: bool) -> Answer | None:
    """What an exception says that is no end of the target's process. begun: an operation was under way."""
    from properties.targets import Unavailable

    if isinstance(error, Unavailable):
        return Answer(complete=True, unavailable=str(error))
    if isinstance(error, AdapterError):
        return Answer(complete=True, adapter=(error.problem, error.remedy))
    if isinstance(error, UsageError):  # found by who asked for this, and not here
        return Answer(complete=True, adapter=(f"in a process of its own: {error}", _EVERYWHERE))
    if isinstance(error, Exception) and is_own(error):
        return Answer(complete=True, own=traceback.format_exc(limit=-6))
    if not begun:
        return Answer(
            complete=True, adapter=(f"making the adapter raised {said(error)} ({last_lines(error)})", _EVERYWHERE)
        )
    return None


_EVERYWHERE = "importing the target and making its adapter must succeed in every process that does it"
