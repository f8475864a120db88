"""A guard on Triton's interpreter: every address that a kernel touches is checked, and integer overflow is
an error.

The interpreter checks nothing: a load past a tensor reads heap garbage, a store corrupts a neighbour. Inside
``guarded(...)`` each active lane of a load, store or atomic must lie in a tensor of the launch; where the
lanes fall into the memory of the pool they must also be allowed there (slots that the batch owns, for a
load; slots listed in this store, for a store). The first violation names the kernel's file and line.

All knowledge of the interpreter's internals is in this file (seen in Triton 3.7.1: where the methods below take
pointers and mask, and that `GridExecutor._init_args_hst` returns the launch's tensors on the host). Where those are
not as expected `why_unavailable` says so, and nothing is guarded; a test holds that the installed Triton fits.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType, ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from properties.wording import counted

Addresses = npt.NDArray[np.int64]
READS = {"create_masked_load": (0, 1)}
WRITES = {"create_masked_store": (0, 2)}
ATOMICS = {"create_atomic_rmw": (1, 3), "create_atomic_cas": (0, None)}
"""Methods that touch memory, and where among their arguments pointers and mask are (None: every lane is active)."""


class KernelFault(Exception):
    """A kernel touched memory that it must not touch. `kind` is "load", "store" or "overflow"."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True)
class Protected:
    """Memory of a pool: [start, end) as byte addresses, and the sorted addresses of elements that may be
    touched.
    """

    start: int
    end: int
    readable: Addresses
    writable: Addresses
    name: str = "the pool"


@dataclass
class Watch:
    """What the guard knows during one launch."""

    protected: tuple[Protected, ...]
    tensors: list[tuple[int, int]] = field(default_factory=list)
    num_checks: int = 0

    def note(self, tensor: Tensor) -> None:
        """Memory of a tensor that the launch was given, from its first to its last element."""
        if tensor.numel():
            last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
            self.tensors.append((tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()))

    def check(self, kind: str, pointers: Any, mask: Any) -> None:
        """Raises KernelFault for the first active lane outside what is allowed."""
        addresses = np.asarray(pointers.data).astype(np.int64).reshape(-1)
        if mask is not None:
            active = np.broadcast_to(np.asarray(mask.data), np.asarray(pointers.data).shape).reshape(-1)
            addresses = addresses[active.astype(bool)]
        self.num_checks += 1
        if addresses.size == 0:
            return
        known = np.zeros(addresses.shape, dtype=bool)
        for start, end in self.tensors:
            known |= (addresses >= start) & (addresses < end)
        if not known.all():
            self._outside(kind, int(addresses[~known][0]), int((~known).sum()))
        for memory in self.protected:
            inside = addresses[(addresses >= memory.start) & (addresses < memory.end)]
            allowed = memory.readable if kind == "load" else memory.writable
            bad = inside[~_contained(inside, allowed)]
            if bad.size:
                raise KernelFault(
                    kind,
                    f"{where()}: a {kind} touches {counted(bad.size, 'element')} of {memory.name} that this call must not "
                    f"touch ({'slots that no sequence owns' if kind == 'load' else 'slots that are not listed'}), "
                    f"the first at byte {int(bad[0]) - memory.start} of its memory",
                )

    def _outside(self, kind: str, address: int, num_lanes: int) -> None:
        distances = [(min(abs(address - start), abs(address - end)), start, end) for start, end in self.tensors]
        distance, start, end = min(distances, default=(0, 0, 0))
        side = "before" if address < start else "behind"
        raise KernelFault(
            kind,
            f"{where()}: a {kind} leaves every tensor of the launch in {num_lanes} active lanes, the first "
            f"{counted(distance, 'byte')} {side} a tensor of {counted(end - start, 'byte')}",
        )


def _contained(values: Addresses, allowed: Addresses) -> npt.NDArray[np.bool_]:
    if allowed.size == 0:
        return np.zeros(values.shape, dtype=bool)
    index = np.searchsorted(allowed, values).clip(max=allowed.size - 1)
    return np.asarray(allowed[index] == values)


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
    missing = [name for name in (*READS, *WRITES, *ATOMICS) if not hasattr(interpreter.InterpreterBuilder, name)]
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
    saved = {name: getattr(builder, name) for name in (*READS, *WRITES, *ATOMICS)}
    saved_init, saved_options = executor._init_args_hst, interpreter.interpreter_builder.options
    try:
        for name, places in {**READS, **WRITES, **ATOMICS}.items():
            setattr(builder, name, _checking(saved[name], watch, name, places))
        executor._init_args_hst = _noting(saved_init, watch)
        interpreter.interpreter_builder.options = _with_debug(interpreter, saved_options)
        yield watch
    finally:
        for name, method in saved.items():
            setattr(builder, name, method)
        executor._init_args_hst = saved_init
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


def _noting(method: Callable[..., Any], watch: Watch) -> Callable[..., Any]:
    def noted(executor: Any, arguments: Any, options: Any) -> Any:
        on_host = method(executor, arguments, options)
        watch.tensors.clear()
        for argument in (*on_host[0], *on_host[1].values()):
            if isinstance(argument, Tensor):
                watch.note(argument)
        return on_host

    return noted
