"""Adapters and engines that answer wrongly in a workload: each is told apart, and none ends in a clean verdict."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence
from typing import Any

from paged_impl.errors import OutOfBlocks
from properties.engine.protocol import Row, Step
from properties.targets.engine_ours import OurEngine
from properties.targets.ours import OurBlocks


class Sound(OurBlocks):
    """Nothing is wrong."""


class NoNumber(OurBlocks):
    def admit(self, name: str, tokens: Sequence[int], salt: str | None = None) -> Any:
        super().admit(name, tokens, salt)


class TextNumber(OurBlocks):
    def admit(self, name: str, tokens: Sequence[int], salt: str | None = None) -> Any:
        return str(super().admit(name, tokens, salt))


class Truth(OurBlocks):
    def admit(self, name: str, tokens: Sequence[int], salt: str | None = None) -> Any:
        return bool(super().admit(name, tokens, salt))


class HitsBeyondThePrompt(OurBlocks):
    def admit(self, name: str, tokens: Sequence[int], salt: str | None = None) -> int:
        return super().admit(name, tokens, salt) + len(tokens) + 1


class NegativeHits(OurBlocks):
    def admit(self, name: str, tokens: Sequence[int], salt: str | None = None) -> int:
        super().admit(name, tokens, salt)
        return -16


class NoTable(OurBlocks):
    def table(self, name: str) -> Any:
        return None


class TextTable(OurBlocks):
    def table(self, name: str) -> Any:
        return [str(block) for block in super().table(name)]


class NegativeBlocks(OurBlocks):
    def table(self, name: str) -> Sequence[int]:
        return [-7, *super().table(name)[1:]]


class HoleInTheTable(OurBlocks):
    def table(self, name: str) -> Sequence[int]:
        return [-1, *super().table(name)[1:]]


class BlocksOutside(OurBlocks):
    def table(self, name: str) -> Sequence[int]:
        return [block + 10_000_000 for block in super().table(name)]


class ShortTable(OurBlocks):
    def table(self, name: str) -> Sequence[int]:
        return super().table(name)[:1]


class SlotsOnly(OurBlocks):
    """Sound, without tables."""

    table = None  # type: ignore[assignment]

    def slots(self, name: str) -> Sequence[int]:
        size, table = self.block_size, self.manager.table(name)
        return [block * size + offset for block in table for offset in range(size)]


class NegativeSlots(SlotsOnly):
    def slots(self, name: str) -> Sequence[int]:
        return [-slot - 20 for slot in super().slots(name)]


class TooFewSlots(SlotsOnly):
    def slots(self, name: str) -> Sequence[int]:
        return super().slots(name)[:3]


class ScatteredSlots(SlotsOnly):
    def slots(self, name: str) -> Sequence[int]:
        return super().slots(name)[::-1]


class TextFreeList(OurBlocks):
    def free_blocks(self) -> Any:
        return "none"


class FreeListOutside(OurBlocks):
    def free_blocks(self) -> list[int]:
        return [*super().free_blocks(), -3]


class AlwaysRefuses(OurBlocks):
    def admit(self, name: str, tokens: Sequence[int], salt: str | None = None) -> int:
        raise OutOfBlocks(1, 0, 0, "device")


class MovesBlocks(OurBlocks):
    """The table changes as if blocks had been copied, and nobody copied them."""

    def table(self, name: str) -> Sequence[int]:
        table = super().table(name)
        grown = self.manager.num_tokens(name) % self.block_size == 0
        return table[::-1] if grown and len(table) > 1 and table[0] != table[-1] else table


class Hangs(OurBlocks):
    def admit(self, name: str, tokens: Sequence[int], salt: str | None = None) -> int:
        while name == "r5":
            time.sleep(0.01)
        return super().admit(name, tokens, salt)


class HangsInC(OurBlocks):
    """Never lets another thread run, as an extension does that keeps the interpreter locked."""

    def admit(self, name: str, tokens: Sequence[int], salt: str | None = None) -> int:
        if name == "r5":
            sum(range(10**13))
        return super().admit(name, tokens, salt)


class HangsWhenMade(OurBlocks):
    def open(self, config: Any) -> None:
        time.sleep(60)


class Dies(OurBlocks):
    def free(self, name: str) -> None:
        if name == "r5":
            os.kill(os.getpid(), signal.SIGSEGV)
        super().free(name)


class Exits(OurBlocks):
    def free(self, name: str) -> None:
        if name == "r5":
            os._exit(0)
        super().free(name)


class RaisesSystemExit(OurBlocks):
    def free(self, name: str) -> None:
        sys.exit(0)


class Killed(OurBlocks):
    """As the system does when memory runs out."""

    def free(self, name: str) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class Prints(OurBlocks):
    def free(self, name: str) -> None:
        print("freed", name)  # noqa: T201
        super().free(name)


class EngineStrangers(OurEngine):
    def step(self) -> Step:
        return super().step()._replace(rows=[Row("nobody", 0, 1, True)])


class EngineTwice(OurEngine):
    def step(self) -> Step:
        step = super().step()
        return step._replace(rows=[*step.rows, *step.rows[:1]])


class EngineBeyond(OurEngine):
    def step(self) -> Step:
        step = super().step()
        return step._replace(rows=[row._replace(stop=row.stop + 1) for row in step.rows])


class EngineSamplesEarly(OurEngine):
    def step(self) -> Step:
        step = super().step()
        return step._replace(rows=[row._replace(samples=True) for row in step.rows])


class EngineIdle(OurEngine):
    def step(self) -> Step:
        return Step()


class EngineNoStep(OurEngine):
    def step(self) -> Any:
        return None


class EngineRefusesFinish(OurEngine):
    def finish(self, step: Step, tokens: Sequence[int]) -> None:
        from paged_impl.errors import RequestRefused

        raise RequestRefused("no")


class EngineHangs(OurEngine):
    def step(self) -> Step:
        while True:
            time.sleep(0.01)
