"""torch FlexAttention's `PagedAttention` (torch.nn.attention.experimental): the page table and its inverse, on a CPU.

No sharing and no prefix cache. Attention finds its pages not by the page table but by `physical_to_logical`, the inverse
map that `get_mask_mod` reads: every physical page that maps to a logical page of the batch row is read. (Compiled, it
visits only the pages of the block mask.) A sequence takes the lowest batch row that is free.
"""

from __future__ import annotations

from collections.abc import Sequence

from properties.blocks.operations import Geometry
from properties.protocol import Capabilities
from properties.targets import Unavailable
from properties.targets.support import TableTarget

MAX_BATCH = 4


class TorchFlex(TableTarget):
    """`torch.nn.attention.experimental._paged_attention.PagedAttention`."""

    capabilities = Capabilities(
        refusals=(AssertionError,),  # "requested n pages but there are only m empty pages"
        max_sequences=MAX_BATCH,
        prefix_cache=False,
        unknown_free=None,
        promises=frozenset({"ALLOC-2P"}),
    )

    def __init__(self) -> None:
        try:
            import torch
            from torch.nn.attention.experimental import _paged_attention
        except ImportError as error:
            raise Unavailable(f"{error}; this target needs torch >= 2.11: pip install 'pagefault[torch]'") from error
        self.tensor = torch.tensor
        self.source = _paged_attention

    def open(self, config: Geometry) -> None:
        self.block_size = config.block_size
        self.paged = self.source.PagedAttention(config.num_blocks, config.block_size, MAX_BATCH, device="cpu")
        self.rows: dict[str, int] = {}
        self.lengths: dict[str, int] = {}

    def _reserve(self, row: int, length: int) -> None:
        self.paged.reserve(self.tensor([row]), self.tensor([length]))

    def admit(self, name: str, tokens: Sequence[int]) -> int:
        row = min(set(range(MAX_BATCH)) - set(self.rows.values()))
        self._reserve(row, len(tokens))
        self.rows[name], self.lengths[name] = row, len(tokens)
        return 0

    def append(self, name: str, tokens: Sequence[int]) -> None:
        self._reserve(self.rows[name], self.lengths[name] + len(tokens))
        self.lengths[name] += len(tokens)

    def free(self, name: str) -> None:
        self.paged.erase(self.tensor([self.rows.pop(name)]))

    def table(self, name: str) -> list[int]:
        return [page for page in self.paged.page_table[self.rows[name]].tolist() if page != -1]

    def read_slots(self, name: str) -> list[tuple[int, int]]:
        size, pairs = self.block_size, []
        for page, logical in enumerate(self.paged.physical_to_logical[self.rows[name]].tolist()):
            if logical >= 0:
                pairs += [(logical * size + offset, page * size + offset) for offset in range(size)]
        return pairs

    def free_blocks(self) -> list[int]:
        return list(self.paged.empty_pages)
