"""Managers with prefix caches."""

import hashlib
import heapq
from collections import OrderedDict, deque

from properties.protocol import Capabilities, Copy, slots_from_table


class NoRoom(Exception):
    pass


class Hashed:
    """Chained hashes, LRU of unowned cached blocks (apart from the free list), dedupe at publish (first one stays).
    Truncate frees whole blocks; a tail that is published or shared is copied by the next append. Fork: copy on write."""

    level = "blocks"
    capabilities = Capabilities(refusals=(NoRoom,), salts=True)
    DEDUPE = False

    def open(self, config):
        self.bs, self.n = config.block_size, config.num_blocks
        self.free_ = deque(range(config.num_blocks))
        self.lru = OrderedDict()  # block -> None; unowned and cached
        self.refs = [0] * self.n
        self.by_hash, self.hash_of = {}, {}
        self.seqs = {}
        self.todo = []

    def _chain(self, salt, tokens, upto):
        h = hashlib.sha256(repr(salt).encode()).hexdigest()
        for i in range(upto // self.bs):
            h = hashlib.sha256((h + repr(list(tokens[i * self.bs : (i + 1) * self.bs]))).encode()).hexdigest()
            yield h

    def _room(self):
        return len(self.free_) + len(self.lru)

    def _take(self):
        if self.free_:
            b = self.free_.popleft()
        else:
            b, _ = self.lru.popitem(last=False)
            self._forget(b)
        self.refs[b] = 1
        return b

    def _forget(self, b):
        h = self.hash_of.pop(b, None)
        if h is not None and self.by_hash.get(h) == b:
            del self.by_hash[h]

    def _hold(self, b):
        if self.refs[b] == 0:
            del self.lru[b]
        self.refs[b] += 1

    def _drop(self, b):
        self.refs[b] -= 1
        if self.refs[b] == 0:
            if b in self.hash_of:
                self.lru[b] = None
            else:
                self.free_.append(b)

    def _hits(self, salt, tokens):
        out = []
        for h in self._chain(salt, tokens, len(tokens) - 1):
            if h not in self.by_hash:
                break
            out.append(self.by_hash[h])
        return out

    def lookup(self, tokens, salt=None):
        return len(self._hits(salt, tokens)) * self.bs

    def can_admit(self, tokens, salt=None):
        hits = self._hits(salt, tokens)
        need = -(-len(tokens) // self.bs) - len(hits)
        return need <= self._room() - sum(self.refs[b] == 0 for b in hits)

    def _allot(self, name, tokens, salt):
        if not self.can_admit(tokens, salt):
            raise NoRoom
        hits = self._hits(salt, tokens)
        for b in hits:
            self._hold(b)
        t = hits + [self._take() for _ in range(-(-len(tokens) // self.bs) - len(hits))]
        self.seqs[name] = [t, list(tokens), salt]
        return len(hits) * self.bs

    def admit(self, name, tokens, salt=None):
        cached = self._allot(name, tokens, salt)
        self._publish(name)
        return cached

    def _publish(self, name):
        t, tokens, salt = self.seqs[name]
        for i, h in enumerate(self._chain(salt, tokens, len(tokens))):
            if h in self.by_hash:
                if self.DEDUPE and self.by_hash[h] != t[i]:
                    self._hold(self.by_hash[h])
                    self._drop(t[i])
                    t[i] = self.by_hash[h]
            elif t[i] not in self.hash_of:
                self.by_hash[h] = t[i]
                self.hash_of[t[i]] = h

    def _due(self, name):
        t, tokens, _ = self.seqs[name]
        i = len(tokens) // self.bs
        return bool(len(tokens) % self.bs) and (self.refs[t[i]] > 1 or t[i] in self.hash_of)

    def can_append(self, name, k):
        t, tokens, _ = self.seqs[name]
        return -(-(len(tokens) + k) // self.bs) - len(t) + self._due(name) <= self._room()

    def append(self, name, more):
        if not self.can_append(name, len(more)):
            raise NoRoom
        t, tokens, _ = self.seqs[name]
        if self._due(name):
            old, i = t[-1], len(tokens) // self.bs
            t[i] = self._take()
            self.todo.append(Copy(old, t[i]))
            self._drop(old)
        tokens += more
        while len(t) * self.bs < len(tokens):
            t.append(self._take())
        self._publish(name)

    def truncate(self, name, length):
        t, tokens, _ = self.seqs[name]
        del tokens[length:]
        keep = -(-length // self.bs)
        for b in reversed(t[keep:]):
            self._drop(b)
        del t[keep:]

    def fork(self, parent, child):
        t, tokens, salt = self.seqs[parent]
        for b in t:
            self.refs[b] += 1
        self.seqs[child] = [list(t), list(tokens), salt]

    def free(self, name):
        for b in reversed(self.seqs.pop(name)[0]):
            self._drop(b)

    def copies(self):
        out, self.todo = self.todo, []
        return out

    def table(self, name):
        return self.seqs[name][0]

    def slots(self, name):
        return slots_from_table(self.seqs[name][0], self.bs)

    def free_blocks(self):
        return list(self.free_)

    def cached_blocks(self):
        return self.hash_of.keys()

    def ref_count(self, b):
        return self.refs[b]


class HashedPromises(Hashed):
    """Vouches for everything."""

    capabilities = Capabilities(
        refusals=(NoRoom,),
        salts=True,
        eviction="released",
        promises=frozenset({"ALLOC-2P", "HASH-3P", "COW-3P", "EVICT-2P", "ALLOC-4P"}),
    )


class HashedNoCachedBlocks(Hashed):
    """Free means free or evictable, and what the cache shows is not told."""

    cached_blocks = None

    def free_blocks(self):
        return list(self.free_) + list(self.lru)


class HashedFreeOnly(Hashed):
    """As the template: free_blocks is the free list; cached_blocks stays commented out."""

    cached_blocks = None


class HashedSlotsOnly(Hashed):
    """Nothing told but slots."""

    cached_blocks = free_blocks = ref_count = table = None


class HashedExact(Hashed):
    def slots(self, name):
        t, tokens, _ = self.seqs[name]
        return [t[p // self.bs] * self.bs + p % self.bs for p in range(len(tokens))]


class HashedKeep(Hashed):
    """truncate keeps all blocks; the next append makes what it writes its own: blocks that are shared or published."""

    def truncate(self, name, length):
        del self.seqs[name][1][length:]

    def _not_mine(self, name):
        t, tokens, _ = self.seqs[name]
        return [i for i in range(len(tokens) // self.bs, len(t)) if self.refs[t[i]] > 1 or t[i] in self.hash_of]

    def can_append(self, name, k):
        t, tokens, _ = self.seqs[name]
        return max(0, -(-(len(tokens) + k) // self.bs) - len(t)) + len(self._not_mine(name)) <= self._room()

    def append(self, name, more):
        if not self.can_append(name, len(more)):
            raise NoRoom
        t, tokens, _ = self.seqs[name]
        for i in self._not_mine(name):
            old, t[i] = t[i], self._take()
            if i == len(tokens) // self.bs and len(tokens) % self.bs:
                self.todo.append(Copy(old, t[i]))
            self._drop(old)
        tokens += more
        while len(t) * self.bs < len(tokens):
            t.append(self._take())
        self._publish(name)


class HashedWholeLookup(Hashed):
    """lookup says what is cached; admit takes at most all but one token."""

    def lookup(self, tokens, salt=None):
        n = 0
        for h in self._chain(salt, tokens, len(tokens)):
            if h not in self.by_hash:
                break
            n += self.bs
        return n


class HashedUnpublish(Hashed):
    """A published tail that a truncation cuts is taken out of the cache where nobody else holds it."""

    def _due(self, name):
        t, tokens, _ = self.seqs[name]
        return bool(len(tokens) % self.bs) and self.refs[t[len(tokens) // self.bs]] > 1

    def append(self, name, more):
        if not self.can_append(name, len(more)):
            raise NoRoom
        t, tokens, _ = self.seqs[name]
        if len(tokens) % self.bs and not self._due(name):
            self._forget(t[-1])
        super().append(name, more)


class HashedCountsCached(Hashed):
    """Cached blocks that nobody holds are said to be free."""

    capabilities = Capabilities(refusals=(NoRoom,), salts=True, cached_overlaps_free=True)

    def free_blocks(self):
        return {*self.free_, *self.lru}


class HashedDedupe(Hashed):
    """One-call form with dedupe at publish."""

    DEDUPE = True


class HashedSplit(Hashed):
    """Split form."""

    DEDUPE = True

    def allocate(self, name, tokens, salt=None):
        return self._allot(name, tokens, salt)

    def _publish(self, name):
        pass

    def computed(self, name, upto):
        _t, tokens, _salt = self.seqs[name]
        self.seqs[name][1] = tokens[:upto]
        Hashed._publish(self, name)
        self.seqs[name][1] = tokens

    def admit(self, name, tokens, salt=None):
        n = self.allocate(name, tokens, salt)
        self.computed(name, len(tokens))
        return n

    def extend(self, name, tokens):
        Hashed.append(self, name, tokens)

    def append(self, name, more):
        self.extend(name, more)
        self.computed(name, len(self.seqs[name][1]))


class HashedSplitPromises(HashedSplit):
    capabilities = HashedPromises.capabilities


class TupleTokens(Hashed):
    """Keys are whole prefixes: tuples, added up."""

    def _chain(self, salt, tokens, upto):
        prefix = ()
        for i in range(upto // self.bs):
            prefix = prefix + tokens[i * self.bs : (i + 1) * self.bs]
            yield salt, prefix

    def admit(self, name, tokens, salt=None):
        n = super().admit(name, tokens, salt)
        self.seqs[name][1] = tokens
        return n

    def _publish(self, name):
        self.seqs[name][1] = tuple(self.seqs[name][1])
        super()._publish(name)

    def append(self, name, more):
        self.seqs[name][1] = list(self.seqs[name][1])
        super().append(name, more)

    def truncate(self, name, length):
        self.seqs[name][1] = list(self.seqs[name][1])
        super().truncate(name, length)
        self.seqs[name][1] = tuple(self.seqs[name][1])


class HashedSwap(Hashed):
    """Swaps; on the way back full blocks that are still cached are taken from the cache, the rest from the host."""

    capabilities = HashedPromises.capabilities

    def open(self, config):
        super().open(config)
        self.host = list(range(config.num_host_blocks))
        heapq.heapify(self.host)
        self.away = {}

    def swap_out(self, name):
        t, tokens, salt = self.seqs[name]
        if len(t) > len(self.host):
            raise NoRoom
        h = [heapq.heappop(self.host) for _ in t]
        self.todo += [Copy(a, b, "device", "host") for a, b in zip(t, h, strict=False)]
        self.free(name)
        self.away[name] = [h, tokens, salt]

    def swap_in(self, name):
        h, tokens, salt = self.away[name]
        hits = []
        for x in self._chain(salt, tokens, len(tokens)):
            if x not in self.by_hash:
                break
            hits.append(self.by_hash[x])
        if len(h) - len(hits) > self._room() - sum(self.refs[b] == 0 for b in hits):
            raise NoRoom
        del self.away[name]
        for b in hits:
            self._hold(b)
        t = hits + [self._take() for _ in h[len(hits) :]]
        self.todo += [Copy(a, b, "host", "device") for a, b in list(zip(h, t, strict=False))[len(hits) :]]
        for b in h:
            heapq.heappush(self.host, b)
        self.seqs[name] = [t, tokens, salt]

    def free(self, name):
        if name in getattr(self, "away", ()):
            for b in self.away.pop(name)[0]:
                heapq.heappush(self.host, b)
        else:
            super().free(name)
