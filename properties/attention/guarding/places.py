"""Where the elements of a tensor lie in memory: from byte addresses to indices by arithmetic, at a cost that grows with the
number of addresses alone, however large the tensor is.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import Tensor

Addresses = npt.NDArray[np.int64]
Indices = npt.NDArray[np.int64]
NOWHERE = -1
"""The index at an address where no element lies: in a gap of a strided tensor, or outside."""


@dataclass(frozen=True)
class Places:
    """The memory of a dense tensor whose elements do not overlap.

    Attributes:
        start, end: byte addresses of the first element and behind the last one.
        element_size: bytes of an element.
        strides: of each of the axes that are asked for, in bytes.
        steps: (stride in bytes, size, which of the axes that are asked for, or None), the largest stride first.
        run: bytes of what lies in one piece at the end of all steps: one element, or several.
    """

    start: int
    end: int
    element_size: int
    strides: tuple[int, ...]
    steps: tuple[tuple[int, int, int | None], ...]
    run: int

    def locate(self, addresses: Addresses) -> tuple[Indices, ...]:
        """For each of the axes the index of the element that holds the byte at each address; all NOWHERE where none does."""
        rest = addresses - self.start
        inside = rest >= 0
        found = [np.zeros(addresses.shape, dtype=np.int64) for _ in self.strides]
        for stride, size, axis in self.steps:
            index = rest // stride
            rest = rest - index * stride
            inside &= index < size
            if axis is not None:
                found[axis] = index
        inside &= rest < self.run
        return tuple(found) if inside.all() else tuple(np.where(inside, index, NOWHERE) for index in found)

    def offsets_of(self, addresses: Addresses, width: int) -> list[int]:
        """Offsets from which the elements are seen that `width` bytes at each of the addresses lie in."""
        if width == self.element_size and not ((addresses - self.start) % self.element_size).any():
            return [0]
        return sorted({*range(0, width, self.element_size), width - 1})


def places_of(tensor: Tensor, axes: Sequence[int]) -> Places | None:
    """Where a dense tensor lies, to be asked for indices along `axes`. None if it has no elements or some share memory."""
    if not tensor.numel():
        return None
    size = tensor.element_size()
    strides = [stride * size for stride in tensor.stride()]
    wanted = {axis: place for place, axis in enumerate(axes)}
    dims = [(strides[axis], count, wanted.get(axis)) for axis, count in enumerate(tensor.shape) if count > 1]
    dims.sort(key=lambda dim: -dim[0])
    extents = [size]  # of what lies below each of the dimensions, from the smallest on
    for stride, count, _ in reversed(dims):
        if stride < extents[-1]:
            return None
        extents.append(extents[-1] + (count - 1) * stride)
    steps, run = _joined(dims, size)
    start = tensor.data_ptr()
    return Places(start, start + extents[-1], size, tuple(strides[axis] for axis in axes), steps, run)


def _joined(
    dims: list[tuple[int, int, int | None]], element_size: int
) -> tuple[tuple[tuple[int, int, int | None], ...], int]:
    """Steps with dimensions that nobody asks for made one where they lie without gaps; and the bytes of a run below them."""
    steps: list[tuple[int, int, int | None]] = []
    for stride, count, axis in dims:
        whole = bool(steps) and axis is None and steps[-1][2] is None and steps[-1][0] == stride * count
        steps.append((stride, count * steps.pop()[1] if whole else count, axis))
    if steps and steps[-1][2] is None and steps[-1][0] == element_size:
        return tuple(steps[:-1]), steps[-1][0] * steps[-1][1]
    return tuple(steps), element_size


def overlap(first: Places, second: Places) -> bool:
    """Whether the two extents have bytes in common: one tensor lies between the elements of the other, or both do."""
    (_, end), (start, _) = sorted(((first.start, first.end), (second.start, second.end)))
    return start < end
