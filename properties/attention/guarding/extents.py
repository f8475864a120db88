"""The memory of tensors: their extents, and those of the live tensors to which addresses point."""

import gc
from collections.abc import Set

import torch
from torch import Tensor

Extent = tuple[int, int]
"""[start, end) as byte addresses."""


def extent_of(tensor: Tensor) -> Extent | None:
    """From the first to the last element of a dense tensor; None where it has no elements."""
    if not tensor.numel():
        return None
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()


def pointed_to(addresses: Set[int]) -> list[Extent]:
    """The extents of the live tensors on the CPU that begin at these addresses; where none begins at one, of the
    smallest tensor around it.
    """
    live = _live_extents() if addresses else set()
    first, last = min((start for start, _ in live), default=0), max((end for _, end in live), default=0)
    found = {_extent_at(address, live) for address in addresses if first <= address < last}
    return sorted(extent for extent in found if extent is not None)


def _extent_at(address: int, live: set[Extent]) -> Extent | None:
    beginning = [extent for extent in live if extent[0] == address]
    if beginning:
        return max(beginning)
    around = [(end - start, (start, end)) for start, end in live if start < address < end]
    return min(around)[1] if around else None


def _live_extents() -> set[Extent]:
    plain = [thing for thing in gc.get_objects() if type(thing) is Tensor or type(thing) is torch.nn.Parameter]
    dense = [tensor for tensor in plain if tensor.device.type == "cpu" and tensor.layout is torch.strided]
    return {extent for extent in map(_extent_if_stored, dense) if extent is not None}


def _extent_if_stored(tensor: Tensor) -> Extent | None:
    try:
        return extent_of(tensor) if tensor.data_ptr() else None
    except RuntimeError:  # torch's wrappers of tensors have no memory of their own
        return None
