"""Sound block managers of many designs, and their adapters: each must be clean under what it declares.

One plain manager, `Sound`, and a class for each way in which real ones differ. None of them has a bug; an alarm on any
of them is a false one.
"""

from array import array

import msgspec

from properties.protocol import Capabilities, Copy
from properties.targets.support import TableTarget


class NoRoom(Exception):
    """Refused; nothing was changed."""


class Sound(TableTarget):
    """Prefix cache over freed blocks, least recently released first; `admit` and `append` publish full blocks."""

    capabilities = Capabilities(refusals=(NoRoom,), cached_overlaps_free=True, unknown_free="refused")
    spare_tokens = 0  # slots held beyond the length
    kept_free = 0  # blocks that admission leaves alone
    reserved = ()

    def open(self, config):
        self.block_size = config.block_size
        self.num_blocks = config.num_blocks
        self.free_list = [block for block in range(config.num_blocks) if block not in self.reserved]
        self.refs = [0] * config.num_blocks
        self.tables = {}
        self.tokens = {}
        self.known = {}  # whole prefix -> block
        self.pending = []

    # ---- blocks

    def blocks_for(self, length):
        return -(-(length + self.spare_tokens) // self.block_size)

    def take(self):
        block = self.free_list.pop(0)
        self.forget(block)
        self.refs[block] = 1
        return block

    def forget(self, block):
        self.known = {prefix: other for prefix, other in self.known.items() if other != block}

    def hold(self, block):
        if not self.refs[block]:
            self.free_list.remove(block)
        self.refs[block] += 1

    def drop(self, block):
        self.refs[block] -= 1
        if not self.refs[block]:
            self.free_list.append(block)

    def hits(self, tokens):
        found = []
        for stop in range(self.block_size, len(tokens), self.block_size):
            block = self.known.get(tuple(tokens[:stop]))
            if block is None:
                break
            found.append(block)
        return found

    def publish(self, name):
        tokens = self.tokens[name]
        for index in range(len(tokens) // self.block_size):
            self.known.setdefault(tuple(tokens[: (index + 1) * self.block_size]), self.tables[name][index])

    def grow(self, name, length, kept_free=0):
        """More blocks for a sequence whose table holds its hits already. Raises `NoRoom` before anything is taken."""
        needed = self.blocks_for(length) - len(self.tables[name])
        if needed > max(0, len(self.free_list) - kept_free):
            raise NoRoom(f"{needed} blocks needed, {len(self.free_list)} free, {kept_free} kept")
        self.tables[name] += [self.take() for _ in range(needed)]

    # ---- the protocol

    def allocate(self, name, tokens):
        found = self.hits(tokens)
        for block in found:
            self.hold(block)
        self.tables[name] = list(found)
        try:
            self.grow(name, len(tokens), self.kept_free)
        except NoRoom:
            order = [block for block in found if self.refs[block] == 1]
            for block in found:
                self.drop(block)
            # where they were in the queue does not show: they are the newest now, and still cached
            assert set(order) <= set(self.free_list)
            del self.tables[name]
            raise
        self.tokens[name] = list(tokens)
        return len(found) * self.block_size

    def admit(self, name, tokens):
        cached = self.allocate(name, tokens)
        self.publish(name)
        return cached

    def append(self, name, tokens):
        self.grow(name, len(self.tokens[name]) + len(tokens))
        self.tokens[name] += tokens
        self.publish(name)

    def free(self, name):
        del self.tokens[name]
        for block in reversed(self.tables.pop(name)):
            self.drop(block)

    def table(self, name):
        return list(self.tables[name])

    def ref_count(self, block):
        return self.refs[block]

    def free_blocks(self):
        return list(self.free_list)

    def cached_blocks(self):
        return sorted(set(self.known.values()))


def declares(**changes):
    """Capabilities of `Sound` with changes."""
    return msgspec.structs.replace(Sound.capabilities, **changes)


class LooksAhead(Sound):
    """Holds slots for three tokens more than it has (speculative decoding)."""

    spare_tokens = 3
    capabilities = declares(look_ahead=3)


class KeepsSomeFree(Sound):
    """Admission leaves a block free, so that a running sequence can go on."""

    kept_free = 1
    capabilities = declares(watermark_blocks=1, num_blocks=(3, 64))


class HasANullBlock(Sound):
    """Block 0 is padding."""

    reserved = (0,)
    capabilities = declares(reserved_blocks=(0,), num_blocks=(2, 64))


class TakesShortOnes(Sound):
    """Few sequences of few tokens, whose ids are kept as 32-bit numbers."""

    capabilities = declares(max_sequences=2, max_tokens=5, block_sizes=(1, 2, 4))

    def admit(self, name, tokens):
        return super().admit(name, array("i", tokens).tolist())


class TakesTheNewest(Sound):
    """The block that was freed last is reused first."""

    def take(self):
        self.free_list.insert(0, self.free_list.pop())
        return super().take()


class SeparatesCachedFromFree(Sound):
    """What is cached is on no free list: two lists that do not overlap."""

    capabilities = declares(cached_overlaps_free=False)

    def free_blocks(self):
        cached = set(self.known.values())
        return [block for block in self.free_list if block not in cached]


class LaterCopyWins(Sound):
    """Of two blocks with the same prefix, the one published last is found."""

    def publish(self, name):
        tokens = self.tokens[name]
        for index in range(len(tokens) // self.block_size):
            self.known[tuple(tokens[: (index + 1) * self.block_size])] = self.tables[name][index]


class PublishesAtTheEnd(Sound):
    """Only a sequence that ended can be hit."""

    def publish(self, name):
        pass

    def free(self, name):
        super().publish(name)
        super().free(name)


class IgnoresUnknownNames(Sound):
    capabilities = declares(unknown_free="ignored")

    def free(self, name):
        if name in self.tables:
            super().free(name)


class NoCache(Sound):
    """No prefix cache at all."""

    capabilities = declares(prefix_cache=False, cached_overlaps_free=False)
    cached_blocks = None

    def publish(self, name):
        pass


class Splits(Sound):
    """Offers the split forms: published are the positions that were said to be computed."""

    def admit(self, name, tokens):
        cached = self.allocate(name, tokens)
        self.computed(name, len(tokens))
        return cached

    def computed(self, name, upto):
        tokens, whole = self.tokens[name], len(self.tokens[name])
        self.tokens[name] = tokens[:upto]
        self.publish(name)
        self.tokens[name] = tokens
        assert len(self.tokens[name]) == whole


class HitsInsideABlock(Splits):
    """A hit may end inside a block, whose first tokens are copied (token-granular radix caches)."""

    def allocate(self, name, tokens):
        cached = super().allocate(name, tokens)
        behind = tuple(tokens[:cached])
        for prefix, block in self.known.items():
            common = 0
            for ours, theirs in zip(tokens[cached:-1], prefix[cached:], strict=False):
                if ours != theirs:
                    break
                common += 1
            if prefix[:cached] == behind and len(prefix) == cached + self.block_size and common:
                source, target = block, self.tables[name][cached // self.block_size]
                if source != target:
                    self.pending += [
                        Copy(source * self.block_size + offset, target * self.block_size + offset, unit="slot")
                        for offset in range(common)
                    ]
                    return cached + common
        return cached

    def copies(self):
        done, self.pending = self.pending, []
        return done


class CopiesOnWrite(Sound):
    """A fork shares everything; the first write into a shared block copies it, and counts that."""

    def fork(self, parent, child):
        self.tokens[child] = list(self.tokens[parent])
        self.tables[child] = list(self.tables[parent])
        for block in self.tables[child]:
            self.hold(block)

    def due(self, name):
        """The block that an append would have to copy."""
        index, inside = divmod(len(self.tokens[name]), self.block_size)
        return self.tables[name][index] if inside and self.refs[self.tables[name][index]] > 1 else None

    def can_append(self, name, num_tokens):
        length = len(self.tokens[name]) + num_tokens
        needed = self.blocks_for(length) - len(self.tables[name]) + (self.due(name) is not None)
        return needed <= len(self.free_list)

    def append(self, name, tokens):
        if not self.can_append(name, len(tokens)):
            raise NoRoom("no room for the copy and the tokens")
        source = self.due(name)
        if source is not None:
            target = self.take()
            self.drop(source)
            self.tables[name][len(self.tokens[name]) // self.block_size] = target
            self.pending.append(Copy(source, target))
        super().append(name, tokens)

    def copies(self):
        done, self.pending = self.pending, []
        return done


class CopiesAtTheFork(CopiesOnWrite):
    """A fork copies the partial block at once."""

    capabilities = declares(copy_at_fork=True)

    def fork(self, parent, child):
        full, inside = divmod(len(self.tokens[parent]), self.block_size)
        if inside and not self.free_list:
            raise NoRoom("no room for the copy")
        self.tokens[child] = list(self.tokens[parent])
        self.tables[child] = self.tables[parent][:full]
        for block in self.tables[child]:
            self.hold(block)
        if inside:
            self.tables[child].append(self.take())
            self.pending.append(Copy(self.tables[parent][full], self.tables[child][full]))


class CopiesEverythingAtTheFork(CopiesAtTheFork):
    """A fork shares nothing."""

    def fork(self, parent, child):
        source = self.tables[parent]
        if len(source) > len(self.free_list):
            raise NoRoom("no room for the copies")
        self.tokens[child] = list(self.tokens[parent])
        self.tables[child] = [self.take() for _ in source]
        self.pending += [Copy(*pair) for pair in zip(source, self.tables[child], strict=True)]


class Truncates(CopiesOnWrite):
    """Gives back the blocks behind a truncation; a cut through a block that others find or hold copies it."""

    fork = None
    lazily = False

    def truncate(self, name, length):
        table, (index, inside) = self.tables[name], divmod(length, self.block_size)
        keep = len(table) if self.lazily else self.blocks_for(length)
        theirs = [block for block in table[index:keep] if self.refs[block] > 1 or block in self.known.values()]
        freed = sum(self.refs[block] == 1 for block in table[keep:])
        if len(theirs) > len(self.free_list) + freed:
            raise NoRoom("no room for the copies")
        for block in reversed(table[keep:]):
            self.drop(block)
        del table[keep:], self.tokens[name][length:]
        for block in theirs:
            self.own(name, table.index(block), copy=bool(inside) and block == table[index])

    def own(self, name, index, *, copy):
        table, old = self.tables[name], self.tables[name][index]
        table[index] = self.take()
        self.drop(old)
        if copy:
            self.pending.append(Copy(old, table[index]))


class TruncatesLazily(Truncates):
    """Keeps the blocks behind a truncation for the tokens to come."""

    lazily = True


class Compacts(Sound):
    """Moves a block of a live sequence into the lowest free one whenever a sequence ends."""

    def free(self, name):
        super().free(name)
        for table in self.tables.values():
            for index, block in enumerate(table):
                low = min(self.free_list, default=block)
                if low < block and self.refs[block] == 1:
                    self.free_list.remove(low)
                    self.forget(low)
                    self.refs[low] = 1
                    self.known = {prefix: low if other == block else other for prefix, other in self.known.items()}
                    table[index] = low
                    self.drop(block)
                    self.pending.append(Copy(block, low))
                    return

    def copies(self):
        done, self.pending = self.pending, []
        return done


class Swaps(Sound):
    """Moves what a sequence alone holds to host memory and back."""

    def open(self, config):
        super().open(config)
        self.host_free = list(range(config.num_host_blocks))
        self.away = {}

    def swap_out(self, name):
        table = self.tables[name]
        if len(table) > len(self.host_free) or any(self.refs[block] > 1 for block in table):
            raise NoRoom("no host blocks, or shared")
        self.away[name] = [self.host_free.pop() for _ in table]
        self.pending += [
            Copy(source, target, "device", "host") for source, target in zip(table, self.away[name], strict=True)
        ]
        for block in reversed(self.tables.pop(name)):
            self.drop(block)

    def swap_in(self, name):
        if len(self.away[name]) > len(self.free_list):
            raise NoRoom("no device blocks")
        self.tables[name] = [self.take() for _ in self.away[name]]
        host = self.away.pop(name)
        self.pending += [Copy(s, t, "host", "device") for s, t in zip(host, self.tables[name], strict=True)]
        self.host_free += host

    def free(self, name):
        if name in self.away:
            self.host_free += self.away.pop(name)
            del self.tokens[name]
        else:
            super().free(name)

    def copies(self):
        done, self.pending = self.pending, []
        return done


class Slides(Splits):
    """A sliding window: `computed` releases the blocks behind it; sinks stay."""

    capabilities = declares(window=True)

    def open(self, config):
        super().open(config)
        self.window, self.num_sinks = config.window, config.num_sinks

    def outside(self, name, length):
        """Where in the table the blocks are that `length` tokens no longer need."""
        if not self.window:
            return []
        stop = max(0, length - self.window + 1) // self.block_size
        return [i for i in range(-(-self.num_sinks // self.block_size), stop) if self.tables[name][i] >= 0]

    def release_outside(self, name, length):
        for index in self.outside(name, length):
            self.drop(self.tables[name][index])
            self.tables[name][index] = -1

    def extend(self, name, tokens):
        self.grow(name, len(self.tokens[name]) + len(tokens))
        self.tokens[name] += tokens

    def computed(self, name, upto):
        super().computed(name, upto)
        self.release_outside(name, upto)

    def append(self, name, tokens):
        self.extend(name, tokens)
        self.computed(name, len(self.tokens[name]))

    def publish(self, name):
        tokens = self.tokens[name]
        for index, block in enumerate(self.tables[name][: len(tokens) // self.block_size]):
            if block >= 0:
                self.known.setdefault(tuple(tokens[: (index + 1) * self.block_size]), block)

    def free(self, name):
        self.tables[name] = [block for block in self.tables[name] if block >= 0]
        super().free(name)


class SlidesFirst(Slides):
    """Releases what the tokens so far no longer need before it takes blocks for more; has no split forms."""

    extend = computed = None

    def admit(self, name, tokens):
        return Sound.admit(self, name, tokens)

    def append(self, name, tokens):
        length = len(self.tokens[name])
        mine = sum(self.refs[self.tables[name][index]] == 1 for index in self.outside(name, length))
        if self.blocks_for(length + len(tokens)) - len(self.tables[name]) > len(self.free_list) + mine:
            raise NoRoom("not even with what is released")
        self.release_outside(name, length)
        Sound.append(self, name, tokens)


class SlidesAtTheEnd(SlidesFirst):
    """Accepts a window, and releases nothing before the sequence ends."""

    def append(self, name, tokens):
        Sound.append(self, name, tokens)


class DoesEverything(Swaps, Truncates, Splits):
    """Split forms, forks with copy on write, truncation and host memory in one manager."""

    fork = CopiesOnWrite.fork

    def swap_out(self, name):
        if any(self.refs[block] > 1 for block in self.tables[name]):
            raise NoRoom("it swaps only what nobody else holds")
        super().swap_out(name)


ALL = [
    Sound,
    LooksAhead,
    KeepsSomeFree,
    HasANullBlock,
    TakesShortOnes,
    TakesTheNewest,
    SeparatesCachedFromFree,
    LaterCopyWins,
    PublishesAtTheEnd,
    IgnoresUnknownNames,
    NoCache,
    Splits,
    HitsInsideABlock,
    CopiesOnWrite,
    CopiesAtTheFork,
    CopiesEverythingAtTheFork,
    Compacts,
    Truncates,
    TruncatesLazily,
    Swaps,
    Slides,
    SlidesFirst,
    SlidesAtTheEnd,
    DoesEverything,
]
