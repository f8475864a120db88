"""A campaign: the supervisor gives slices of cases to workers, outlives them, and turns what broke into findings.

It never imports a target. A death or a hang of a worker becomes a case from that worker's journal.
"""

from __future__ import annotations

import contextlib
import selectors
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fuzz import corpus, journal, messages
from fuzz.campaign_state import Options, TargetRun, Worker
from fuzz.case_in_fork import CRASH, call_limit, crash_message
from fuzz.child import Child
from fuzz.evidence import Suspect
from fuzz.examiners import Examiners
from fuzz.filing import KILLED, OUTSIDE, Filing
from fuzz.folder import DiskError, Folder
from fuzz.loop import safe_name
from fuzz.patience import is_stuck, overdue
from fuzz.values import LONGEST_S
from properties.case import encode, read
from properties.contract import UsageError
from properties.ledger import Ledger
from properties.specs import spec_of
from properties.trial import MUST_RETURN

SLICE_S = 1.0
"""Seconds of a slice: how soon one worker hears what another has found."""
CORPUS_SHARE = 0.1
"""Share of the time that saved traces may take before new ones are drawn."""
FINISH_S = 120.0
"""Seconds that first findings may still be confirmed and minimised after the time is up."""
TICK_S = 0.1
STATUS_EVERY_S = 1.0
MOST_DEATHS = 50
"""Deaths in a row without a finished case after which a target is given up."""


class Campaign:
    """Runs until its time is up, its cases are done, or it is stopped. `tell` takes lines for the user."""

    def __init__(self, options: Options, folder: Folder, ledger: Ledger, tell: Callable[[str], None]) -> None:
        self.options, self.folder, self.ledger, self.tell = options, folder, ledger, tell
        self.filing = Filing(folder, ledger, self._say)
        self.runs = {name: TargetRun(name, limit_s=options.limit_s) for name in options.targets}
        self.workers: dict[tuple[int, str], Worker] = {}
        self.examiners = Examiners(options.device, options.limit_s)
        self.selector = selectors.DefaultSelector()
        self.before_s = 0.0
        self.stopping = ""
        self.over = False
        self.internal = ""
        self.disk: DiskError | None = None
        self.started = time.monotonic()
        self.last_new_s = 0.0
        self._status_at = 0.0

    def _say(self, line: str) -> None:
        self.tell(line)  # which may be another one by then

    # ---- time ------------------------------------------------------------------------------------------------------

    @property
    def elapsed_s(self) -> float:
        """Seconds since this run began."""
        return time.monotonic() - self.started

    @property
    def left_s(self) -> float:
        """Seconds until the time is up."""
        return float("inf") if self.options.seconds is None else self.options.seconds - self.elapsed_s

    def stop(self, why: str) -> None:
        """End the campaign soon, in order."""
        self.stopping = self.stopping or why

    # ---- the whole -------------------------------------------------------------------------------------------------

    def run(self, watch: Callable[[Campaign], None] = lambda campaign: None) -> None:
        """Run to the end. `watch` is called about ten times a second. Raises `UsageError` where no target can run."""
        try:
            self.folder.event("started", targets=list(self.runs), seed=self.options.seed)
            self._resume_pending()
            while not self._over():
                self._step()
                watch(self)
            self._await_slices()
            self._await_stuck()
            self._end_workers()
            self._finish(watch)
        except DiskError as error:
            self.disk = error
        finally:
            for worker in list(self.workers.values()):
                self._drop(worker)
            self.examiners.close()
            self.selector.close()
            self.over = True
            with contextlib.suppress(DiskError):
                self._save()
                self.folder.event("finished", stopped=self.stopping, elapsed_s=round(self.elapsed_s, 1))

    def _over(self) -> bool:
        if self.stopping or self.left_s <= 0 or not any(run.going for run in self.runs.values()):
            return True
        return self.disk is not None

    def _step(self) -> None:
        for slot in range(self.options.workers):
            self._occupy(slot)
        self._hear_all()
        for worker in list(self.workers.values()):
            self._watch_over(worker)
        self._collect()
        if time.monotonic() >= self._status_at:
            self._save()

    # ---- workers ---------------------------------------------------------------------------------------------------

    def _occupy(self, slot: int) -> None:
        """Give a slot something to do: of its targets the one that had the least time."""
        if any(worker.slot == slot and worker.busy is not None for worker in self.workers.values()):
            return
        names = list(self.runs)
        mine = [self.runs[name] for name in names[slot :: self.options.workers] or [names[slot % len(names)]]]
        for run in sorted(mine, key=lambda run: run.tally.busy_s):
            if run.going and self._give(slot, run):
                return

    def _give(self, slot: int, run: TargetRun) -> bool:
        worker = self.workers.get((slot, run.name))
        if worker is None:
            self._start(slot, run)
            return False  # others may work while it imports its target
        if worker.child.ready is None:
            return False
        if not run.rerun:
            run.rerun = True
            self._send_rerun(worker)
            return True
        cases = run.tally.take(self.options.cases)
        if cases is None:
            if not any(other.run is run and other.busy for other in self.workers.values()):
                run.state = "done"
            return False
        worker.busy, worker.next, worker.reruns, worker.since = cases, cases[0], False, time.monotonic()
        seconds = max(0.05, min(SLICE_S, self.left_s))
        worker.child.send(messages.Slice(first=cases[0], stop=cases[1], seconds=seconds, **self._bounds(run)))
        return True

    def _bounds(self, run: TargetRun) -> dict[str, Any]:
        left_s = min(self.left_s, LONGEST_S)
        return {"left_s": left_s, "tolerate": tuple(sorted(run.tolerate)), "seen": dict(run.tally.broken)}

    def _send_rerun(self, worker: Worker) -> None:
        paths = tuple(str(path) for path in corpus.saved(self.folder.corpus(worker.run.name)))
        worker.busy, worker.next, worker.reruns, worker.since = (0, 0), 0, True, time.monotonic()
        limit = self.options.seconds or 600.0
        seconds = max(1.0, CORPUS_SHARE * limit / len(self.runs))
        worker.child.send(messages.Rerun(paths=paths, seconds=seconds, **self._bounds(worker.run)))

    def _start(self, slot: int, run: TargetRun) -> None:
        path = self.folder.journal(run.name, slot)
        arguments = ["--campaign", str(self.folder.path), "--journal", str(path)]
        arguments += ["--corpus", str(self.folder.corpus(run.name)), "--seed", str(self.options.seed)]
        worker = Worker(Child(run.name, self.options.device, arguments), run, slot, path)
        self.workers[slot, run.name] = worker
        self.selector.register(worker.child, selectors.EVENT_READ, worker)
        self.selector.register(worker.child.output, selectors.EVENT_READ, worker)

    def _hear_all(self) -> None:
        """Wait a moment for replies, and for output, which is thrown away."""
        for key, _ in self.selector.select(TICK_S):
            worker: Worker = key.data
            if (worker.slot, worker.run.name) not in self.workers:
                continue  # dropped a moment ago, for what another reply said
            if key.fileobj is worker.child:
                self._hear(worker)
            elif not worker.child.drain_output():
                self.selector.unregister(worker.child.output)

    def _drop(self, worker: Worker) -> None:
        if self.workers.pop((worker.slot, worker.run.name), None) is not None:
            self.selector.unregister(worker.child)
            with contextlib.suppress(KeyError):  # it closed its output itself
                self.selector.unregister(worker.child.output)
            worker.child.stop()

    def _await_slices(self) -> None:
        """The last slices end with the campaign's time; their counts are worth half a second."""
        stop = time.monotonic() + 0.5
        while not self.stopping and time.monotonic() < stop and any(w.busy for w in self.workers.values()):
            self._hear_all()

    def _await_stuck(self) -> None:
        """A call that does not return may be what this campaign is to find: it is waited for as long as at any other time."""
        told = False
        while not self.stopping:
            still = [worker for worker in self.workers.values() if is_stuck(worker)]
            if not still:
                return
            if not told:
                self._say(f"the time is up, but a call of {still[0].run.name} has not returned: waiting for it")
                told = True
            self._hear_all()
            for worker in still:
                self._watch_over(worker)

    def _end_workers(self) -> None:
        for worker in list(self.workers.values()):
            self._hear(worker)
            if worker.busy and not worker.reruns:
                worker.run.tally.give_back(max(worker.next, worker.busy[0]), worker.busy[1])
            if worker.child.ready is None and worker.child.making is not None:
                seconds = time.monotonic() - worker.child.making_at
                worker.run.reason = (
                    f"making the adapter: it did not return within the {seconds:.1f} s that were left for it"
                )
            self._drop(worker)

    def _hear(self, worker: Worker) -> None:
        for reply in worker.child.replies():
            if isinstance(reply, messages.Counts):
                self._counts(worker, reply)
            elif isinstance(reply, messages.Ready):
                worker.run.ready, worker.run.state, worker.busy = reply, "running", None
                worker.run.limit_s = call_limit(spec_of(reply.level), self.options.limit_s)  # type: ignore[arg-type]
            elif isinstance(reply, messages.Found):
                self._found(worker.run, reply)
            elif isinstance(reply, messages.Note):
                self._say(reply.text)
            elif isinstance(reply, messages.Broken):
                self._adapter(worker, reply)
            elif isinstance(reply, messages.Unusable):
                self._unusable(worker, reply)

    def _counts(self, worker: Worker, counts: messages.Counts) -> None:
        run, worker.since = worker.run, time.monotonic()
        run.tally.add(counts, saved=worker.reruns)
        run.tolerate |= counts.broken.keys()
        if counts.cases:
            run.deaths = 0
        if not worker.reruns:
            worker.next = counts.next
        if counts.finished and worker.busy is not None:
            if not worker.reruns:
                run.tally.give_back(counts.next, worker.busy[1])
            worker.busy = None

    def _unusable(self, worker: Worker, reply: messages.Unusable) -> None:
        run = worker.run
        states = {"unavailable": "skipped", "adapter": "adapter"}
        self._drop(worker)
        if reply.why == "restart":
            run.tally.restarts += 1
            return
        if reply.why == "disk":
            raise DiskError(self.folder.path, OSError(0, reply.message))
        if run.ready is None and (reply.why == "usage" or (reply.why == "unavailable" and self.options.chosen)):
            raise UsageError(reply.message)
        run.state, run.reason = states.get(reply.why, "failed"), reply.message
        if reply.why == "internal":
            self.internal = reply.message
        self.folder.event("target-" + run.state, target=run.name, reason=reply.message)
        self.tell(f"{run.name} is {'skipped' if run.state == 'skipped' else 'given up'}: {reply.message}")

    def _adapter(self, worker: Worker, reply: messages.Broken) -> None:
        run = worker.run
        if run.state == "adapter":
            return  # another worker said so a moment ago
        self.filing.adapter(run, reply.problem, reply.remedy, reply.trace)
        self.examiners.forget(run.name)
        for other in [other for other in self.workers.values() if other.run is run]:
            self._drop(other)

    # ---- deaths and hangs ------------------------------------------------------------------------------------------

    def _watch_over(self, worker: Worker) -> None:
        if (worker.slot, worker.run.name) not in self.workers:
            return
        how = worker.child.poll()
        if how is not None:
            self._hear(worker)  # its last words first
            if (worker.slot, worker.run.name) in self.workers:
                self._dead(worker, how or "the process ended by itself", -(worker.child.process.returncode or 0))
        elif (late := overdue(worker, self.options.limit_s)) is not None:
            self._dead(worker, late.how, 0, late.confirm_s)

    def _dead(self, worker: Worker, how: str, signal: int, limit_s: float | None = None) -> None:
        run, words = worker.run, worker.child.last_words()
        ready = worker.child.ready is not None
        self._drop(worker)
        run.tally.restarts += 1
        run.deaths += 1
        run.tally.busy_s += time.monotonic() - worker.since if worker.busy else 0.0
        self.folder.event("worker-died", target=run.name, how=how, output=words[-1000:])
        if not ready and worker.child.making is not None:
            self._start_failed(run, "making the adapter", how, signal)
            return
        if not ready or run.deaths > MOST_DEATHS:
            run.state = "adapter" if ready else "failed"
            run.reason = f"{how} {f'{run.deaths} times in a row' if ready else 'while it was imported'}. Mend it first"
            self.tell(f"{run.name} is given up: {run.reason} Its last output: {words[-300:] or 'none'}")
            return
        tail = journal.read(worker.journal, spec_of(run.ready.level)) if run.ready else None  # type: ignore[arg-type]
        if worker.busy and not worker.reruns:
            stop = max(tail.head.index + 1 if tail else 0, worker.next)
            run.tally.cases += stop - worker.next  # those too that it had no time to report
            if stop - worker.next > 1:
                run.deaths = 1  # one came to its end before this one
            run.tally.give_back(stop, worker.busy[1])
        if tail is None:
            return
        if tail.geometry is None:
            self._start_failed(run, "making the adapter", how, signal)
        elif not tail.operations:
            self._start_failed(run, f"open({tail.geometry}), or the first look at its pool", how, signal)
        else:
            run.tally.saved += worker.reruns
            run.tally.operations += len(tail.operations)
            self._suspect_death(run, tail, how, signal, limit_s)

    def _start_failed(self, run: TargetRun, call: str, how: str, signal: int) -> None:
        """The target died or hung before it was asked to do anything: that is its adapter's fault.

        Once may be the system's doing, where memory ran out or the machine was asleep.
        """
        run.start_deaths += 1
        worked = bool(run.tally.operations)
        if (run.start_deaths < 3 and signal in KILLED) or (run.start_deaths < 2 and signal in OUTSIDE and worked):
            run.hung = "" if signal in KILLED else f"{call}: {how}"
            return
        self.filing.adapter(run, f"{call}: {how}", f"{MUST_RETURN} (--call-limit: how long it may take)")
        for other in [other for other in self.workers.values() if other.run is run]:
            self._drop(other)

    def _suspect_death(self, run: TargetRun, tail: journal.Tail, how: str, signal: int, limit_s: float | None) -> None:
        id = CRASH
        occurrence = run.tally.broken.get(id, 0) + 1
        run.tally.broken[id] = occurrence
        if occurrence & (occurrence - 1):
            return
        case = run.case(id, crash_message(tail.operations, how), tail)
        path = self.folder.path / "pending" / f"{safe_name(run.name)}-{id}-{occurrence}.json"
        self.folder.write_bytes(path, encode(case))
        self._examine(Suspect(run.name, path, id, occurrence, death=how, signal=signal, limit_s=limit_s))

    # ---- suspects --------------------------------------------------------------------------------------------------

    def _found(self, run: TargetRun, found: messages.Found) -> None:
        run.tolerate.add(found.property)
        slow = "a time limit ran out" if found.property == CRASH else ""  # no finding unless it does so again
        path = Path(found.path)
        self._examine(Suspect(run.name, path, found.property, found.occurrence, found.preceding, death=slow))

    def _examine(self, suspect: Suspect) -> None:
        self.folder.event(
            "broken",
            target=suspect.target,
            property=suspect.property,
            occurrence=suspect.occurrence,
            path=str(suspect.path),
        )
        self.examiners.add(suspect, self.elapsed_s)

    def _resume_pending(self) -> None:
        for path in sorted((self.folder.path / "pending").glob("*.json")):
            try:
                case = read(path)
            except UsageError as error:
                self._say(f"{error}. It is left out, and stays where it is")
                continue
            if case.target in self.runs:
                occurrence = int(number) if (number := path.stem.rpartition("-")[2]).isdigit() else 1
                self.examiners.add(Suspect(case.target, path, case.property, occurrence), self.elapsed_s)

    def _collect(self) -> None:
        for evidence in self.examiners.done(self.elapsed_s):
            run = self.runs[evidence.suspect.target]
            new = self.filing.file(run, evidence)
            if run.state == "adapter":
                self.examiners.forget(run.name)
            if new is not None:
                self.last_new_s = self.elapsed_s
                if self.options.fail_fast and not new.case.flaky:
                    self.stop("--fail-fast")

    # ---- the end ---------------------------------------------------------------------------------------------------

    def _finish(self, watch: Callable[[Campaign], None]) -> None:
        """First findings are confirmed and minimised even when the time is up; not when the user stopped the run."""
        stop = time.monotonic() + (0.0 if self.stopping else FINISH_S)
        self.examiners.drop_later()
        while self.examiners.busy and time.monotonic() < stop and not self.stopping:
            self._collect()
            watch(self)
            time.sleep(TICK_S)
        self._collect()

    def _save(self) -> None:
        self._status_at = time.monotonic() + STATUS_EVERY_S
        state = {name: run.tally.with_open(self._unfinished(run)) for name, run in self.runs.items()}
        self.folder.write("state.json", {"elapsed_s": self.before_s + self.elapsed_s, "targets": state})
        self.folder.write("status.json", self.status())

    def _unfinished(self, run: TargetRun) -> list[tuple[int, int]]:
        """What workers are at now: should this process be killed, the next one runs it again."""
        mine = [w for w in self.workers.values() if w.run is run and w.busy is not None and not w.reruns]
        return [(max(w.next, w.busy[0]), w.busy[1]) for w in mine if w.busy is not None]

    def status(self) -> dict[str, Any]:
        """The plain status file: what a person or a script wants to know from outside."""
        return {
            "finished": self.over,
            "elapsed_s": round(self.before_s + self.elapsed_s, 1),
            "since_last_new_finding_s": round(self.elapsed_s - self.last_new_s, 1),
            "to_confirm": self.examiners.waiting,
            "targets": {run.name: run.status() for run in self.runs.values()},
        }
