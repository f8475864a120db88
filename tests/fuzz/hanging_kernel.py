"""A kernel that never returns for one length of context."""

from properties.attention.target import Batch, Output, Pool
from properties.attention.targets.plain import PlainTorch


class Hangs(PlainTorch):
    name = "hangs"

    def decode(self, pool: Pool, batch: Batch) -> Output:
        while 33 in batch.context_lens:
            pass
        return super().decode(pool, batch)
