"""Planted faults of engines with a sliding window."""

from __future__ import annotations

from fuzz.faults import Fault
from fuzz.faults.engine_variant import Variant, exchange, planter
from paged_impl.block_manager import BlockManager

_FOUND: list[Fault] = []
plant = planter(_FOUND)


class _OneTokenTooFar(BlockManager):
    def _window_start(self, num_tokens: int) -> int:
        return 0 if self.window is None else max(0, num_tokens - self.window + 2) // self.block_size


@plant("WINDOW-1", "family sliding window: the window counted without the token that is computed next")
class TheWindowEndsOneTokenTooLate(Variant):
    """The block whose last token is the first of the window is released."""

    def seed(self) -> None:
        exchange(self.manager, _OneTokenTooFar)


@plant("WINDOW-1", "family sliding window: attention sinks are released with the rest")
class SinksAreReleased(Variant):
    """The first tokens go when the window has passed them."""

    def seed(self) -> None:
        self.manager._num_sink_blocks = 0


FAULTS: tuple[Fault, ...] = tuple(_FOUND)
