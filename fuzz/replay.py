"""Replay of cases, each in a fresh process: FIXED, FAILED, FAILED (changed) or ERROR."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fuzz import child, messages
from fuzz.case_in_fork import CRASH
from fuzz.jobs import TRIES
from fuzz.whereabouts import located
from properties.case import Case, encode, read
from properties.contract import UsageError
from properties.specs import spec_of
from properties.wording import HELD_ALONE

EXIT_CODES = {"FIXED": 0, "FAILED": 1, "FAILED, changed": 1, "ERROR": 2}


@dataclass(frozen=True)
class Replayed:
    """What came of one case. `step` is where it failed, 0 if it did not."""

    path: str
    status: str
    detail: str
    target: str = ""
    property: str = ""
    step: int = 0


class Replayer:
    """Replays cases; keeps one child a target, in which each case has a fork of its own. Close it."""

    def __init__(self, device: str, limit_s: float, target: str | None = None) -> None:
        self.device, self.limit_s, self.target = device, limit_s, target
        self._children: dict[str, child.Child] = {}

    def close(self) -> None:
        """End the child processes."""
        for process in self._children.values():
            process.stop()
        self._children.clear()

    def replay(self, path: str) -> Replayed:
        """Replay the case in a file. Never fails: what is wrong is in the answer."""
        try:
            case = read(Path(path))
            name = case.target if self.target is None else self.target
            case.target = located(name, Path(path)) if self.target is None else name
        except UsageError as error:
            return Replayed(path, "ERROR", str(error))
        try:
            status, detail, step = self._judge(case)
        except (UsageError, child.Ended) as error:
            status, detail, step = "ERROR", str(error), 0
        return Replayed(path, status, detail, name, case.property, step)

    def _judge(self, case: Case) -> tuple[str, str, int]:
        spec_of(case.level)
        verdict = ("ERROR", "not run", 0)
        for _ in range(TRIES if case.flaky else 1):
            verdict = verdict_of(case, self._run(case))
            if verdict[0] == "FAILED":
                return verdict
        if case.flaky and verdict[0] == "FIXED":
            detail = f"{verdict[1]} in {TRIES} runs, but {_found_how(case)}: that is no proof. Run a campaign again"
            return verdict[0], detail, verdict[2]
        return verdict

    def _run(self, case: Case) -> messages.Judged:
        command = messages.Replay(case=encode(case).decode(), limit_s=self.limit_s)
        timeout_s = self.limit_s * (len(case.operations) + 3)
        try:
            reply = child.ask(self._child(case.target), command, timeout_s)
        except child.Ended:
            self._forget(case.target)
            raise
        if isinstance(reply, messages.Judged):
            return reply
        self._forget(case.target)
        raise UsageError(getattr(reply, "message", None) or f"unexpected answer {reply}")

    def _child(self, target: str) -> child.Child:
        if target not in self._children:
            self._children[target] = child.start(target, self.device)
        return self._children[target]

    def _forget(self, target: str) -> None:
        self._children.pop(target).stop()


def _found_how(case: Case) -> str:
    """Why a flaky case need not break, in words."""
    if HELD_ALONE in case.message:
        return "it held alone when it was found, too, and broke behind other cases or by chance"
    return "it was found by chance"


def verdict_of(case: Case, judged: messages.Judged) -> tuple[str, str, int]:
    """Status, one line, and the step, for what a replay gave."""
    if judged.died:
        how = f"step {judged.step} of {len(case.operations)}: {judged.died}"
        return ("FAILED" if case.property == CRASH else "FAILED, changed"), f"{CRASH} at {how}", judged.step
    broken = {id: (message, step) for id, message, step in judged.breaches}
    if case.property in broken:
        message, step = broken[case.property]
        return "FAILED", f"{case.property} at step {step}: {message}", step
    if judged.adapter and not broken:
        return "ERROR", f"ADAPTER: {judged.adapter}", 0
    if judged.illegal and not broken:
        return "ERROR", f"{judged.illegal}. Was the file edited, or is it of another target?", 0
    others = [id for id in broken if id not in case.tolerated]
    if others:
        message, step = broken[others[0]]
        return "FAILED, changed", f"{case.property} holds, but {others[0]} at step {step}: {message}", step
    rest = f"; {', '.join(broken)} still broken, as when it was found" if broken else ""
    return "FIXED", f"{case.property} holds{rest}", 0


def replay_all(
    paths: list[str],
    device: str,
    limit_s: float,
    tell: Callable[[Replayed], None],
    target: str | None = None,
) -> list[Replayed]:
    """Replay several cases, on `target` or on those they name; `tell` is called after each."""
    replayer, results = Replayer(device, limit_s, target), []
    try:
        for path in paths:
            results.append(replayer.replay(path))
            tell(results[-1])
    finally:
        replayer.close()
    return results
