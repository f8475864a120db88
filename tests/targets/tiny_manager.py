"""A small block manager with one bug, for the README and for tests: a prefix hit looks at a block's tokens alone."""


class OutOfBlocks(Exception):
    """Not enough free blocks; nothing was changed."""


class TinyManager:
    """Block tables, reference counts and sharing of full blocks among live sequences."""

    def __init__(self, num_blocks, block_size):
        self.block_size = block_size
        self.free = list(range(num_blocks))
        self.refs = [0] * num_blocks
        self.tables = {}
        self.known = {}  # tokens -> block that holds their KV

    def allocate(self, name, tokens):
        """Blocks for a new sequence. Returns how many leading tokens need not be computed, at most all but one."""
        hits = []
        for start in range(0, len(tokens) - self.block_size, self.block_size):
            block = self.known.get(self._key(tokens, start))
            if block is None or block in hits:
                break
            hits.append(block)
        self._check(self._blocks_for(len(tokens)) - len(hits))
        for block in hits:
            self.refs[block] += 1
        self.tables[name] = list(hits)
        self.grow(name, len(tokens))
        return len(hits) * self.block_size

    def grow(self, name, length):
        """Blocks for more tokens of a sequence."""
        table = self.tables[name]
        needed = self._blocks_for(length) - len(table)
        self._check(needed)
        for _ in range(needed):
            table.append(self.free.pop())
            self.refs[table[-1]] = 1

    def publish(self, name, tokens):
        """The KV of these tokens is computed: full blocks may be shared from now on."""
        for index in range(len(tokens) // self.block_size):
            self.known.setdefault(self._key(tokens, index * self.block_size), self.tables[name][index])

    def release(self, name):
        """The sequence ends; a block that nobody else holds is free again, and forgotten."""
        for block in reversed(self.tables.pop(name)):
            self.refs[block] -= 1
            if not self.refs[block]:
                self.free.append(block)
                self.known = {key: other for key, other in self.known.items() if other != block}

    def _key(self, tokens, start):
        # The bug: KV depends on everything before it, so this must be tokens[: start + self.block_size].
        return tuple(tokens[start : start + self.block_size])

    def _blocks_for(self, length):
        return -(-length // self.block_size)

    def _check(self, needed):
        if needed > len(self.free):
            raise OutOfBlocks(f"{needed} blocks needed, {len(self.free)} free")
