"""Targets with one thing wrong each: what `pagefault` must survive, find, or blame on the adapter."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from paged_impl.block_manager import BlockManager
from properties.blocks.operations import Geometry
from properties.protocol import Capabilities
from properties.targets.ours import OurBlocks


class Sound(OurBlocks):
    """Ours under another name: nothing is wrong with it."""


class Leaky(OurBlocks):
    """A fault that takes three steps: the second sequence that is freed leaves a block held for ever."""

    def open(self, config: Geometry) -> None:
        super().open(config)
        self.frees = 0

    def free(self, name: str) -> None:
        self.frees += 1
        table = [block for block in self.manager.table(name) if block >= 0]
        super().free(name)
        if self.frees == 2 and table:
            self.manager._pool.hold(table[0])


class Segfaults(OurBlocks):
    """Native code that dies on a fork of a sequence with three tokens or more."""

    def fork(self, parent: str, child: str) -> None:
        if self.manager.num_tokens(parent) >= 3:
            os.kill(os.getpid(), signal.SIGSEGV)
        super().fork(parent, child)


class Exits(OurBlocks):
    """Native code that ends the process, politely."""

    def truncate(self, name: str, length: int) -> None:
        os._exit(0)


class Hangs(OurBlocks):
    """A call that never returns: a lock that nobody releases."""

    def truncate(self, name: str, length: int) -> None:
        if length >= 2:
            time.sleep(3600)
        super().truncate(name, length)


class Prints(OurBlocks):
    """Prints garbage on every stream, what looks like our own messages included."""

    def admit(self, name: str, tokens: Sequence[int], salt: str | None = None) -> int:
        sys.stdout.write('{"kind":"counts","next":99}\n\x00\xff' + "garbage " * 50)
        os.write(1, b"\xff\xfe not text \n")
        os.write(2, b"warnings without end\n" * 20)
        return super().admit(name, tokens, salt)


class KeepsState(OurBlocks):
    """open() forgets to reset: after a while an earlier case shows through."""

    shared: BlockManager | None = None
    opened = 0

    def open(self, config: Geometry) -> None:
        super().open(config)
        KeepsState.opened += 1
        self.stale = KeepsState.opened > 30 and config.window is None

    def slots(self, name: str) -> Sequence[int]:
        slots = super().slots(name)
        return slots[::-1] if self.stale and len(slots) > 4 else slots


class Random(OurBlocks):
    """A count that is wrong by chance, once in a few hundred looks."""

    def ref_count(self, block: int) -> int:
        chance = random.SystemRandom().random() < 0.0005
        return super().ref_count(block) + (chance and self.manager.num_free < self.manager.num_blocks)


class WrongType(OurBlocks):
    """Returns text where a number is due."""

    def admit(self, name: str, tokens: Sequence[int], salt: str | None = None) -> Any:
        return str(super().admit(name, tokens, salt))


class RaisesItself(OurBlocks):
    """The adapter's own line fails on legal use."""

    def append(self, name: str, tokens: Sequence[int]) -> None:
        {}[name]  # type: ignore[index]


class Lacks:
    """No slots, which is the one thing that every target must give."""

    capabilities = Capabilities()

    def open(self, config: Geometry) -> None: ...
    def admit(self, name: str, tokens: Sequence[int]) -> int:
        return 0

    def append(self, name: str, tokens: Sequence[int]) -> None: ...
    def free(self, name: str) -> None: ...


class Boasts(OurBlocks):
    """Promises an order of eviction and does not keep it; asks for a number of arguments that nobody gives."""

    def predict_append(self, name: str, num_tokens: int) -> int:
        return super().predict_append(name, num_tokens) + 1


class Misspelt(OurBlocks):
    """An optional method under a name that is never called."""

    free_blocks = None  # type: ignore[assignment]

    def freeblocks(self) -> list[int]:
        return self.manager.free_blocks()


class Undeclared(OurBlocks):
    """The refusal is not declared."""

    capabilities = Capabilities(block_sizes=(1, 2), unknown_free="refused")


class NeverMade(OurBlocks):
    """The constructor fails."""

    def __init__(self) -> None:
        raise RuntimeError("no licence server")


class DiesWhenMade(OurBlocks):
    """The constructor ends the process."""

    def __init__(self) -> None:
        os._exit(9)


class HangsWhenMade(OurBlocks):
    """The constructor waits for a lock that nobody releases."""

    def __init__(self) -> None:
        time.sleep(3600)


class HangsLaterMade(OurBlocks):
    """The fifth constructor in a process hangs: a handle that was never given back."""

    made = 0

    def __init__(self) -> None:
        HangsLaterMade.made += 1
        if HangsLaterMade.made == 5:
            time.sleep(3600)


class HangsInOpen(OurBlocks):
    """open() never returns."""

    def open(self, config: Geometry) -> None:
        time.sleep(3600)


class DiesInOpen(OurBlocks):
    """open() dies on some sizes that are declared, and works on the others."""

    def open(self, config: Geometry) -> None:
        if config.block_size == 4:
            os.kill(os.getpid(), signal.SIGSEGV)
        super().open(config)


class LeavesInOpen(OurBlocks):
    """open() ends the process as if all were well."""

    def open(self, config: Geometry) -> None:
        os._exit(0)


class ChangesFolder(OurBlocks):
    """Goes elsewhere: what is written by relative paths must not follow it."""

    def open(self, config: Geometry) -> None:
        os.chdir("/")
        super().open(config)


class ExitsPolitely(OurBlocks):
    """sys.exit() in a call, with the status of an internal error."""

    def append(self, name: str, tokens: Sequence[int]) -> None:
        sys.exit(70)


class InterruptsItself(OurBlocks):
    """Raises what a Ctrl-C raises."""

    def open(self, config: Geometry) -> None:
        raise KeyboardInterrupt


class DiesLater(OurBlocks):
    """Dies once in the life of a machine: the file says whether it has. Not to be seen again."""

    def admit(self, name: str, tokens: Sequence[int], salt: str | None = None) -> int:
        marker = Path(os.environ["PAGEFAULT_TEST_MARKER"])
        if not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().admit(name, tokens, salt)


class Watches(OurBlocks):
    """Notes when it was first opened, and whether torch was imported by then."""

    def open(self, config: Geometry) -> None:
        super().open(config)
        if "FIRST" in os.environ:
            text = f"{time.monotonic()} {'torch' in sys.modules}"
            Path(os.environ.pop("FIRST")).write_text(text)


class Clock(OurBlocks):
    """An answer that depends on the process it is given in."""

    capabilities = msgspec.structs.replace(OurBlocks.capabilities, promises=frozenset())

    def slots(self, name: str) -> Sequence[int]:
        slots = super().slots(name)
        return (*slots, *[-1] * (os.getpid() % 1000))  # more slots than tokens are allowed; these say nothing


class NeverRefuses:
    """Room without end: every token gets a slot of its own, in the pool or not."""

    level = "blocks"
    capabilities = Capabilities(prefix_cache=False, unknown_free=None)

    def open(self, config: Geometry) -> None:
        self.sequences: dict[str, list[int]] = {}
        self.next = 0

    def admit(self, name: str, tokens: Sequence[int]) -> int:
        self.sequences[name] = []
        self.append(name, tokens)
        return 0

    def append(self, name: str, tokens: Sequence[int]) -> None:
        self.sequences[name] += range(self.next, self.next + len(tokens))
        self.next += len(tokens)

    def free(self, name: str) -> None:
        del self.sequences[name]

    def slots(self, name: str) -> Sequence[int]:
        return self.sequences[name]


class NoCapabilities(OurBlocks):
    """Capabilities of the wrong type."""

    capabilities: dict[str, int] = {}  # type: ignore[assignment]  # noqa: RUF012


class NoSalt(OurBlocks):
    """Declares salts and takes none."""

    def admit(self, name: str, tokens: Sequence[int]) -> int:  # type: ignore[override]
        return super().admit(name, tokens)


class Absurd(OurBlocks):
    """Declarations that nothing can satisfy."""

    capabilities = Capabilities(
        refusals=(Exception,), block_sizes=(0,), num_blocks=(5, 2), max_sequences=0, promises=frozenset({"HASH-1"})
    )


class SharesWidth(OurBlocks):
    """A class attribute in place of one of the manager's own: one wide sequence turns the slots of all later systems."""

    wide = False

    def open(self, config: Geometry) -> None:
        super().open(config)
        self.turned = SharesWidth.wide

    def slots(self, name: str) -> Sequence[int]:
        slots = super().slots(name)
        SharesWidth.wide |= len(slots) > 4
        return slots[::-1] if self.turned else slots


class Works(OurBlocks):
    """The first append computes for a fifth of a second."""

    def open(self, config: Geometry) -> None:
        super().open(config)
        self.work_s = 0.2

    def append(self, name: str, tokens: Sequence[int]) -> None:
        stop, self.work_s = time.thread_time() + self.work_s, 0.0
        while time.thread_time() < stop:
            pass
        super().append(name, tokens)
