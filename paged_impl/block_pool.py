"""The blocks of one memory space: who is free, who is held, and which free block is taken next. All O(1)."""

from collections import OrderedDict


class BlockPool:
    """Reference counts and free blocks of one memory space (device or host).

    A block is *held* (reference count above 0), or free: *blank* (nothing in it can be found) or *evictable*
    (it keeps a cached prefix). Blank blocks are taken first, the last released first; then evictable ones,
    the least recently released first. The caller checks `num_free`, and says whether a released block is
    cached.
    """

    def __init__(self, num_blocks: int) -> None:
        self.ref_counts = [0] * num_blocks
        self._blank = list(range(num_blocks - 1, -1, -1))
        self._evictable: OrderedDict[int, None] = OrderedDict()  # oldest first

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds, evictable ones included."""
        return len(self._blank) + len(self._evictable)

    @property
    def num_evictable(self) -> int:
        """Free blocks that keep a cached prefix."""
        return len(self._evictable)

    def free_blocks(self) -> list[int]:
        """Every free block once, in the order in which they would be taken."""
        return [*reversed(self._blank), *self._evictable]

    def take(self) -> int:
        """Hold a free block, to be overwritten. Needs `num_free > 0`; what it kept is evicted by this."""
        block = self._blank.pop() if self._blank else self._evictable.popitem(last=False)[0]
        self.ref_counts[block] = 1
        return block

    def hold(self, block: int) -> None:
        """Add a holder to a held block, or revive an evictable one."""
        if self.ref_counts[block] == 0:
            del self._evictable[block]
        self.ref_counts[block] += 1

    def release(self, block: int) -> bool:
        """Remove a holder. True if it was the last one: the caller must then `retire` the block."""
        assert self.ref_counts[block] > 0, f"block {block} has no holder that could release it"
        self.ref_counts[block] -= 1
        return self.ref_counts[block] == 0

    def retire(self, block: int, *, evictable: bool) -> None:
        """Make a block free whose last holder has gone. An evictable one becomes the newest."""
        if evictable:
            self._evictable[block] = None
        else:
            self._blank.append(block)

    def blank(self, block: int) -> None:
        """Make an evictable block blank: what it kept is not worth keeping."""
        del self._evictable[block]
        self._blank.append(block)

    def touch(self, block: int) -> None:
        """Make an evictable block the newest; leave any other alone."""
        if block in self._evictable:
            self._evictable.move_to_end(block)

    def blank_all(self) -> None:
        """Make every evictable block blank: the cache is dropped."""
        self._blank.extend(reversed(self._evictable))
        self._evictable.clear()
