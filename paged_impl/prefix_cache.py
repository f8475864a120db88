"""Which block holds which prefix: a chained hash finds a candidate, then the chain itself is compared.

Each cached prefix is a node: a run of `block_size` tokens behind one parent node. A node is found by the
digest of (parent digest, token bytes), and believed only if its parent *is* the node reached so far and its
bytes are equal. By induction a match is exact whatever the hash does: a weak or colliding hash loses hits, it
never gives a wrong one.
"""

from collections.abc import Callable

import xxhash

HashFn = Callable[[bytes], bytes]
Salt = str | bytes | int | None
NO_BLOCK = -1


class PrefixNode:
    """One full block of tokens behind one whole prefix, and the physical blocks that hold its KV."""

    __slots__ = ("alive", "block", "chunk", "digest", "parent", "twins")

    def __init__(self, digest: bytes, parent: "PrefixNode | None", chunk: bytes, block: int) -> None:
        self.digest = digest
        self.parent = parent
        self.chunk = chunk  # the token run as bytes; in a first block the salt stands before it
        self.block = block
        self.twins: dict[int, None] | None = (
            None  # further copies, by sequences that computed the run side by side
        )
        self.alive = True  # once dead, for good: nothing can be published behind it


class PrefixCache:
    """The published blocks. The manager says what is published or forgotten, and when."""

    def __init__(self, num_blocks: int, hash_fn: HashFn | None = None) -> None:
        self.root = PrefixNode(b"", None, b"", NO_BLOCK)
        self._hash: HashFn = hash_fn or xxhash.xxh64_digest
        self._index: dict[bytes, PrefixNode] = {}  # a parent stands before its children
        self._node_of: list[PrefixNode | None] = [None] * num_blocks
        self._nowhere = PrefixNode(b"", None, b"", NO_BLOCK)
        self._nowhere.alive = False

    def match(self, data: bytes, chunk_bytes: int, salt: Salt) -> list[PrefixNode]:
        """The root and the longest cached chain of `data` in chunks of `chunk_bytes`. Changes nothing."""
        node = self.root
        chain = [node]
        for start in range(0, len(data), chunk_bytes):
            chunk = data[start : start + chunk_bytes]
            if start == 0:
                chunk = salted(chunk, salt)
            node = self.find(node, chunk)
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

        It cannot be when the parent is dead, since no lookup would get here, or when another prefix has the
        same digest. That one stays, unless its own parent is dead.
        """
        if not parent.alive:
            return self._nowhere
        digest = self._hash(parent.digest + chunk)
        node = self._index.get(digest)
        if node is not None and node is self._node_of[block] and node.parent is parent:
            return node  # by the other side of a fork
        self.forget(block)
        if node is not None and node.parent is parent and node.chunk == chunk:
            if node.twins is None:
                node.twins = {}
            node.twins[block] = None
        else:
            if node is not None:
                if node.parent is not None and node.parent.alive:
                    return self._nowhere
                self._kill(node)
            node = self._index[digest] = PrefixNode(digest, parent, chunk, block)
        self._node_of[block] = node
        return node

    def is_last_copy(self, block: int) -> bool:
        """Whether forgetting the block would lose a cached prefix."""
        node = self._node_of[block]
        return node is not None and node.alive and not node.twins

    def forget(self, block: int) -> None:
        """Make a block unfindable, if it was published. Its prefix stays cached while it has another copy."""
        node = self._node_of[block]
        if node is None:
            return
        self._node_of[block] = None
        if not node.twins:
            self._kill(node)
        elif node.block == block:
            node.block = node.twins.popitem()[0]
        else:
            del node.twins[block]

    def clear(self) -> None:
        """Forget everything. No sequence that has begun can publish any more: its chain is dead."""
        for node in [self.root, *self._index.values()]:
            self._kill(node)
        self.root = PrefixNode(b"", None, b"", NO_BLOCK)
        self._node_of = [None] * len(self._node_of)

    def findable_blocks(self) -> list[int]:
        """Every block that some lookup can reach, each once. O(published blocks): for inspection."""
        reachable = {self.root}
        blocks: list[int] = []
        for node in self._index.values():
            if node.parent in reachable:
                reachable.add(node)
                blocks += (node.block, *(node.twins or ()))
        return blocks

    def _kill(self, node: PrefixNode) -> None:
        node.alive = False
        node.parent = None  # or the last block of a chain would keep every dead node before it in memory
        if self._index.get(node.digest) is node:
            del self._index[node.digest]


def salted(chunk: bytes, salt: Salt) -> bytes:
    """A first chunk with its salt before it. Chunks have one length: equal bytes mean an equal salt."""
    return chunk if salt is None else repr(salt).encode() + chunk
