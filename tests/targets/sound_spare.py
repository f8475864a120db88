"""Managers that hold spare blocks behind the last token."""

from properties.protocol import Capabilities, Copy, slots_from_table


class NoRoom(Exception):
    pass


class SpecExact:
    """Speculative decoding: room for `AHEAD` drafts is held; slots() tells those of the tokens alone. Forks share token
    blocks only, copy on write; the spare blocks are each sequence's own, taken at the next append."""

    level = "blocks"
    AHEAD = 3
    capabilities = Capabilities(refusals=(NoRoom,), prefix_cache=False, look_ahead=3)

    def open(self, config):
        self.bs = config.block_size
        self.free_list = list(range(config.num_blocks))
        self.refs = {}
        self.tables, self.lens, self.todo = {}, {}, []

    def _need(self, n):
        return -(-(n + self.AHEAD) // self.bs)

    def _take(self):
        b = self.free_list.pop()
        self.refs[b] = 1
        return b

    def _drop(self, b):
        self.refs[b] -= 1
        if not self.refs[b]:
            del self.refs[b]
            self.free_list.append(b)

    def admit(self, name, tokens):
        need = self._need(len(tokens))
        if need > len(self.free_list):
            raise NoRoom
        self.tables[name] = [self._take() for _ in range(need)]
        self.lens[name] = len(tokens)
        return 0

    def append(self, name, tokens):
        t, n = self.tables[name], self.lens[name]
        cow = n % self.bs and self.refs[t[n // self.bs]] > 1
        new = max(0, self._need(n + len(tokens)) - len(t))
        if new + bool(cow) > len(self.free_list):
            raise NoRoom
        if cow:
            old, t[n // self.bs] = t[n // self.bs], self._take()
            self.todo.append(Copy(old, t[n // self.bs]))
            self._drop(old)
        t.extend(self._take() for _ in range(new))
        self.lens[name] = n + len(tokens)

    def free(self, name):
        for b in self.tables.pop(name):
            self._drop(b)
        del self.lens[name]

    def fork(self, parent, child):
        n = self.lens[parent]
        self.tables[child] = self.tables[parent][: -(-n // self.bs)]
        self.lens[child] = n
        for b in self.tables[child]:
            self.refs[b] += 1

    def copies(self):
        out, self.todo = self.todo, []
        return out

    def slots(self, name):
        t = self.tables[name]
        return [t[p // self.bs] * self.bs + p % self.bs for p in range(self.lens[name])]

    def table(self, name):
        return self.tables[name]

    def free_blocks(self):
        return self.free_list

    def ref_count(self, b):
        return self.refs.get(b, 0)


class SpecWhole(SpecExact):
    """The same, slots() of every block held."""

    def slots(self, name):
        return slots_from_table(self.tables[name], self.bs)


class SpecForkTakesSpare(SpecWhole):
    """The child gets spare blocks of its own at the fork; full and partial blocks are shared, copy on write."""

    def fork(self, parent, child):
        n = self.lens[parent]
        k = -(-n // self.bs)
        new = self._need(n) - k
        if new > len(self.free_list):
            raise NoRoom
        self.tables[child] = self.tables[parent][:k]
        self.lens[child] = n
        for b in self.tables[child]:
            self.refs[b] += 1
        self.tables[child] += [self._take() for _ in range(new)]


class SpecForkSharesAll(SpecWhole):
    """The spare blocks are shared at the fork too; an append makes every block from the tail on its own."""

    def fork(self, parent, child):
        self.tables[child] = list(self.tables[parent])
        self.lens[child] = self.lens[parent]
        for b in self.tables[child]:
            self.refs[b] += 1

    def append(self, name, tokens):
        t, n = self.tables[name], self.lens[name]
        first = n // self.bs
        mine = [i for i in range(first, len(t)) if self.refs[t[i]] > 1]
        new = max(0, self._need(n + len(tokens)) - len(t))
        if new + len(mine) > len(self.free_list):
            raise NoRoom
        for i in mine:
            old, t[i] = t[i], self._take()
            if i == first and n % self.bs:
                self.todo.append(Copy(old, t[i]))
            self._drop(old)
        t.extend(self._take() for _ in range(new))
        self.lens[name] = n + len(tokens)


class SpecEager(SpecWhole):
    """Copies the partial block at the fork; whole look-ahead taken too; slots exact."""

    capabilities = Capabilities(refusals=(NoRoom,), prefix_cache=False, look_ahead=3, copy_at_fork=True)

    def fork(self, parent, child):
        n = self.lens[parent]
        full = n // self.bs
        new = self._need(n) - full
        if new > len(self.free_list):
            raise NoRoom
        t = self.tables[parent][:full]
        for b in t:
            self.refs[b] += 1
        t += [self._take() for _ in range(new)]
        if n % self.bs:
            self.todo.append(Copy(self.tables[parent][full], t[full]))
        self.tables[child], self.lens[child] = t, n


class LazyTrunc(SpecForkSharesAll):
    """No look-ahead; truncate keeps the blocks for what comes next."""

    AHEAD = 0
    capabilities = Capabilities(refusals=(NoRoom,), prefix_cache=False)

    def truncate(self, name, length):
        self.lens[name] = length


class LazyTruncExact(LazyTrunc):
    def slots(self, name):
        return SpecExact.slots(self, name)


class LazyTruncSwap(LazyTrunc):
    """With swapping; spare blocks travel along as part of the table; shared ones are copied out and dropped."""

    def open(self, config):
        super().open(config)
        self.host = list(range(config.num_host_blocks))
        self.away = {}

    def swap_out(self, name):
        t = self.tables[name]
        if len(t) > len(self.host):
            raise NoRoom
        self.away[name] = [self.host.pop() for _ in t]
        self.todo += [Copy(a, b, "device", "host") for a, b in zip(t, self.away[name], strict=False)]
        for b in self.tables.pop(name):
            self._drop(b)

    def swap_in(self, name):
        h = self.away[name]
        if len(h) > len(self.free_list):
            raise NoRoom
        del self.away[name]
        self.tables[name] = [self._take() for _ in h]
        self.todo += [Copy(a, b, "host", "device") for a, b in zip(h, self.tables[name], strict=False)]
        self.host += h

    def free(self, name):
        if name in self.away:
            self.host += self.away.pop(name)
            del self.lens[name]
        else:
            super().free(name)


class LazySwapTight(LazyTruncSwap):
    """Only what holds tokens travels."""

    def swap_out(self, name):
        t = self.tables[name]
        k = -(-self.lens[name] // self.bs)
        if k > len(self.host):
            raise NoRoom
        for b in t[k:]:
            self._drop(b)
        del t[k:]
        super().swap_out(name)
