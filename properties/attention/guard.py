"""A guard on Triton's interpreter: every address that a kernel touches is checked, and integer overflow is
an error.

The interpreter checks nothing: a load past a tensor reads heap garbage, a store corrupts a neighbour. Inside
``guarded(...)`` each active lane of a load, store or atomic must lie in a tensor of the launch or in the pool; where
the lanes fall into the memory of the pool they must also be allowed there (slots that the batch owns, for a
load; slots listed in this store, for a store). The first violation names the kernel's file and line.

Tensors of a launch are its tensor arguments, from their first to their last element, also inside tuples, tensor
descriptors and `triton.reinterpret`; and, for kernels that are told addresses, the live tensors to which the integers
and 64-bit integer tensors among the arguments point. What surrounds a view in its storage is none of it: a view
says how far a kernel may go.

What the guard knows of the interpreter's internals is in this file (seen in Triton 3.7.1: where the methods below take
pointers and mask, that `GridExecutor._init_args_hst` returns the launch's tensors on the host, that its `__call__` is a
launch, and the text of the assertion of integer overflow). Where those are not as expected `why_unavailable` says so, and
nothing is guarded; a test holds that the installed Triton fits.
"""

import gc
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType, ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from properties.attention.interpreting import language_replaced_once
from properties.wording import counted

Addresses = npt.NDArray[np.int64]
Extent = tuple[int, int]
"""[start, end) as byte addresses."""
READS = {"create_masked_load": (0, 1)}
WRITES = {"create_masked_store": (0, 2)}
ATOMICS = {"create_atomic_rmw": (1, 3), "create_atomic_cas": (0, None)}
"""Methods that touch memory, and where among their arguments pointers and mask are (None: every lane is active)."""
ASSERTION = "create_assert"
OVERFLOW = re.compile(r"u?int\d+ overflow detected for operation (\w+)")
# A table of addresses has one per cache and layer, or one per block; larger tensors of integers are not searched for any.
MOST_POINTERS = 2**16
LOWEST_ADDRESS = 2**16  # Linux maps nothing below


class KernelFault(Exception):
    """A kernel touched memory that it must not touch. `kind` is "load", "store" or "overflow"."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True)
class Protected:
    """Memory of a pool: [start, end) as byte addresses, and the sorted addresses of elements that may be
    touched, of `element_size` bytes each: a kernel may move them in other units (bytes, or several at a time). None: all
    accesses are as wide as an element.
    """

    start: int
    end: int
    readable: Addresses
    writable: Addresses
    name: str = "the pool"
    element_size: int | None = None


@dataclass
class Watch:
    """What the guard knows during one launch."""

    protected: tuple[Protected, ...]
    tensors: list[Extent] = field(default_factory=list)
    storages: list[Extent] = field(default_factory=list)
    may_point: list[int | Tensor] = field(default_factory=list)
    num_checks: int = 0

    def begin(self, arguments: Iterable[object]) -> None:
        """A launch with these arguments, on the host."""
        self.tensors[:] = [(memory.start, memory.end) for memory in self.protected]
        self.storages.clear()
        self.may_point.clear()
        for argument in arguments:
            self.note(argument)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """What is known of one launch is kept while another one, begun by its hook or its grid, is made."""
        kept = self.tensors.copy(), self.storages.copy(), self.may_point.copy()
        try:
            yield
        finally:
            self.tensors[:], self.storages[:], self.may_point[:] = kept

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
            self.tensors.append(extent)
            self.storages.append((storage.data_ptr(), storage.data_ptr() + storage.nbytes()))
        if tensor.dtype in (torch.int64, torch.uint64) and tensor.numel() <= MOST_POINTERS:
            self.may_point.append(tensor)

    def check(self, kind: str, pointers: Any, mask: Any) -> None:
        """Raises KernelFault for the first active lane outside what is allowed."""
        addresses = np.asarray(pointers.data).astype(np.int64).reshape(-1)
        if mask is not None:
            active = np.broadcast_to(np.asarray(mask.data), np.asarray(pointers.data).shape).reshape(-1)
            addresses = addresses[active.astype(bool)]
        self.num_checks += 1
        if addresses.size == 0:
            return
        width = max(1, pointers.get_element_ty().primitive_bitwidth // 8)
        foreign = self._foreign(addresses, width)
        if foreign.size and self._follow_pointers():
            foreign = self._foreign(addresses, width)
        if foreign.size:
            self._outside(kind, int(foreign[0]), foreign.size)
        for memory in self.protected:
            inside = addresses[(addresses >= memory.start) & (addresses < memory.end)]
            allowed = memory.readable if kind == "load" else memory.writable
            bad = inside[~_contained(inside, width, allowed, memory.element_size or width)]
            if bad.size:
                raise KernelFault(
                    kind,
                    f"{where()}: a {kind} touches {counted(bad.size, 'element')} of {memory.name} that this call must not "
                    f"touch ({'slots that no sequence owns' if kind == 'load' else 'slots that are not listed'}), "
                    f"the first at byte {int(bad[0]) - memory.start} of its memory",
                )

    def _foreign(self, addresses: Addresses, width: int) -> Addresses:
        """Those of the addresses at which `width` bytes do not lie within a tensor of the launch."""
        known = np.zeros(addresses.shape, dtype=bool)
        for start, end in self.tensors:
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
        self.tensors += found
        return bool(found)

    def _outside(self, kind: str, address: int, num_lanes: int) -> None:
        leaves = f"{where()}: a {kind} leaves every tensor of the launch in {counted(num_lanes, 'active lane')}"
        if not self.tensors:
            raise KernelFault(kind, f"{leaves}: it was given none")
        _, start, end = min((min(abs(address - start), abs(address - end)), start, end) for start, end in self.tensors)
        distance = start - address if address < start else max(address - end, 0)
        side = "before" if address < start else "behind" if address >= end else "partly behind"
        hint = ""
        if any(first <= address < last for first, last in self.storages):
            hint = ". An argument is a view of the memory there: if it is meant, give the kernel the whole tensor"
        raise KernelFault(
            kind,
            f"{leaves}, the first {counted(distance, 'byte')} {side} a tensor of {counted(end - start, 'byte')}{hint}",
        )


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


def _contained(values: Addresses, width: int, allowed: Addresses, element_size: int) -> npt.NDArray[np.bool_]:
    """At which addresses all `width` bytes lie in elements of `element_size` bytes at the sorted addresses `allowed`."""
    contained = np.full(values.shape, allowed.size > 0)
    for offset in {*range(0, width, element_size), width - 1} if allowed.size else ():
        index = np.searchsorted(allowed, values + offset, side="right") - 1
        contained &= (index >= 0) & (values + offset - allowed[index] < element_size)
    return contained


def where() -> str:
    """`file.py:line` of the kernel code that is being interpreted."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if name != __file__ and "/triton/" not in name and "/numpy/" not in name and "/contextlib" not in name:
            return f"{name.rsplit('/', 1)[-1]}:{frame.f_lineno}"
        frame = frame.f_back
    return "an unknown line"


def element_addresses(tensor: Tensor, chosen: Tensor) -> Addresses:
    """Sorted byte addresses of the elements of `tensor` at which the boolean `chosen` (same shape) is
    true.
    """
    offsets = torch.zeros(tensor.shape, dtype=torch.int64)
    for axis, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        shape = [1] * tensor.dim()
        shape[axis] = size
        offsets += (torch.arange(size) * stride).reshape(shape)
    addresses = tensor.data_ptr() + offsets[chosen] * tensor.element_size()
    return np.sort(addresses.numpy())


def merged(first: Addresses, second: Addresses) -> Addresses:
    """Both sets of addresses, sorted."""
    return np.sort(np.concatenate([first, second]))


def why_unavailable() -> str | None:
    """Why kernels cannot be guarded in this process, or None."""
    if "triton" not in sys.modules:
        return "Triton is not imported"
    try:
        from triton.runtime import interpreter
    except ImportError as error:
        return f"Triton's interpreter does not import: {error}"
    missing = [
        name for name in (*READS, *WRITES, *ATOMICS, ASSERTION) if not hasattr(interpreter.InterpreterBuilder, name)
    ]
    if missing or not hasattr(interpreter.GridExecutor, "_init_args_hst"):
        return f"this Triton's interpreter lacks {missing or 'GridExecutor._init_args_hst'}"
    return None


@contextmanager
def guarded(protected: tuple[Protected, ...] = ()) -> Iterator[Watch]:
    """Guards every interpreted launch inside the block; a fault surfaces as the cause of the launch's
    exception.

    Not re-entrant and, like the interpreter, not thread-safe. Raises RuntimeError where `why_unavailable()`.
    """
    problem = why_unavailable()
    if problem is not None:
        raise RuntimeError(f"kernels cannot be guarded: {problem}")
    from triton.runtime import interpreter

    watch = Watch(protected)
    builder, executor = interpreter.InterpreterBuilder, interpreter.GridExecutor
    saved = {name: getattr(builder, name) for name in (*READS, *WRITES, *ATOMICS, ASSERTION)}
    saved_init, saved_call = executor._init_args_hst, executor.__call__
    saved_options = interpreter.interpreter_builder.options
    try:
        for name, places in {**READS, **WRITES, **ATOMICS}.items():
            setattr(builder, name, _checking(saved[name], watch, name, places))
        setattr(builder, ASSERTION, _explaining(saved[ASSERTION]))
        executor._init_args_hst, executor.__call__ = _noting(saved_init, watch), _returning(saved_call, watch)
        interpreter.interpreter_builder.options = _with_debug(interpreter, saved_options)
        with language_replaced_once():
            yield watch
    finally:
        for name, method in saved.items():
            setattr(builder, name, method)
        executor._init_args_hst, executor.__call__ = saved_init, saved_call
        interpreter.interpreter_builder.options = saved_options


def _with_debug(interpreter: ModuleType, options: Any) -> Any:
    """The interpreter's options with its check of integer overflow switched on."""
    values: Mapping[str, Any] = {name: getattr(options, name) for name in options.__dataclass_fields__}
    return interpreter.InterpreterOptions(**{**values, "debug": True, "sanitize_overflow": True})


def _checking(
    method: Callable[..., Any], watch: Watch, name: str, places: tuple[int, int | None]
) -> Callable[..., Any]:
    kinds = ("load",) if name in READS else ("store",) if name in WRITES else ("load", "store")

    def checked(builder: Any, *arguments: Any, **options: Any) -> Any:
        pointers, mask = arguments[places[0]], None if places[1] is None else arguments[places[1]]
        for kind in kinds:
            watch.check(kind, pointers, mask)
        return method(builder, *arguments, **options)

    return checked


def _explaining(method: Callable[..., Any]) -> Callable[..., Any]:
    """The interpreter's assertion, which says of an integer overflow in how many lanes it is and what is to be done."""

    def explained(builder: Any, condition: Any, message: Any) -> Any:
        overflow = OVERFLOW.fullmatch(str(message))
        if overflow is None or condition:
            return method(builder, condition, message)
        holds = np.asarray(condition.data)
        raise KernelFault(
            "overflow",
            f"{where()}: {message}, in {int((~holds.astype(bool)).sum())} of {counted(holds.size, 'lane')}. Compute it in "
            "int64. If every access that uses such a lane is masked off, the wrapped value does no harm: where it comes "
            "from a block-table entry behind the last block, the target may leave 'huge' out of `padding` in its "
            f"capabilities; elsewhere tl.{overflow[1]}(..., sanitize_overflow=False) says that the wrap is meant",
        )

    return explained


def _noting(method: Callable[..., Any], watch: Watch) -> Callable[..., Any]:
    def noted(executor: Any, arguments: Any, options: Any) -> Any:
        on_host = method(executor, arguments, options)
        watch.begin((*on_host[0], *on_host[1].values()))
        return on_host

    return noted


def _returning(method: Callable[..., Any], watch: Watch) -> Callable[..., Any]:
    def called(executor: Any, *arguments: Any, **options: Any) -> Any:
        with watch.aside():
            return method(executor, *arguments, **options)

    return called
