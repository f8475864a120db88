"""Engines that fork in other ways than ours and are right: an alarm on any of them is a false one."""

from __future__ import annotations

from collections import Counter

import pytest

from paged_impl.scheduler import Scheduler
from properties.drive import drive
from properties.engine.operations import EngineGeometry
from properties.engine.spec import SPEC
from properties.targets.engine_ours import OurEngine


class _ChildFirst(Scheduler):
    def fork(self, parent: object, child: object, max_new_tokens: int) -> None:
        super().fork(parent, child, max_new_tokens)
        request = self._requests[child]
        if request.running:
            self._running.remove(request)
            self._running.insert(0, request)


class ChildFirst(OurEngine):
    """The child runs first, so that it makes the copy and its parent keeps the block."""

    def open(self, config: EngineGeometry) -> None:
        super().open(config)
        self.engine.scheduler.__class__ = _ChildFirst


class CopiesAtOnce(OurEngine):
    """A fork takes a block for the partial last one at once; the copy comes with the next step."""

    def fork(self, parent: str, child: str, max_new_tokens: int) -> None:
        super().fork(parent, child, max_new_tokens)
        manager = self.engine.manager
        seq = manager._sequences.get(child)
        if seq is not None and len(seq.tokens) % manager.block_size and manager.num_free:
            manager._make_tail_writable(seq)


class ComputesAgain(OurEngine):
    """A fork is a new request with the tokens so far; the prefix cache does the rest."""

    def fork(self, parent: str, child: str, max_new_tokens: int) -> None:
        scheduler = self.engine.scheduler
        request = scheduler._requests[parent]
        scheduler.submit(child, request.tokens, max_new_tokens, request.salt)


@pytest.mark.parametrize("target", [OurEngine, ChildFirst, CopiesAtOnce, ComputesAgain])
def test_a_sound_way_of_forking_is_clean(target: type[OurEngine]) -> None:
    marks = Counter[str]()
    for seed in range(120):
        _, verdict = drive(SPEC, target, seed)
        assert verdict.adapter is None, verdict.adapter
        assert not verdict.breaches, verdict.breaches
        marks.update(verdict.state.marks)

    assert marks["a fork"] > 300
    assert (marks["a shared block was copied"] > 100) == (target is not ComputesAgain)
