"""Blocks without a prefix cache: the first thing that one writes."""

from types import SimpleNamespace


class BlockManager:
    def __init__(self, num_blocks, block_size):
        self.block_size = block_size
        self.blocks = [SimpleNamespace(ref_count=0) for _ in range(num_blocks)]
        self.free_block_ids = list(range(num_blocks))

    def can_allocate(self, seq):
        return 0 if len(self.free_block_ids) >= -(-len(seq) // self.block_size) else -1

    def allocate(self, seq, num_cached_blocks):
        for _ in range(-(-len(seq) // self.block_size)):
            self._take(seq)

    def _take(self, seq):
        block = self.free_block_ids.pop(0)
        self.blocks[block].ref_count = 1
        seq.block_table.append(block)

    def can_append(self, seq):
        return bool(self.free_block_ids) or len(seq) % self.block_size != 1

    def may_append(self, seq):
        if len(seq) % self.block_size == 1:
            self._take(seq)

    def deallocate(self, seq):
        for block in seq.block_table:
            self.blocks[block].ref_count = 0
            self.free_block_ids.append(block)
        seq.block_table = []
        seq.num_cached_tokens = 0

    def hash_blocks(self, seq):
        """Nothing is ever found again."""
