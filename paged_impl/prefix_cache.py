"""Which block holds which prefix: a chained hash finds a candidate, then the chain itself is compared.

Each cached prefix is a node: a run of `block_size` tokens behind one parent node. A node is found by the
digest of (parent digest, token bytes), and believed only if its parent *is* the node reached so far and its
bytes are equal. By induction a match is exact whatever the hash does: a weak or colliding hash loses hits, it
never gives a wrong one. A node never outlives its parent, so that whatever is cached can be found.
"""

from collections.abc import Callable

import xxhash

HashFn = Callable[[bytes], bytes]
"""Digest of any bytes. A bad one costs hits, never correctness."""
Salt = str | bytes | int | None
NO_BLOCK = -1


class PrefixNode:
    """One full block of tokens behind one whole prefix, and the physical blocks that hold its KV."""

    __slots__ = ("alive", "block", "child", "chunk", "digest", "next", "parent", "prev", "twins")

    def __init__(self, digest: bytes, parent: "PrefixNode | None", chunk: bytes, block: int) -> None:
        self.digest = digest
        self.chunk = chunk  # the token run as bytes; in a first block the salt stands before it
        self.block = block
        self.twins: dict[int, None] | None = None  # more copies, by sequences that computed it side by side
        self.alive = True  # once dead, for good: nothing can be published behind it
        self.parent = parent
        self.child: PrefixNode | None = None  # the newest one; the others follow by `next`
        self.prev: PrefixNode | None = None
        self.next: PrefixNode | None = None if parent is None else parent.child
        if parent is not None:
            if parent.child is not None:
                parent.child.prev = self
            parent.child = self

    def detach(self) -> None:
        """Leave the list of the parent's children."""
        if self.prev is not None:
            self.prev.next = self.next
        elif self.parent is not None:
            self.parent.child = self.next
        if self.next is not None:
            self.next.prev = self.prev
        self.prev = self.next = None


class PrefixCache:
    """The published blocks. The manager says what is published or forgotten, and when."""

    def __init__(self, num_blocks: int, hash_fn: HashFn | None = None) -> None:
        self._hash: HashFn = hash_fn or xxhash.xxh64_digest
        self.root = PrefixNode(b"", None, b"", NO_BLOCK)
        self._index: dict[bytes, PrefixNode] = {}
        self._node_of: list[PrefixNode | None] = [None] * num_blocks
        self._nowhere = PrefixNode(b"", None, b"", NO_BLOCK)
        self._nowhere.alive = False

    def match(self, data: bytes, chunk_bytes: int, salt: Salt) -> list[PrefixNode]:
        """The root and the longest cached chain of `data` in chunks of `chunk_bytes`. Changes nothing."""
        node = self.root
        chain = [node]
        for start in range(0, len(data), chunk_bytes):
            chunk = data[start : start + chunk_bytes]
            node = self.find(node, chunk if start else salted(chunk, salt))
            if not node.alive:
                break
            chain.append(node)
        return chain

    def find(self, parent: PrefixNode, chunk: bytes) -> PrefixNode:
        """The node of `chunk` behind `parent`, or a dead one if it is not cached."""
        node = self._index.get(self._hash(parent.digest + chunk))
        if node is None or node.parent is not parent or node.chunk != chunk:
            return self._nowhere
        return node

    def publish(self, parent: PrefixNode, chunk: bytes, block: int) -> PrefixNode:
        """Make `block` findable as `chunk` behind `parent`; returns its node, dead if that cannot be.

        It cannot be when the parent is dead, or when another prefix has the same digest: the first one stays.
        """
        if not parent.alive:
            return self._nowhere
        digest = self._hash(parent.digest + chunk)
        node = self._index.get(digest)
        if node is None:
            node = self._index[digest] = PrefixNode(digest, parent, chunk, block)
        elif node.parent is not parent or node.chunk != chunk:
            return self._nowhere
        elif node is not self._node_of[block]:  # it is, if the other side of a fork was here before
            node.twins = node.twins or {}
            node.twins[block] = None
        self._node_of[block] = node
        return node

    def is_last_copy(self, block: int) -> bool:
        """Whether forgetting the block would lose a cached prefix."""
        node = self._node_of[block]
        return node is not None and not node.twins

    def forget(self, block: int) -> list[int]:
        """Make a block unfindable, if it was published; returns further blocks that went with it.

        Its prefix stays cached while it has another copy. With the last one go the prefixes that continue it.
        """
        node = self._node_of[block]
        if node is None:
            return []
        self._node_of[block] = None
        if not node.twins:
            return self._kill(node)
        if node.block == block:
            node.block = node.twins.popitem()[0]
        else:
            del node.twins[block]
        return []

    def clear(self) -> None:
        """Forget everything. No sequence that has begun can publish any more: its chain is dead."""
        self._kill(self.root)
        self.root = PrefixNode(b"", None, b"", NO_BLOCK)

    def blocks(self) -> list[int]:
        """Every cached block, each once. O(cached blocks): for inspection."""
        return [block for node in self._index.values() for block in (node.block, *(node.twins or ()))]

    def _kill(self, top: PrefixNode) -> list[int]:
        """Drop a node and all that continues it; returns the blocks of the latter."""
        top.detach()
        blocks: list[int] = []
        stack = [top]
        while stack:
            node = stack.pop()
            child = node.child
            while child is not None:
                stack.append(child)
                blocks += (child.block, *(child.twins or ()))
                child = child.next
            node.alive = False
            node.parent = node.child = node.prev = node.next = None  # a dead node keeps no other in memory
            self._index.pop(node.digest, None)
        for block in blocks:
            self._node_of[block] = None
        return blocks


def salted(chunk: bytes, salt: Salt) -> bytes:
    """A first chunk with its salt before it. Chunks have one length: equal bytes mean an equal salt."""
    return chunk if salt is None else repr(salt).encode() + chunk
