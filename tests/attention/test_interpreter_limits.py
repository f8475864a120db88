"""What comes of Triton's interpreter, and not of a kernel, is told so; a ValueError of Triton is no refusal."""

import os
from collections.abc import Callable

import msgspec
import pytest
import torch
from torch import Tensor

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("kernels are compiled in this process, so nothing is interpreted", allow_module_level=True)

import triton
import triton.language as tl

from properties.attention.cases import StoreCase
from properties.attention.judges import judge
from properties.attention.target import Pool
from properties.attention.targets.plain import PlainTorch
from properties.contract import AdapterError

plainly_abs = tl.abs


@triton.autotune(configs=[triton.Config({"SIZE": 16}), triton.Config({"SIZE": 32})], key=["count"])
@triton.jit
def tuned_kernel(values, count, SIZE: tl.constexpr):
    lane = tl.arange(0, SIZE)
    tl.store(values + lane, tl.load(values + lane, mask=lane < count), mask=lane < count)


@triton.jit
def alias_kernel(values):
    tl.store(values, plainly_abs(tl.load(values)))


@triton.jit
def flag_kernel(values, flag):
    if flag:
        tl.store(values, tl.load(values))


@triton.jit
def shapes_kernel(values):
    tl.store(values + tl.arange(0, 4), tl.arange(0, 8))


class _Launches(PlainTorch):
    """Stores as it should once a kernel ran."""

    capabilities = msgspec.structs.replace(PlainTorch.capabilities, refusals=(ValueError,))

    def __init__(self, launch: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.launch = launch

    def store(self, pool: Pool, keys: Tensor, values: Tensor, slot_mapping: Tensor) -> None:
        self.launch(torch.zeros(16))
        super().store(pool, keys, values, slot_mapping)


CASE = StoreCase(slots=(1, 0), num_blocks=2, block_size=4)


@pytest.mark.parametrize(
    ("launch", "remedy"),
    [
        (lambda values: tuned_kernel[(1,)](values, 16), "kernel.configs = kernel.configs[:1]"),
        (alias_kernel[(1,)], "write tl.NAME in the kernel"),
        (lambda values: flag_kernel[(1,)](values, False), "pass an int"),
    ],
    ids=["autotune", "alias", "bool"],
)
def test_a_limit_of_the_interpreter_is_not_the_kernels_fault(launch: Callable[[Tensor], object], remedy: str) -> None:
    with pytest.raises(AdapterError) as caught:
        judge(_Launches(launch), CASE)

    assert remedy in caught.value.remedy
    assert "or run with --device cuda" in caught.value.remedy
    assert f"{__file__.rpartition('/')[2]}:" in caught.value.problem, "the line of the kernel, or of its launch"


def test_what_triton_raises_in_a_kernel_is_no_refusal_and_names_the_kernels_line() -> None:
    (finding,) = judge(_Launches(shapes_kernel[(1,)]), CASE).findings

    line = shapes_kernel.fn.__code__.co_firstlineno + 2
    assert finding.property == "CRASH-1"
    assert "plain-torch failed: ValueError: " in finding.message
    assert f"test_interpreter_limits.py:{line}" in finding.message


def test_what_the_adapter_itself_declines_is_a_refusal() -> None:
    def declines(values: Tensor) -> None:
        raise ValueError("blocks of 4 are not supported")

    (finding,) = judge(_Launches(declines), CASE).findings

    assert finding.message.endswith(
        "refused a case that it declares to accept: ValueError: blocks of 4 are not supported"
    )
