"""The memory that a launch was given: its tensors, and those to which addresses among its arguments point."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from properties.attention.guarding.extents import Extent, extent_of, pointed_to
from properties.attention.guarding.places import Addresses
from properties.wording import counted

# A table of addresses has one per cache and layer, or one per block; larger tensors of integers are not searched for any.
MOST_POINTERS = 2**16
LOWEST_ADDRESS = 2**16  # Linux maps nothing below


@dataclass
class Launch:
    """What one launch may touch: `extents`. `storages`: the memory around each of them. `given`: its tensors."""

    extents: list[Extent] = field(default_factory=list)
    storages: list[Extent] = field(default_factory=list)
    given: list[Tensor] = field(default_factory=list)
    may_point: list[int | Tensor] = field(default_factory=list)

    def note(self, argument: object) -> None:
        """The memory that an argument gives to the launch."""
        if isinstance(argument, Tensor):
            self._note_tensor(argument)
        elif isinstance(argument, tuple):
            for part in argument:
                self.note(part)
        elif isinstance(argument, int):
            self.may_point.append(argument)
        else:  # the tensor below a TensorDescriptor or a TensorWrapper (of triton.reinterpret)
            below = getattr(argument, "base", None)
            if below is not None:
                self.note(below)

    def _note_tensor(self, tensor: Tensor) -> None:
        extent, storage = extent_of(tensor), tensor.untyped_storage()
        if extent is not None:
            self.given.append(tensor)
            self.extents.append(extent)
            self.storages.append((storage.data_ptr(), storage.data_ptr() + storage.nbytes()))
        if tensor.dtype in (torch.int64, torch.uint64) and tensor.numel() <= MOST_POINTERS:
            self.may_point.append(tensor)

    def foreign(self, addresses: Addresses, width: int, first: int, last: int) -> Addresses:
        """Those of the addresses, from `first` to `last`, at which `width` bytes do not lie within one of its tensors."""
        for start, end in self.extents:
            if start <= first and last + width <= end:
                return addresses[:0]
        foreign = self._outside(addresses, width)
        return self._outside(addresses, width) if foreign.size and self._follow_pointers() else foreign

    def _outside(self, addresses: Addresses, width: int) -> Addresses:
        known = np.zeros(addresses.shape, dtype=bool)
        for start, end in self.extents:
            known |= (addresses >= start) & (addresses + width <= end)
        return addresses[~known]

    def _follow_pointers(self) -> bool:
        """Adds the live tensors whose addresses the launch was told; whether there are any. Once per launch: it takes some
        50 ms in a process of 200 thousand objects.
        """
        told = [v.numpy().reshape(-1) if isinstance(v, Tensor) else [v] for v in self.may_point]
        self.may_point.clear()
        numbers = {int(number) for part in told for number in np.unique(part)}
        found = pointed_to({number for number in numbers if number >= LOWEST_ADDRESS})
        self.extents += found
        return bool(found)

    def leaves(self, kind: str, address: int, num_lanes: int) -> str:
        """What an access does that leaves every tensor, the first lane at an address."""
        leaves = f"a {kind} leaves every tensor of the launch in {counted(num_lanes, 'active lane')}"
        if not self.extents:
            return f"{leaves}: it was given none"
        _, start, end = min((min(abs(address - start), abs(address - end)), start, end) for start, end in self.extents)
        distance = start - address if address < start else max(address - end, 0)
        side = "before" if address < start else "behind" if address >= end else "partly behind"
        hint = ""
        if any(first <= address < last for first, last in self.storages):
            hint = ". An argument is a view of the memory there: if it is meant, give the kernel the whole tensor"
        what = f"a tensor of {counted(end - start, 'byte')}{self._described((start, end))}"
        return f"{leaves}, the first {counted(distance, 'byte')} {side} {what}{hint}"

    def _described(self, extent: Extent) -> str:
        """Type and shape of the tensors that were given with this extent: " (int32 [3, 16])"."""
        given = [tensor for tensor in self.given if extent_of(tensor) == extent]
        described = dict.fromkeys(f"{str(t.dtype).removeprefix('torch.')} {list(t.shape)}" for t in given)
        return f" ({' or '.join(described)})" if described else ""


def launch_of(arguments: Iterable[object], pools: Iterable[Extent] = ()) -> Launch:
    """A launch with these arguments, on the host, beside pools that any kernel may know."""
    launch = Launch(list(pools))
    for argument in arguments:
        launch.note(argument)
    return launch
