"""A guard on Triton's interpreter: every address that a kernel touches is checked, and integer overflow is
an error.

The interpreter checks nothing: a load past a tensor reads heap garbage, a store corrupts a neighbour. Inside
``guarded(...)`` each active lane of a load, store or atomic must lie in a tensor of the launch or in the pool; where
the lanes fall into the memory of the pool they must also be allowed there: slots listed in this store, for a store; for a
load, slots of those sequences whose rows of the block table the program has read by then (see `tables`), or, if it has read
no row, of any sequence of the batch. The first violation names the kernel's file and line.

Tensors of a launch are its tensor arguments, from their first to their last element, also inside tuples, tensor
descriptors and `triton.reinterpret`; and, for kernels that are told addresses, the live tensors to which the integers
and 64-bit integer tensors among the arguments point. What surrounds a view in its storage is none of it: a view
says how far a kernel may go.

What the guard knows of the interpreter's internals is in this file (seen in Triton 3.7.1: where the methods below take
pointers and mask, that a load returns its values as `data` and their type as `dtype`, that `set_grid_idx` begins a
program, that `GridExecutor._init_args_hst` returns the launch's tensors on the host, that its `__call__` is a
launch, that `jit._normalize_ty` names the type of an annotation, and the text of the assertion of integer overflow). Where
those are not as expected `why_unavailable` says so, and nothing is guarded; a test holds that the installed Triton fits.
"""

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType, ModuleType
from typing import Any

import numpy as np

from properties.attention.guarding.accusation import accuse
from properties.attention.guarding.extents import Extent
from properties.attention.guarding.hearsay import told_otherwise
from properties.attention.guarding.interpreting import as_annotated, language_replaced_once
from properties.attention.guarding.launch import Launch, launch_of
from properties.attention.guarding.places import NOWHERE, Addresses
from properties.attention.guarding.protection import Protected
from properties.attention.guarding.tables import Program, Table, lengths_among, tables_among
from properties.wording import counted

READS = {"create_masked_load": (0, 1)}
WRITES = {"create_masked_store": (0, 2)}
ATOMICS = {"create_atomic_rmw": (1, 3), "create_atomic_cas": (0, None)}
"""Methods that touch memory, and where among their arguments pointers and mask are (None: every lane is active)."""
ASSERTION = "create_assert"
PROGRAM = "set_grid_idx"
OVERFLOW = re.compile(r"u?int\d+ overflow detected for operation (\w+)")


class KernelFault(Exception):
    """A kernel touched memory that it must not touch. `kind` is "load", "store" or "overflow"."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass
class Watch:
    """What the guard knows during one launch."""

    protected: tuple[Protected, ...]
    launch: Launch = field(default_factory=Launch)
    program: Program = field(default_factory=lambda: Program((0, 0, 0)))
    num_checks: int = 0

    def begin(self, arguments: Iterable[object]) -> None:
        """A launch with these arguments, on the host."""
        self.launch = launch_of(arguments, [(memory.start, memory.end) for memory in self.protected])
        rights = next((memory.readable for memory in self.protected if memory.readable is not None), None)
        tables: tuple[Table, ...] = ()
        lengths: tuple[Extent, ...] = ()
        if rights is not None and rights.differ:
            tables = tables_among(self.launch.given, rights)
            lengths = lengths_among(self.launch.given, rights) if tables else ()
        self.program = Program((0, 0, 0), tables, lengths)

    def begin_program(self, index: tuple[int, int, int]) -> None:
        """The next index of the grid: what the last one has read is not known to it."""
        self.program = Program(index, self.program.tables, self.program.lengths)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """What is known of one launch is kept while another one, begun by its hook or its grid, is made."""
        kept = self.launch, self.program
        try:
            yield
        finally:
            self.launch, self.program = kept

    def check(self, kind: str, pointers: Any, mask: Any) -> None:
        """Raises KernelFault for the first active lane outside what is allowed."""
        addresses = _active(np.asarray(pointers.data), pointers, mask).astype(np.int64)
        self.num_checks += 1
        if addresses.size == 0:
            return
        width, first, last = _width(pointers), int(addresses.min()), int(addresses.max())
        foreign = self.launch.foreign(addresses, width, first, last)
        if foreign.size:
            raise KernelFault(kind, f"{where()}: {self.launch.leaves(kind, int(foreign[0]), foreign.size)}")
        for memory in self.protected:
            if first < memory.end and last >= memory.start:
                inside = addresses[(addresses >= memory.start) & (addresses < memory.end)]
                self._check_slots(kind, memory, inside, width)
        if kind == "load":
            self.program.reads(addresses, width, first, last)

    def _check_slots(self, kind: str, memory: Protected, addresses: Addresses, width: int) -> None:
        rights, owners = memory.readable if kind == "load" else memory.writable, None
        if kind == "load" and self.program.owners:
            owners = self.program.owners
        for offset in memory.offsets_of(addresses, width):
            touched = addresses + offset
            blocks, tokens = memory.locate(touched)
            bad = blocks == NOWHERE if rights is None else ~rights.allowed(blocks, tokens, owners)
            if bad.any() and rights is not None and owners is not None:
                bad &= ~told_otherwise(self.program, self.launch.given, rights, memory, (blocks, tokens))
            if bad.any():
                lanes = touched[bad], blocks[bad], tokens[bad]
                raise KernelFault(kind, f"{where()}: {accuse(kind, memory, self.program, lanes)}")

    def learn(self, pointers: Any, mask: Any, loaded: Any) -> None:
        """What a load brought, if it is integers that the program may take for places in a pool."""
        if not self.program.tables or loaded.dtype.is_floating():
            return
        addresses = _active(np.asarray(pointers.data), pointers, mask).astype(np.int64)
        if addresses.size and not any(memory.start <= addresses[0] < memory.end for memory in self.protected):
            values = _active(np.asarray(loaded.data), pointers, mask).astype(np.int64)
            self.program.learns(addresses, _width(pointers), values)


def _active(numbers: Any, pointers: Any, mask: Any) -> Any:
    """Those of the numbers, one for each lane, whose lanes are active."""
    if mask is None:
        return numbers.reshape(-1)
    shape = np.asarray(pointers.data).shape
    active = np.broadcast_to(np.asarray(mask.data), shape)
    return np.broadcast_to(numbers, shape)[active.astype(bool)]


def _width(pointers: Any) -> int:
    """Bytes of what a pointer points to."""
    return max(1, int(pointers.get_element_ty().primitive_bitwidth) // 8)


def where() -> str:
    """`file.py:line` of the kernel code that is being interpreted."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if name != __file__ and "/triton/" not in name and "/numpy/" not in name and "/contextlib" not in name:
            return f"{name.rsplit('/', 1)[-1]}:{frame.f_lineno}"
        frame = frame.f_back
    return "an unknown line"


def why_unavailable() -> str | None:
    """Why kernels cannot be guarded in this process, or None."""
    if "triton" not in sys.modules:
        return "Triton is not imported"
    try:
        from triton.runtime import interpreter, jit
    except ImportError as error:
        return f"Triton's interpreter does not import: {error}"
    used = [(interpreter.InterpreterBuilder, name) for name in (*READS, *WRITES, *ATOMICS, ASSERTION, PROGRAM)]
    used += [(interpreter.GridExecutor, "_init_args_hst"), (jit, "_normalize_ty")]
    missing = [name for owner, name in used if not hasattr(owner, name)]
    return f"this Triton's interpreter lacks {', '.join(missing)}" if missing else None


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
    saved = {name: getattr(builder, name) for name in (*READS, *WRITES, *ATOMICS, ASSERTION, PROGRAM)}
    saved_init, saved_call = executor._init_args_hst, executor.__call__
    saved_options = interpreter.interpreter_builder.options
    try:
        for name, places in {**READS, **WRITES, **ATOMICS}.items():
            setattr(builder, name, _checking(saved[name], watch, name, places))
        setattr(builder, ASSERTION, _explaining(saved[ASSERTION]))
        setattr(builder, PROGRAM, _beginning(saved[PROGRAM], watch))
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
        result = method(builder, *arguments, **options)
        if kinds[0] == "load":
            watch.learn(pointers, mask, result)
        return result

    return checked


def _beginning(method: Callable[..., Any], watch: Watch) -> Callable[..., Any]:
    def begun(builder: Any, *index: int) -> Any:
        watch.begin_program((index[0], index[1], index[2]))
        return method(builder, *index)

    return begun


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
        return as_annotated(executor, *on_host)

    return noted


def _returning(method: Callable[..., Any], watch: Watch) -> Callable[..., Any]:
    def called(executor: Any, *arguments: Any, **options: Any) -> Any:
        with watch.aside():
            return method(executor, *arguments, **options)

    return called
