"""Token-granular radix cache: partial blocks stay findable, partial hits are copied, leaves go first."""

import random
from array import array

from properties.protocol import Capabilities, Copy


class PoolExhausted(RuntimeError):
    pass


class Node:
    __slots__ = ("block", "key", "kids", "locks", "parent", "stamp")

    def __init__(self, key, block, parent):
        self.key, self.block, self.parent, self.kids, self.locks, self.stamp = key, block, parent, [], 0, 0


class Radix:
    """Sequences own a path of tree nodes (full blocks, locked) and private blocks behind it. At the end of a sequence
    (and when full) blocks move into the tree. The tree holds a reference of its own; ref_count leaves it out."""

    level = "blocks"
    capabilities = Capabilities(refusals=(PoolExhausted,), promises=frozenset({"COW-3P", "ALLOC-2P"}))
    UNIT = "slot"

    def open(self, config):
        self.page = config.block_size
        self.free_pages = list(range(config.num_blocks))[::-1]
        self.root = Node((), None, None)
        self.nodes = []
        self.seqs = {}
        self.pending = []
        self.clock = 0

    # tree
    def _common(self, a, b):
        n = 0
        for x, y in zip(a, b, strict=False):
            if x != y:
                break
            n += 1
        return n

    def _match(self, tokens):
        """Full nodes on the path, and (node, count) of a best partial match behind it."""
        node, path, at = self.root, [], 0
        while True:
            full = next(
                (k for k in node.kids if len(k.key) == self.page and tuple(tokens[at : at + self.page]) == k.key), None
            )
            if full is None or at + self.page > len(tokens):
                break
            path.append(full)
            node, at = full, at + self.page
        best = max(((self._common(k.key, tokens[at:]), -i) for i, k in enumerate(node.kids)), default=(0, 0))
        return path, (node.kids[-best[1]] if best[0] else None, best[0])

    def _evictable(self):
        return [n for n in self.nodes if not n.kids and not n.locks]

    def _evict(self):
        victim = min(self._evictable(), key=lambda n: n.stamp)
        victim.parent.kids.remove(victim)
        self.nodes.remove(victim)
        self.free_pages.append(victim.block)

    def _unlocked(self):
        return sum(not n.locks for n in self.nodes)

    def _room(self):
        return len(self.free_pages) + self._unlocked()

    def _take(self):
        if not self.free_pages:
            self._evict()
        return self.free_pages.pop()

    def _touch(self, path):
        self.clock += 1
        for n in path:
            n.stamp = self.clock

    # protocol
    def lookup(self, tokens):
        path, (_, extra) = self._match(tokens[: len(tokens) - 1])
        return len(path) * self.page + extra

    def admit(self, name, tokens):
        path, (src, extra) = self._match(tokens[:-1])
        total = -(-len(tokens) // self.page)
        for n in path:
            n.locks += 1
        if src is not None:
            src.locks += 1
            if total - len(path) > self._room():
                src.locks -= 1
                src, extra = None, 0
        if total - len(path) > self._room():
            for n in path:
                n.locks -= 1
            raise PoolExhausted(name)
        own = [self._take() for _ in range(total - len(path))]
        if src is not None:
            src.locks -= 1
            if self.UNIT == "slot":
                self.pending += [
                    Copy(src.block * self.page + i, own[0] * self.page + i, unit="slot") for i in range(extra)
                ]
            else:
                self.pending.append(Copy(src.block, own[0]))
        self._touch(path)
        cached = len(path) * self.page + extra
        self.seqs[name] = {"path": path, "own": own, "tokens": list(tokens)}
        self._publish(self.seqs[name])
        return cached

    def _publish(self, s):
        """Full private blocks become nodes, unless there is an equal one already (then it stays private, and all behind it)."""
        while s["own"] and not s.get("private") and (len(s["path"]) + 1) * self.page <= len(s["tokens"]):
            at = len(s["path"]) * self.page
            key = tuple(s["tokens"][at : at + self.page])
            parent = s["path"][-1] if s["path"] else self.root
            if any(k.key == key for k in parent.kids):
                s["private"] = True
                break
            node = Node(key, s["own"].pop(0), parent)
            node.locks = 1
            parent.kids.append(node)
            self.nodes.append(node)
            s["path"].append(node)
        self._touch(s["path"])

    def append(self, name, tokens):
        s = self.seqs[name]
        new = -(-(len(s["tokens"]) + len(tokens)) // self.page) - len(s["path"]) - len(s["own"])
        if new > self._room():
            raise PoolExhausted(name)
        s["own"] += [self._take() for _ in range(new)]
        s["tokens"] += tokens
        self._publish(s)

    def free(self, name):
        s = self.seqs.pop(name)
        for n in s["path"]:
            n.locks -= 1
        self._touch(s["path"])
        self._touch(self._keep_rest(s))
        self.free_pages += s["own"][::-1]

    def _keep_rest(self, s):
        """The block that is not full stays findable: its node, in a list, unless there is one like it."""
        rest = tuple(s["tokens"][len(s["path"]) * self.page :])
        parent = s["path"][-1] if s["path"] else self.root
        if not s["own"] or s.get("private") or not 0 < len(rest) < self.page:
            return []
        if any(k.key[: len(rest)] == rest for k in parent.kids):
            return []
        node = Node(rest, s["own"].pop(0), parent)
        parent.kids.append(node)
        self.nodes.append(node)
        return [node]

    def copies(self):
        out, self.pending = tuple(self.pending), []
        return out

    def table(self, name):
        s = self.seqs[name]
        return array("l", [n.block for n in s["path"]] + s["own"])

    def slots(self, name):
        out = array("l")
        for b in self.table(name):
            out.extend(range(b * self.page, b * self.page + self.page))
        return out[: len(self.seqs[name]["tokens"])]

    def free_blocks(self):
        return self.free_pages

    def cached_blocks(self):
        return [n.block for n in self.nodes]

    def ref_count(self, b):
        for n in self.nodes:
            if n.block == b:
                return n.locks
        return sum(b in s["own"] for s in self.seqs.values())


class RadixNoPromise(Radix):
    capabilities = Capabilities(refusals=(PoolExhausted,))


class RadixBlockCopies(RadixNoPromise):
    """Copies the whole block for a partial hit."""

    UNIT = "block"


class RadixMatchPrefix(RadixNoPromise):
    """lookup is the tree's own match_prefix; admit asks it for all but the last token."""

    def lookup(self, tokens):
        path, (_, extra) = self._match(tokens)
        return len(path) * self.page + extra


class RadixReleased(Radix):
    """Leaves by age of release."""

    capabilities = Capabilities(refusals=(PoolExhausted,), eviction="released", promises=frozenset({"EVICT-2P"}))

    def _touch(self, path):
        self.clock += 1
        for i, n in enumerate(path):
            n.stamp = (self.clock, -i)

    def free(self, name):
        s = self.seqs.pop(name)
        for n in s["path"]:
            n.locks -= 1
        path = [*s["path"], *self._keep_rest(s)]
        self._touch([n for n in path if not n.locks])
        self.free_pages += s["own"][::-1]


class RadixRandom(RadixNoPromise):
    """Evicts a random leaf, seeded."""

    def open(self, config):
        super().open(config)
        self.rng = random.Random(7)

    def _evict(self):
        victim = self.rng.choice(self._evictable())
        victim.parent.kids.remove(victim)
        self.nodes.remove(victim)
        self.free_pages.append(victim.block)
