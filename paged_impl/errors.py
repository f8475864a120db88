"""What the block manager refuses, with the figures a caller needs to decide what to do next."""


class OutOfBlocks(RuntimeError):
    """The pool cannot serve the call; nothing was changed.

    `needed`, `free` and `evictable` are numbers of blocks. `free` counts every block that nobody holds;
    `evictable` says how many of those keep a cached prefix: they would have been evicted if that had been
    enough.
    """

    def __init__(self, needed: int, free: int, evictable: int, space: str = "device") -> None:
        super().__init__(needed, free, evictable, space)
        self.needed = needed
        self.free = free
        self.evictable = evictable
        self.space = space

    def __str__(self) -> str:
        return (
            f"{self.needed} {self.space} blocks are needed and {self.free} are free "
            f"({self.evictable} of them hold cached prefixes): free, truncate or swap out a sequence first"
        )


class UnknownSequence(KeyError):
    """No live sequence has this name; nothing was changed."""

    def __init__(self, name: object) -> None:
        super().__init__(name)
        self.name = name

    def __str__(self) -> str:
        return f"no sequence is called {self.name!r}: it was never allocated, or it was freed already"


class RequestRefused(ValueError):
    """A request that can never be served, or whose name is in use; nothing was changed. The message says what to do."""
