"""The worker's loop: draw a case, apply it through the referee, count what came of it, keep what broke."""

from __future__ import annotations

import time
import traceback
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from fuzz import corpus, messages, versions
from fuzz.case_in_fork import NO_LIMIT_S
from fuzz.journal import Head, Journal
from fuzz.seeds import case_seed, num_steps
from properties.blocks.declarations import COUNTED, lie
from properties.case import Case, encode, write
from properties.contract import AdapterError, UsageError
from properties.declared import level_problem
from properties.drive import drive
from properties.leading import with_steps
from properties.levels import LevelSpec
from properties.targets import Target, Unavailable
from properties.trial import Verdict, run_trace

COUNTS_EVERY_S = 0.25
"""Most seconds between two reports to the supervisor; a young worker reports more often, since many die young."""
PRECEDING = 1000
"""Cases before a failing one that are remembered, to tell whether state was kept between cases."""
PATIENCE_S = 1.0
"""How far a case may run past the end of the campaign before it is cut."""


class OutOfTime(Exception):
    """The campaign's time is up in the middle of a slow case, or the adapter turned out to be broken."""


class Loop:
    """One worker on one target. `say` sends a message to the supervisor; `adapter` is a first one, for what it declares.

    `fragile` says that a crash may spoil the process (a GPU after a device assert): it then asks for a fresh one.
    """

    def __init__(
        self,
        target: Target,
        spec: LevelSpec,
        say: Callable[[messages.Message], None],
        campaign: Path,
        journal: Path,
        saved: Path,
        seed: int,
        adapter: Any,
        fragile: bool = False,
    ) -> None:
        self.target, self.spec, self.say, self.seed, self.fragile = target, spec, say, seed, fragile
        self.home = Path.cwd()  # a target may change the working folder
        self.pending, self.corpus = self.home / campaign / "pending", self.home / saved
        wrong = level_problem(adapter, spec.level)  # of the function that made it
        if wrong is not None:
            raise AdapterError(*wrong)
        self.versions = versions.versions_of(target.name, adapter)
        self.capabilities = adapter.capabilities
        self.offers = spec.offered(adapter)
        self.journal = Journal(self.home / journal)
        self.preceding: deque[tuple[int, int]] = deque(maxlen=PRECEDING)
        self.unseen: set[str] | None = None
        self.frees: Counter[str] = Counter()
        self.end = self.cut = 0.0
        self.born = time.monotonic()
        self._reset()

    def ready(self) -> messages.Ready:
        """What a campaign on this target must reach."""
        marks = self.spec.marks(self.capabilities, self.offers)
        self.unseen = corpus.missing_marks(corpus.saved(self.corpus), sorted(marks))
        return messages.Ready(
            level=self.spec.level,
            versions=self.versions,
            applicable=tuple(sorted(self.spec.applicable(self.capabilities, self.offers))),
            marks=tuple(sorted(marks)),
            offers=tuple(sorted(self.offers)),
        )

    def obey(self, command: messages.Command) -> None:
        """Run a slice of cases, or saved traces. Raises `OSError` where the journal cannot be written."""
        if not isinstance(command, messages.Slice | messages.Rerun):
            raise UsageError(f"a campaign worker does not do {type(command).__name__}")
        self.tolerate, self.seen = set(command.tolerate), Counter(command.seen)
        now = time.monotonic()
        self.end, self.cut, self.told = now + command.seconds, now + command.left_s + PATIENCE_S, now
        self._reset()
        try:
            if isinstance(command, messages.Slice):
                self._generate(command.first, command.stop)
            else:
                self._rerun(command.paths)
        except OutOfTime:
            pass
        self._tell(finished=True)

    # ---- cases -----------------------------------------------------------------------------------------------------

    def _generate(self, first: int, stop: int) -> None:
        self.next = first
        for index in range(first, stop):
            seed = case_seed(self.seed, self.target.name, index)
            self.journal.begin(Head(index, seed, num_steps(seed)))
            geometry, verdict = self._guarded(self._drive, seed)
            self.next = index + 1
            self._account(geometry, verdict, index, seed)
            self.preceding.append((seed, num_steps(seed)))
            if self.fragile and verdict.broke("CRASH-1"):
                self._start_afresh()
            now = time.monotonic()
            if now >= self.end:
                return
            if now - self.told >= min(COUNTS_EVERY_S, (now - self.born) / 2):
                self._tell()

    def _start_afresh(self) -> NoReturn:
        self._tell(finished=True)
        self.say(messages.Unusable(why="restart", message="a call failed, which may have spoilt the device's context"))
        raise SystemExit(0)

    def _drive(self, seed: int) -> tuple[Any, Verdict]:
        return drive(
            self.spec,
            self.target.make,
            seed,
            num_steps=num_steps(seed),
            tolerate=self.tolerate,
            opened=self.journal.add,
            before=self._before,
            limit_s=NO_LIMIT_S,
        )

    def _rerun(self, paths: tuple[str, ...]) -> None:
        self.next = 0
        for number, path in enumerate(paths, 1):
            try:
                level, geometry, operations = corpus.read(self.home / path)
            except UsageError as error:  # of another version, or damaged
                self.say(messages.Note(text=f"a saved trace is left out: {error}"))
                continue
            if level == self.spec.level and self.spec.accepts(self.capabilities, geometry):
                self.journal.begin(Head(-number))
                self.journal.add(geometry)
                geometry, verdict = self._guarded(self._run, (geometry, operations))
                self._account(geometry, verdict, -number, None)
            self.next = number
            if time.monotonic() >= self.end:
                return

    def _run(self, trace: tuple[Any, Any]) -> tuple[Any, Verdict]:
        geometry, operations = trace
        verdict = run_trace(
            self.spec,
            self.target.make,
            geometry,
            operations,
            tolerate=self.tolerate,
            before=self._before,
            limit_s=NO_LIMIT_S,
        )
        return geometry, verdict

    def _before(self, operation: Any) -> None:
        self.journal.add(operation)
        if time.monotonic() > self.cut:
            raise OutOfTime

    def _guarded(self, run: Callable[[Any], tuple[Any, Verdict]], what: Any) -> tuple[Any, Verdict]:
        """An error of the referee's own is an internal error, never a finding."""
        try:
            return run(what)
        except (OSError, OutOfTime, Unavailable):
            raise
        except Exception:
            self.say(messages.Unusable(why="internal", message=traceback.format_exc(limit=-6)))
            raise SystemExit(0) from None

    # ---- what came of a case ---------------------------------------------------------------------------------------

    def _account(self, geometry: Any, verdict: Verdict, index: int, seed: int | None) -> None:
        self.cases += 1
        state = verdict.state
        if state is not None:
            self.operations += len(verdict.applied)
            self.refused += verdict.outcomes["refused"]
            judged = self.judged
            for id, count in state.judged.items():
                if count:
                    judged[id] = judged.get(id, 0) + count
            marks = state.marks
            for mark, count in marks.items():
                self.marks[mark] = self.marks.get(mark, 0) + count
            if self.unseen:
                self._keep_if_new(geometry, verdict)
            self.frees.update({mark: marks[mark] for mark in COUNTED if marks[mark]})
        for breach in verdict.breaches:
            self._broke(breach, geometry, verdict, seed)
        if verdict.adapter is not None and not verdict.breaches:
            trace = (geometry, tuple(verdict.applied), index)  # behind a breach anything may fail: no verdict
            self._adapter(with_steps(self.spec, self.target.make, verdict.adapter), trace)
        lied = lie(self.capabilities, self.frees, self.tolerate)
        if lied is not None:
            self._adapter(lied, (geometry, tuple(verdict.applied), index))

    def _broke(self, breach: Any, geometry: Any, verdict: Verdict, seed: int | None) -> None:
        id = breach.property
        self.seen[id] += 1
        self.broken[id] = self.broken.get(id, 0) + 1
        self.tolerate.add(id)
        occurrence = self.seen[id]
        if occurrence & (occurrence - 1):
            return  # 1, 2, 4, 8, ... are kept: another fault may stand behind the same clause
        case = Case(
            level=self.spec.level,
            target=self.target.name,
            property=id,
            message=breach.message,
            geometry=geometry,
            operations=tuple(verdict.applied),
            tolerated=tuple(sorted(self.tolerate - {id})),
            seed=seed,
            versions=self.versions,
            breaches=tuple(verdict.breaches),
            outcomes=getattr(verdict.state, "outcomes", {}),
        )
        path = self.pending / f"{safe_name(self.target.name)}-{id}-{occurrence}.json"
        try:
            write(case, path)
        except OSError:
            self.say(messages.Note(text=f"this case could not be saved; it is here whole:\n{encode(case).decode()}"))
            raise
        self.say(messages.Found(path=str(path), property=id, occurrence=occurrence, preceding=tuple(self.preceding)))

    def _keep_if_new(self, geometry: Any, verdict: Verdict) -> None:
        new = self.unseen & verdict.state.marks.keys() if self.unseen else ()
        for mark in sorted(new):
            trace = corpus.SavedTrace(
                level=self.spec.level,
                target=self.target.name,
                reached=mark,
                geometry=geometry,
                operations=tuple(verdict.applied),
            )
            corpus.save(self.corpus, trace)
        if self.unseen:
            self.unseen -= set(new)

    def _adapter(self, error: AdapterError, trace: tuple[Any, tuple[Any, ...], int] | None) -> None:
        index = -1 if trace is None else trace[2]
        text = "" if trace is None else msgspec.json.encode(trace[:2]).decode()
        self.say(messages.Broken(problem=error.problem, remedy=error.remedy, case_index=index, trace=text))
        raise OutOfTime

    # ---- counts ----------------------------------------------------------------------------------------------------

    def _reset(self) -> None:
        self.cases = self.operations = self.refused = 0
        self.judged: dict[str, int] = {}
        self.marks: dict[str, int] = {}
        self.broken: dict[str, int] = {}
        self.since = time.monotonic()
        self.next = 0

    def _tell(self, *, finished: bool = False) -> None:
        now, following = time.monotonic(), self.next
        self.say(
            messages.Counts(
                next=following,
                cases=self.cases,
                operations=self.operations,
                refused=self.refused,
                busy_s=now - self.since,
                judged=self.judged,
                marks=self.marks,
                broken=self.broken,
                finished=finished,
            )
        )
        self._reset()
        self.told, self.next = now, following


def safe_name(target: str) -> str:
    """A target's name as part of a file name; of a path only the file and the object.

    >>> safe_name("../adapters/mine.py:Target"), safe_name("package.module:make"), safe_name("torch-flex")
    ('mine-Target', 'package.module-make', 'torch-flex')
    """
    file, _, attribute = target.rpartition(":")
    short = f"{file.removesuffix('.py').rsplit('/', 1)[-1]}-{attribute}" if file else target
    return "".join(char if char.isalnum() or char in "-_." else "_" for char in short)[-60:]
