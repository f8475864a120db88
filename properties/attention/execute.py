"""Runs one operation of a target: guarded where it is interpreted, with uninitialised memory filled, errors
sorted.
"""

import os
import sysconfig
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from properties.attention.guarding import guard
from properties.attention.guarding.protection import Protected
from properties.attention.target import AttentionTarget, Output
from properties.blame import is_adapter_fault, last_lines, passes, said
from properties.contract import FILL_IN, AdapterError
from properties.torch_defaults import theirs

OURS = str(Path(__file__).parent)
STDLIB = sysconfig.get_path("stdlib")
# Raised by a line of the adapter, these are mistakes in the adapter. Other exceptions may come from native code that
# the line calls, which leaves no frame of its own: those are findings.
PROGRAMMING_ERRORS = (AttributeError, ImportError, KeyError, NameError, TypeError)


@dataclass(frozen=True)
class Refused:
    """The target declined with one of its declared refusals."""

    verb: ClassVar[str] = "refused a case that it declares to accept"
    message: str


@dataclass(frozen=True)
class Fault:
    """The target failed: a guard fault ("load", "store", "overflow") or any other exception ("crash")."""

    verb: ClassVar[str] = "failed"
    kind: str
    message: str


def execute(
    target: AttentionTarget,
    call: Callable[[], object],
    protected: tuple[Protected, ...] = (),
    *,
    device: str = "cpu",
) -> object | Refused | Fault:
    """The result of `call()`, or how it failed. Raises AdapterError where the adapter itself is at fault."""
    interpreted = os.environ.get("TRITON_INTERPRET") == "1" and guard.why_unavailable() is None
    try:
        # NumPy's warnings about NaN and infinity are those of interpreted kernels on poisoned memory.
        with (
            np.errstate(all="ignore"),
            uninitialised_memory_filled(device),
            guard.guarded(protected) if interpreted else nullcontext(),
            theirs(target),
        ):
            result = call()
            if device == "cuda":
                torch.cuda.synchronize()  # a fault in a kernel belongs to this call
            return result
    except BaseException as error:
        passes(error)
        return _sorted_out(target, error)


_BLANKS = ("store: ", "decode: ", "prefill: ", "copy_blocks: ", "open: ")
"""How the text of an exception begins that a template raises where something is to be filled in."""


def _sorted_out(target: AttentionTarget, error: BaseException) -> Refused | Fault:
    if isinstance(error, AdapterError):
        raise error  # a stand-in of ours was used for more than it can do
    cause: BaseException = error
    while cause.__cause__ is not None and not isinstance(cause, guard.KernelFault):
        cause = cause.__cause__
    if isinstance(cause, guard.KernelFault):
        return Fault(cause.kind, str(cause))
    if isinstance(cause, AssertionError) and "overflow detected" in str(cause):
        return Fault("overflow", f"{_kernel_line(cause)}: {cause}")
    if isinstance(error, NotImplementedError) and str(error).startswith(_BLANKS) and is_adapter_fault(error, target):
        raise AdapterError(f"the adapter of {target.name} raises {said(error)}", FILL_IN) from error
    if isinstance(error, target.capabilities.refusals) and not _is_tritons(error):
        return Refused(said(error))
    mistake = isinstance(error, PROGRAMMING_ERRORS) or not isinstance(error, Exception)
    if mistake and is_adapter_fault(error, target):
        raise AdapterError(
            f"the adapter of {target.name} raises {said(error)} ({last_lines(error)})",
            "correct the adapter, or declare the exception class in `refusals`",
        ) from error
    if os.environ.get("TRITON_INTERPRET") == "1" and (remedy := _of_the_interpreter(cause)):
        raise AdapterError(f"{target.name}: {said(cause)} ({_whereabouts(cause)})", remedy) from error
    return Fault("crash", f"{said(cause)} ({_whereabouts(cause)})")


INTERPRETER = {
    "0 active drivers": "Triton's interpreter cannot time configurations: leave one to an autotuned kernel when it is "
    "interpreted (kernel.configs = kernel.configs[:1] in the adapter), or run with --device cuda",
    "Did you forget to add @triton.jit": "Triton's interpreter knows functions of the language as tl.NAME alone, not by "
    "another name of the module: write tl.NAME in the kernel, decorate a function of your own with @triton.jit, or run with "
    "--device cuda",
    "for triton type int1": "Triton's interpreter takes no Python bool for an argument that is no constexpr: pass an int "
    "in the adapter, or run with --device cuda",
}
"""What an exception says that comes of Triton's interpreter, and what to do. A compiled kernel may be right."""


def _of_the_interpreter(cause: BaseException) -> str:
    return next((remedy for words, remedy in INTERPRETER.items() if words in str(cause)), "")


def _is_tritons(error: BaseException) -> bool:
    """Whether Triton raised it, of a built-in class: such are declared for what an adapter itself declines."""
    frames = traceback.extract_tb(error.__traceback__)
    return type(error).__module__ == "builtins" and bool(frames) and "/triton/" in frames[-1].filename


def _whereabouts(error: BaseException) -> str:
    """The innermost lines, and before them that of the kernel, or of its launch, where they are Triton's."""
    lines, line = last_lines(error), _kernel_line(error)
    return lines if f"{line} in " in lines else f"{line}; {lines}"


def _kernel_line(error: BaseException) -> str:
    """The innermost line outside of Triton, NumPy, torch, Python's own library and this one."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not _is_library(frame.filename):
            return f"{frame.filename.rsplit('/', 1)[-1]}:{frame.lineno}"
    return "an unknown line"


def _is_library(file: str) -> bool:
    packages = any(f"/{name}/" in file for name in ("triton", "numpy", "torch"))
    ours = file.startswith(OURS) and "/targets/" not in file
    return packages or ours or file.startswith("<") or (file.startswith(STDLIB) and "/site-packages/" not in file)


@contextmanager
def uninitialised_memory_filled(device: str) -> Iterator[None]:
    """Memory that torch.empty and its relatives hand out inside the block holds NaN (integers: -1 or their maximum), so
    that scratch and outputs that are read or returned before they are written show.
    """
    if device == "cuda":
        _soil_cuda_memory()
        yield
        return
    mode, warn_only = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    filled = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*determinis.*")
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.utils.deterministic.fill_uninitialized_memory = True  # type: ignore[attr-defined]
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(mode, warn_only=warn_only)
            torch.utils.deterministic.fill_uninitialized_memory = filled  # type: ignore[attr-defined]


def _soil_cuda_memory() -> None:
    """Fills memory with ones bits and gives it back to torch's allocator, which hands it out again as it is.

    Not by deterministic mode as on a CPU: on CUDA that selects other kernels (its indexed store changes NaN payloads).
    """
    sizes = (2**19,) * 8 + (2**22,) * 4 + (2**25,) * 2  # bytes: the allocator's small and large pools
    soiled = [torch.full((size,), 255, dtype=torch.uint8, device="cuda") for size in sizes]
    del soiled


def check_output(target: AttentionTarget, output: object, q: Tensor) -> Output:
    """The output as an `Output`, or AdapterError if it has another type, place, shape or dtype."""
    if not isinstance(output, Output):
        raise AdapterError(
            f"{target.name} returned {type(output).__name__}", "return properties.attention.target.Output"
        )
    _require_dense(target, "out", output.out, q)
    if output.out.shape != q.shape or output.out.dtype != q.dtype:
        raise AdapterError(
            f"{target.name} returned out {tuple(output.out.shape)} {output.out.dtype} for queries "
            f"{tuple(q.shape)} {q.dtype}",
            "return one row per query token, in the dtype of the queries",
        )
    if output.lse is None:
        return output
    _require_dense(target, "lse", output.lse, q)
    if output.lse.shape != q.shape[:2] or not output.lse.is_floating_point():
        raise AdapterError(
            f"{target.name} returned an LSE {tuple(output.lse.shape)} {output.lse.dtype} for queries {tuple(q.shape)}",
            "return [query tokens, query heads] in float32",
        )
    return output


def _require_dense(target: AttentionTarget, name: str, value: object, q: Tensor) -> None:
    """AdapterError for what is no tensor with values of its own where the queries are."""
    if not isinstance(value, Tensor):
        what = type(value).__name__
    elif value.device != q.device or value.layout is not torch.strided:
        what = f"a tensor on {value.device}, {value.layout},"
    else:
        return
    raise AdapterError(
        f"{target.name} returned {what} as {name} for queries on {q.device}", "return a dense tensor on that device"
    )
