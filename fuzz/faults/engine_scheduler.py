"""Planted faults of the scheduler: who runs, how far, and who is forgotten."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

from fuzz.faults import Fault
from fuzz.faults.engine_variant import Variant, exchange, planter
from paged_impl.errors import RequestRefused
from paged_impl.scheduler import Request, ScheduledRow, ScheduledStep, Scheduler
from properties.engine.protocol import Row, Step, StepBatch

_FOUND: list[Fault] = []
plant = planter(_FOUND)


class _TokensBeforeTheHit(Scheduler):
    def _add_row(self, request: Request, num_new: int, draft: Any) -> None:
        if request.name in draft.admitted:
            num_new = len(request.tokens)
        start = request.num_scheduled
        super()._add_row(request, num_new, draft)
        if start + num_new > len(request.tokens):
            request.num_scheduled = len(request.tokens)
            request.waits_for_sample = True
            draft.rows[-1] = ScheduledRow(request.name, start, start + num_new, True)

    def _row_done(self, request: Request, row: ScheduledRow, token: int | None) -> None:
        super()._row_done(request, row._replace(stop=min(row.stop, len(request.tokens))), token)


@plant("BATCH-2", "GeeeekExplorer/nano-vllm#207")
class TokensScheduledBeforeTheHitIsKnown(Variant):
    """The number of tokens is taken before allocate() says how many are cached."""

    def seed(self) -> None:
        exchange(self.scheduler, _TokensBeforeTheHit)

    def batch(self, step: Step) -> StepBatch:
        return StepBatch()


class _PromptOnly(Scheduler):
    def _continue(self, request: Request, draft: Any) -> None:
        before = len(draft.rows)
        super()._continue(request, draft)
        if request.name in draft.admitted and request.num_sampled and len(draft.rows) > before:
            row = draft.rows[-1]
            draft.rows[-1] = row._replace(stop=max(row.start, min(row.stop, request.num_prompt)))


@plant("PREEMPT-1", "GeeeekExplorer/nano-vllm#144 b, turned round")
class PreemptedRequestsArePrefilledFromTheirPrompt(Variant):
    """After a preemption only the prompt is computed again."""

    def seed(self) -> None:
        exchange(self.scheduler, _PromptOnly)


class _ZeroTokens(Scheduler):
    def _add_row(self, request: Request, num_new: int, draft: Any) -> None:
        super()._add_row(request, num_new, draft)
        row = draft.rows[-1]
        if request.name in draft.admitted and row.samples and row.start:
            draft.rows[-1] = row._replace(start=row.stop)


@plant("HASH-4", "GeeeekExplorer/nano-vllm#144")
class AFullHitComputesNothing(Variant):
    """All tokens of a prompt are taken as cached: no query is left."""

    def seed(self) -> None:
        exchange(self.scheduler, _ZeroTokens)


class _OverBudget(Scheduler):
    def schedule(self) -> ScheduledStep:
        step = super().schedule()
        self.limits.max_tokens_per_step += 1
        return step


@plant("BATCH-1", "family metadata: a batch larger than its captured buffers")
class TheBudgetGrows(Variant):
    """A step computes more tokens than its buffers hold."""

    def seed(self) -> None:
        exchange(self.scheduler, _OverBudget)


class _NoBlockForNewTokens(Scheduler):
    def _continue(self, request: Request, draft: Any) -> None:
        if not request.waits_for_sample and not draft.is_full:
            self._add_row(request, min(len(request.tokens) - request.num_scheduled, draft.tokens_left), draft)

    def _row_done(self, request: Request, row: ScheduledRow, token: int | None) -> None:
        missing = request.tokens[self.manager.num_tokens(request.name) :]
        if missing and self.manager.can_append(request.name, len(missing)):
            self.manager.append(request.name, missing)
        if self.manager.num_tokens(request.name) >= row.stop:
            super()._row_done(request, row, token)


@plant("ALLOC-2", "family crash-or-hang: scheduled before its block is there")
class TokensWithoutABlock(Variant):
    """A row is scheduled first, its block comes later."""

    def seed(self) -> None:
        exchange(self.scheduler, _NoBlockForNewTokens)

    def step(self) -> Step:
        return _step_without_lanes(self)

    def finish(self, step: Step, tokens: Sequence[int]) -> None:
        self.scheduler.finish(step.handle, tokens)

    def batch(self, step: Step) -> StepBatch:
        return StepBatch()


def _step_without_lanes(target: Any) -> Step:
    step = target.scheduler.schedule()
    return Step([Row(*row) for row in step.rows], (), step)


class _Forgetful(Scheduler):
    def _preempt(self, request: Request) -> None:
        super()._preempt(request)
        self._waiting.remove(request)
        del self._requests[request.name]


@plant("LIVE-1", "tt-inference-server#2042: a preempted request in no queue")
class PreemptedRequestsAreLost(Variant):
    """A preempted request is in no queue."""

    def seed(self) -> None:
        exchange(self.scheduler, _Forgetful)


class _HeadOnly(Scheduler):
    def _admit(self, request: Request, draft: Any) -> bool:
        if len(request.tokens) > self.limits.max_tokens_per_step:
            return False
        return super()._admit(request, draft)


@plant("LIVE-1", "vllm-project/vllm#39734")
class LongPromptsStarve(Variant):
    """A prompt longer than the budget is never admitted, and never refused."""

    def seed(self) -> None:
        exchange(self.scheduler, _HeadOnly)


class _TakesAnything(Scheduler):
    def submit(self, name: Any, tokens: Sequence[int], max_new_tokens: int, salt: Any = None) -> None:
        if name in self._requests:
            raise RequestRefused("in use")
        request = Request(name, self._num_arrived, array("q", tokens), len(tokens), max_new_tokens, salt)
        self._num_arrived += 1
        self._requests[name] = request
        self._waiting.append(request)


@plant("LIVE-1", "GeeeekExplorer/nano-vllm#274")
class RequestsThatNeverFitAreAccepted(Variant):
    """A request larger than the pool waits for ever."""

    def seed(self) -> None:
        exchange(self.scheduler, _TakesAnything)


class _SamplesTwice(Scheduler):
    def _end(self, request: Request) -> None:
        if request.num_sampled == request.max_new_tokens:
            request.max_new_tokens += 1
            return
        super()._end(request)


@plant("LIVE-1", "tpu-inference#3449: rows of requests that have ended")
class RequestsGoOnAfterTheirEnd(Variant):
    """A request does not end at its last token."""

    def seed(self) -> None:
        exchange(self.scheduler, _SamplesTwice)


@plant("SLOT-2", "vllm-project/tpu-inference#3449")
class CancelledRequestsGoOn(Variant):
    """Rows of a request that was cancelled are scheduled once more."""

    def seed(self) -> None:
        self.zombies: list[str] = []

    def cancel(self, name: str) -> None:
        super().cancel(name)
        self.zombies.append(name)

    def step(self) -> Step:
        step = super().step()
        zombies, self.zombies = self.zombies, []
        live = set(self.live())
        rows = [Row(name, 0, 1, False) for name in zombies if name not in live]
        return step._replace(rows=[*step.rows, *rows])


FAULTS: tuple[Fault, ...] = tuple(_FOUND)
