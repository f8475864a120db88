"""The engine's bookkeeping in one object: scheduler, block manager and batch preparation, without a model."""

from collections.abc import Hashable, Sequence

from paged_impl.batch import Batch, BatchPreparer, Lacking
from paged_impl.block_manager import BlockManager
from paged_impl.prefix_cache import Salt
from paged_impl.scheduler import Limits, ScheduledStep, Scheduler

Name = Hashable


class Engine:
    """Requests in, steps out. A step: `step()`, `batch()` of it, run the model, `finish()` with what was sampled.

    `max_tokens` is the most that one request may have, prompt and reply together; `num_lanes` a guess of how many run at
    once.
    """

    def __init__(self, manager: BlockManager, limits: Limits, *, max_tokens: int, num_lanes: int = 16) -> None:
        self.manager = manager
        self.scheduler = Scheduler(manager, limits)
        self.batches = BatchPreparer(num_lanes, max_tokens, manager.block_size)

    def submit(self, name: Name, tokens: Sequence[int], max_new_tokens: int, salt: Salt = None) -> None:
        """As `Scheduler.submit`."""
        self.scheduler.submit(name, tokens, max_new_tokens, salt)

    def fork(self, parent: Name, child: Name, max_new_tokens: int) -> None:
        """As `Scheduler.fork`."""
        self.scheduler.fork(parent, child, max_new_tokens)

    def cancel(self, name: Name) -> None:
        """As `Scheduler.cancel`."""
        self.scheduler.cancel(name)
        self._drop_lane(name)

    def step(self) -> ScheduledStep:
        """Schedule the next step, and bring the lanes of its rows up to date."""
        step = self.scheduler.schedule()
        for name in step.admitted:
            self._new_lane(name)
        self._refresh(self.batches.behind(step.rows))
        return step

    def batch(self, step: ScheduledStep) -> Batch:
        """The index arrays of the step that was scheduled last: to be asked for before the next `step`."""
        return self.batches.prepare(step.rows)

    def finish(self, step: ScheduledStep, tokens: Sequence[int]) -> None:
        """As `Scheduler.finish`."""
        self.batches.add_sampled(self.scheduler.finish(step, tokens))
        for row in step.rows:
            if not self.scheduler.is_live(row.name):
                self._drop_lane(row.name)

    def _new_lane(self, name: Name) -> None:
        if not self.batches.has(name):
            self.batches.add(name)
        self.batches.set_table(name, self.manager.table(name))

    def _drop_lane(self, name: Name) -> None:
        if self.batches.has(name):
            self.batches.remove(name)

    def _refresh(self, lacking: Lacking) -> None:
        """The tokens and blocks that rows need and their lanes do not have yet."""
        batches = self.batches
        for row in lacking.tokens:
            batches.add_tokens(row.name, self.scheduler.tokens(row.name)[batches.num_tokens(row.name) : row.stop])
        if lacking.blocks:
            batches.add_blocks(lacking, self.manager.new_blocks(lacking.blocks))
