"""Where a kernel runs: on a GPU, or on a CPU in Triton's interpreter.

The interpreter is chosen by setting ``TRITON_INTERPRET=1`` before Triton is first imported; it cannot be switched on later.
Its bfloat16 arithmetic is wrong (it computes on the raw bit patterns), so in an interpreted run the kernels read
bfloat16 caches as 16-bit integers, widen the bits to float32 (exact for every pattern) and compute in float32: the
constexpr ``BF16_BITS`` is that switch.
"""

from functools import cache

import torch
import triton

# What an interpreted run takes for the number of multiprocessors: few, since every program costs milliseconds.
INTERPRETED_MULTIPROCESSORS = 4


def interpreted() -> bool:
    """Whether kernels run in Triton's interpreter in this process."""
    return bool(triton.knobs.runtime.interpret)


def reads_bf16_bits(dtype: torch.dtype) -> bool:
    """Whether a cache of this dtype must be widened by hand (see the module's text)."""
    return interpreted() and dtype == torch.bfloat16


def as_bits(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as 16-bit integers when the interpreter would misread it, else the tensor itself."""
    return tensor.view(torch.int16) if reads_bf16_bits(tensor.dtype) else tensor


def require_runnable(tensor: torch.Tensor) -> None:
    """Raise ValueError when no kernel can run on the tensor's device."""
    if tensor.is_cuda or interpreted():
        return
    raise ValueError(
        f"device={tensor.device}: Triton kernels need a CUDA tensor, or the interpreter: set TRITON_INTERPRET=1 before Triton "
        "is first imported"
    )


@cache
def num_multiprocessors(device: torch.device) -> int:
    """Multiprocessors of a CUDA device; for an interpreted run, INTERPRETED_MULTIPROCESSORS."""
    if device.type != "cuda":
        return INTERPRETED_MULTIPROCESSORS
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


@cache
def compute_capability(device: torch.device) -> int:
    """Compute capability of a CUDA device as major * 10 + minor; 0 for an interpreted run."""
    if device.type != "cuda":
        return 0
    major, minor = torch.cuda.get_device_capability(device)
    return major * 10 + minor
