"""Store by slot mapping: token i of this step goes to slot `slot_mapping[i]`; -1 marks padding, which is
not written.

Letters: T tokens, G KV heads, D head size. slot = block_id * block_size + position in the block.
"""

import torch
from torch import Tensor

from .layouts import Layout, block_size_of, elements_per_16_bytes


def store(
    keys_TGD: Tensor,
    values_TGD: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    *,
    layout: Layout = Layout.FLASH,
) -> None:
    """Writes each token with slot >= 0 to its slot of both caches, in place; every other byte stays as it is.

    There may be more tokens than slots (rows of graph padding): the surplus is ignored.
    Raises ValueError before any write if a slot lies beyond the pool, or if two tokens share one slot.
    """
    slots = slot_mapping.long()
    num_slots = key_cache.shape[0] * block_size_of(key_cache, layout)
    _check_slots(slots, num_slots, num_tokens=keys_TGD.shape[0])
    tokens = (slots >= 0).nonzero().flatten()
    # Negative slots are dropped *before* the division: -1 // 16 is -1, which indexes the last block
    # (vllm#43810).
    block_ids = slots[tokens] // block_size_of(key_cache, layout)
    positions = slots[tokens] % block_size_of(key_cache, layout)
    keys, values = keys_TGD[tokens], values_TGD[tokens]
    if layout is Layout.FLASH:
        key_cache[block_ids, positions] = keys
        value_cache[block_ids, positions] = values
    elif layout is Layout.HND:
        key_cache[block_ids, :, positions] = keys
        value_cache[block_ids, :, positions] = values
    else:
        x = elements_per_16_bytes(key_cache.dtype)
        key_cache[block_ids, :, :, positions] = keys.reshape(*keys.shape[:2], -1, x)
        value_cache[block_ids, :, :, positions] = values


def _check_slots(slots: Tensor, num_slots: int, num_tokens: int) -> None:
    if slots.numel() > num_tokens:
        raise ValueError(f"slot_mapping names {slots.numel()} slots for {num_tokens} tokens: give one slot a token")
    written = slots[slots >= 0]
    if written.numel() and int(written.max()) >= num_slots:
        raise ValueError(
            f"slot {int(written.max())} lies beyond the pool of {num_slots} slots (num_blocks x block_size): "
            "check the block table that the slot mapping was made from"
        )
    if torch.unique(written).numel() != written.numel():
        raise ValueError(f"two tokens of one step share a slot: {slots.tolist()}")
