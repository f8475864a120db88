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
from properties.wording import counted

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
        parts = [time_in_words(campaign.elapsed_s, total)]
        for run in campaign.runs.values():
            tally = run.tally
            text = f"{run.name} {counted(tally.operations, 'operation')} ({tally.per_second:,.0f}/s)"
            parts.append(text + (f", {counted(len(run.findings), 'finding')}" if run.findings else ""))
        if campaign.examiners.urgent:  # not those of clauses that are found already: some of them always wait
            parts.append(f"{campaign.examiners.urgent} to confirm")
        return " | ".join(parts)


def time_in_words(elapsed_s: float, total_s: float | None) -> str:
    """How much of a campaign's time has gone. Findings are still confirmed when it is up.

    >>> time_in_words(12.2, 60.0), time_in_words(0.1, None), time_in_words(20.4, 15.0)
    ('12s of 1m', '1s', '15s are up, confirming for 5s')
    """
    gone_s = max(1.0, round(elapsed_s))
    if total_s is None:
        return plain_seconds(gone_s)
    over_s, total = round(elapsed_s - total_s), plain_seconds(total_s)
    if over_s >= 1:
        return f"{total} are up, confirming for {plain_seconds(over_s)}"
    return f"{plain_seconds(min(gone_s, total_s))} of {total}"
