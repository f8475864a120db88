"""Compile the kernels for an H100 / H200 (sm_90) on a machine without a GPU, exactly as decode(), prefill() and store()
would launch them.

The public functions run on meta tensors with the launch replaced by a recorder; what they would have launched is then
compiled by `triton.compile` with the arguments specialised as Triton's launcher does (integers equal to 1 become
constants; pointers and integers divisible by 16 say so). Needs a process where TRITON_INTERPRET is not set.
"""

import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.tools.tensor_descriptor import TensorDescriptor

from paged_impl.kernels import decode as _decode  # noqa: F401  (loads the modules that are patched)
from paged_impl.kernels import runtime

POINTER = {
    torch.float32: "*fp32", torch.float16: "*fp16", torch.bfloat16: "*bf16",
    torch.int32: "*i32", torch.int64: "*i64", torch.int16: "*i16",
}  # fmt: skip
KERNELS = {
    "paged_impl.kernels.decode": ("decode_kernel",),
    "paged_impl.kernels.prefill": ("prefill_kernel",),
    "paged_impl.kernels.store": ("store_kernel",),
}
OPTIONS = {"num_warps", "num_stages", "launch_pdl", "maxnreg", "num_ctas"}


@dataclass(frozen=True)
class Launch:
    kernel: Any
    grid: tuple[int, ...]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass(frozen=True)
class Compiled:
    """What the compiler says of one launch. Copies: bytes of each cp.async instruction in the code. stack_bytes: of local
    memory a thread, where what is spilled goes.
    """

    name: str
    num_warps: int
    num_registers: int
    stack_bytes: int
    shared_bytes: int
    copy_bytes: tuple[int, ...]
    num_mma: int
    num_wgmma: int
    ptx: str


class _Recorder:
    def __init__(self, kernel: Any, launches: list[Launch]) -> None:
        self.kernel, self.launches = kernel, launches

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return lambda *args, **kwargs: self.launches.append(Launch(self.kernel, grid, args, kwargs))


@contextmanager
def recording(capability: int = 90, num_sms: int = 132) -> Iterator[list[Launch]]:
    """Within the context the public functions accept meta tensors and record their launches instead of making them."""
    import importlib

    launches: list[Launch] = []
    with mock.patch.multiple(
        runtime,
        require_runnable=lambda tensor: None,
        compute_capability=lambda device: capability,
        num_multiprocessors=lambda device: num_sms,
    ):
        patches = []
        for module_name, names in KERNELS.items():
            module = importlib.import_module(module_name)
            for name in names:
                patches.append(mock.patch.object(module, name, _Recorder(getattr(module, name), launches)))
        for patch in patches:
            patch.start()
        try:
            yield launches
        finally:
            for patch in patches:
                patch.stop()


def compile_launch(launch: Launch, capability: int = 90) -> Compiled:
    """Compile a recorded launch for the compute capability."""
    params = launch.kernel.params
    values = dict(zip((param.name for param in params), launch.args, strict=False))
    values |= {key: value for key, value in launch.kwargs.items() if key not in OPTIONS}
    signature: dict[str, str] = {}
    constants: dict[tuple[int, ...], Any] = {}
    attrs: dict[tuple[int, ...], list[list[Any]]] = {}
    for index, param in enumerate(params):
        value = values[param.name]
        varies = param.do_not_specialize
        if param.is_constexpr or value is None or (isinstance(value, int) and value == 1 and not varies):
            signature[param.name], constants[(index,)] = "constexpr", value
            continue
        if isinstance(value, TensorDescriptor):
            box = ",".join(str(size) for size in value.block_shape)
            signature[param.name], divisible = f"tensordesc<{POINTER[value.base.dtype][1:]}[{box}]>", False
        elif isinstance(value, torch.Tensor):
            signature[param.name], divisible = POINTER[value.dtype], True
        elif isinstance(value, int):
            signature[param.name], divisible = ("i32" if abs(value) < 2**31 else "i64"), value % 16 == 0
        else:
            signature[param.name], divisible = "fp32", False
        if divisible and not varies:
            attrs[(index,)] = [["tt.divisibility", 16]]
    options = {key: value for key, value in launch.kwargs.items() if key in OPTIONS}
    source = ASTSource(fn=launch.kernel, signature=signature, constexprs=constants, attrs=attrs)
    binary = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    return _read(binary)


def _read(binary: Any) -> Compiled:
    tools = Path(triton.__file__).parent / "backends/nvidia/bin"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(binary.asm["cubin"])
        command = [str(tools / "cuobjdump"), "-res-usage", file.name]
        usage = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    registers, stack = (int(re.findall(rf"{key}:(\d+)", usage)[0]) for key in ("REG", "STACK"))
    ptx = binary.asm["ptx"]
    copies = re.findall(r"cp\.async\.c[ag]\.shared\.global[^;]*?\], (0x[0-9a-f]+)", ptx)
    return Compiled(
        name=binary.metadata.name,
        num_warps=binary.metadata.num_warps,
        num_registers=registers,
        stack_bytes=stack,
        shared_bytes=binary.metadata.shared,
        copy_bytes=tuple(int(size, 16) for size in copies),
        num_mma=len(re.findall(r"\bmma\.sync", ptx)),
        num_wgmma=len(re.findall(r"wgmma\.mma_async", ptx)),
        ptx=ptx,
    )
