"""Progress of a campaign, on standard error: a live line on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import contextlib
import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING

from fuzz.campaign import Campaign
from fuzz.output import note
from fuzz.values import plain_seconds

if TYPE_CHECKING:
    from rich.status import Status

LINE_EVERY_S = 10.0
"""Seconds between lines where standard error is a file or a pipe."""


class Progress:
    """Shows how a campaign goes. Use as a context manager; `say` prints a line above the live one."""

    def __init__(self, campaign: Campaign) -> None:
        self.campaign = campaign
        self.terminal = sys.stderr.isatty()
        self._next = time.monotonic() + (0.0 if self.terminal else LINE_EVERY_S)
        self._status: Status | None = None

    def __enter__(self) -> Progress:
        if self.terminal:
            from rich.console import Console
            from rich.status import Status as RichStatus

            self._status = RichStatus("starting", console=Console(stderr=True))
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._status is not None:
            self._status.stop()

    def say(self, line: str) -> None:
        """A line that stays."""
        if self._status is None:
            note(line)
            return
        from rich.text import Text

        with contextlib.suppress(OSError):  # a terminal that is gone is no reason to stop
            self._status.console.print(Text(line), soft_wrap=True)

    def update(self, campaign: Campaign) -> None:
        """Show the state of things; called often, prints rarely."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + (0.2 if self.terminal else LINE_EVERY_S)
        if self._status is not None:
            self._status.update(self._line())
        else:
            self.say(self._line())

    def _line(self) -> str:
        campaign = self.campaign
        total = campaign.options.seconds
        elapsed = plain_seconds(max(1.0, round(campaign.elapsed_s)))
        time_part = elapsed if total is None else f"{elapsed} of {plain_seconds(total)}"
        parts = [time_part]
        for run in campaign.runs.values():
            tally = run.tally
            found = len(run.findings)
            text = f"{run.name} {tally.operations:,} operations ({tally.per_second:,.0f}/s)"
            parts.append(text + (f", {found} finding{'s' * (found != 1)}" if found else ""))
        if campaign.examiners.urgent:  # not those of clauses that are found already: some of them always wait
            parts.append(f"{campaign.examiners.urgent} to confirm")
        return " | ".join(parts)
