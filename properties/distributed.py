"""pytest-xdist (`-n`): each target is judged by one worker alone, and what the workers reached is told at the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

KEY = "pagefault"
APART = "`pagefault run -t {}` has it in a process apart, and names the call"
Section = tuple[str, list[str]]
"""The title and the lines of one target's summary."""


class Distributed:
    """What is registered where xdist is there. `sections` grows as workers end; `names` are those of the targets."""

    def __init__(self, names: Sequence[str]) -> None:
        self.sections: list[Section] = []
        self._names = sorted(names, key=len, reverse=True)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> Any:
        """All tests of a target in one worker, since the first of them judges it for all; else every worker would.

        Only where no other --dist is asked for. Marks (xdist_group) would say the same, and are without effect in pytest 9.
        """
        if config.getoption("dist") != "load":
            return None
        from xdist.scheduler import LoadScopeScheduling

        scheduling = LoadScopeScheduling(config, log)
        scheduling._split_scope = self.target_of
        return scheduling

    def target_of(self, nodeid: str) -> str:
        """The target among the parameters of a test; the whole id where there is none."""
        parameters = nodeid.partition("[")[2]
        return next((name for name in self._names if name in parameters), nodeid)

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem: str, report: pytest.TestReport, sched: Any) -> None:
        """A target ended its worker: the other workers would judge it again, to the same end."""
        target = self.target_of(crashitem)
        if target in self._names:
            getattr(sched, "workqueue", {}).pop(target, None)
            report.longrepr = (
                f"{report.longrepr}: the target did that, and is judged no further. {APART.format(target)}"
            )

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """A worker ended: its sections, unless it died."""
        self.sections += [(title, lines) for title, lines in getattr(node, "workeroutput", {}).get(KEY, [])]


def hand_over(config: pytest.Config, sections: Callable[[], list[Section]]) -> None:
    """In a worker: give the sections to the process that tells them."""
    if hasattr(config, "workeroutput"):
        config.workeroutput[KEY] = sections()
