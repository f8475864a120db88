"""The adapter that puts `TinyManager` under test, complete."""

from tiny_manager import OutOfBlocks, TinyManager

from properties.protocol import Capabilities, slots_from_table


class Tiny:
    capabilities = Capabilities(refusals=(OutOfBlocks,), unknown_free=None)

    def open(self, config):
        self.manager = TinyManager(config.num_blocks, config.block_size)
        self.tokens = {}

    def admit(self, name, tokens):
        cached = self.manager.allocate(name, tokens)
        self.tokens[name] = list(tokens)
        self.manager.publish(name, self.tokens[name])
        return cached

    def append(self, name, tokens):
        self.manager.grow(name, len(self.tokens[name]) + len(tokens))
        self.tokens[name] += tokens
        self.manager.publish(name, self.tokens[name])

    def free(self, name):
        self.manager.release(name)

    def slots(self, name):
        return slots_from_table(self.manager.tables[name], self.manager.block_size)

    # Optional from here on: the more a target offers, the more clauses are judged.

    def ref_count(self, block):
        return self.manager.refs[block]

    def free_blocks(self):
        return self.manager.free
