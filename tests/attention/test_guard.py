"""The interpreter guard finds out-of-bounds lanes, foreign slots and integer overflow, and names the kernel's line."""

import inspect
import os

import pytest
import torch

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("kernels are compiled in this process, so there is no interpreter to guard", allow_module_level=True)

import triton
import triton.language as tl
from triton.runtime.errors import InterpreterError

from properties.attention.guard import KernelFault, Protected, element_addresses, guarded, merged, why_unavailable


@triton.jit
def copy_kernel(source, target, count, SIZE: tl.constexpr, MASK_LOAD: tl.constexpr, MASK_STORE: tl.constexpr):
    lane = tl.arange(0, SIZE)
    if MASK_LOAD:  # noqa: SIM108
        value = tl.load(source + lane, mask=lane < count, other=0)
    else:
        value = tl.load(source + lane)  # the unmasked load
    if MASK_STORE:
        tl.store(target + lane, value, mask=lane < count)
    else:
        tl.store(target + lane, value)  # the unmasked store


@triton.jit
def multiply_kernel(numbers, factor, target):
    tl.store(target, tl.load(numbers) * factor)  # the product


@triton.jit
def count_kernel(counter, offset):
    tl.atomic_add(counter + offset, 1)  # the atomic


def _line_of(kernel: object, comment: str) -> int:
    lines, start = inspect.getsourcelines(kernel.fn)  # type: ignore[attr-defined]
    return start + next(i for i, line in enumerate(lines) if comment in line)


def _fault(call: object) -> BaseException:
    with pytest.raises(InterpreterError) as caught:
        call()  # type: ignore[operator]
    assert caught.value.__cause__ is not None
    return caught.value.__cause__


def test_the_guard_works_with_the_installed_triton() -> None:
    assert why_unavailable() is None


@pytest.mark.parametrize(
    ("mask_load", "mask_store", "kind", "comment"),
    [(False, True, "load", "the unmasked load"), (True, False, "store", "the unmasked store")],
)
def test_a_lane_outside_every_tensor_is_a_fault(mask_load: bool, mask_store: bool, kind: str, comment: str) -> None:
    source, target = torch.ones(5), torch.zeros(5)

    with guarded():
        fault = _fault(lambda: copy_kernel[(1,)](source, target, 5, 8, mask_load, mask_store))

    assert isinstance(fault, KernelFault)
    assert fault.kind == kind
    assert f"test_guard.py:{_line_of(copy_kernel, comment)}" in str(fault)
    assert "3 active lanes" in str(fault)


def test_masked_lanes_may_point_anywhere() -> None:
    source, target = torch.ones(5), torch.zeros(5)

    with guarded() as watch:
        copy_kernel[(1,)](source, target, 5, 8, True, True)

    assert torch.equal(source, target)
    assert watch.num_checks == 2


def test_a_slot_that_is_not_allowed_is_a_fault_even_inside_the_tensor() -> None:
    pool, target = torch.ones(8), torch.zeros(8)
    owned = torch.tensor([True] * 6 + [False] * 2)
    nothing = element_addresses(pool, torch.zeros(8, dtype=torch.bool))
    protected = Protected(pool.data_ptr(), pool.data_ptr() + 32, element_addresses(pool, owned), nothing)

    with guarded((protected,)):
        copy_kernel[(1,)](pool, target, 6, 8, True, True)
        fault = _fault(lambda: copy_kernel[(1,)](pool, target, 7, 8, True, True))
        write = _fault(lambda: copy_kernel[(1,)](target, pool, 2, 8, True, True))

    assert "slots that no sequence owns" in str(fault)
    assert "byte 24" in str(fault)
    assert isinstance(write, KernelFault)
    assert write.kind == "store"


def test_integer_overflow_is_an_error_inside_the_guard_only() -> None:
    numbers, target = torch.tensor([2**20], dtype=torch.int32), torch.zeros(1, dtype=torch.int32)

    multiply_kernel[(1,)](numbers, 2**20, target)
    with guarded():
        fault = _fault(lambda: multiply_kernel[(1,)](numbers, 2**20, target))

    assert "int32 overflow" in str(fault)


def test_atomics_are_guarded() -> None:
    counter = torch.zeros(1, dtype=torch.int32)

    with guarded():
        count_kernel[(1,)](counter, 0)
        fault = _fault(lambda: count_kernel[(1,)](counter, 1))

    assert counter.item() == 1
    assert f"test_guard.py:{_line_of(count_kernel, 'the atomic')}" in str(fault)


def test_the_interpreter_is_as_before_after_a_fault() -> None:
    from triton.runtime import interpreter

    before = {
        name: getattr(interpreter.InterpreterBuilder, name) for name in ("create_masked_load", "create_atomic_rmw")
    }
    options = interpreter.interpreter_builder.options
    with guarded():
        _fault(lambda: copy_kernel[(1,)](torch.ones(5), torch.zeros(5), 5, 8, False, True))

    assert {name: getattr(interpreter.InterpreterBuilder, name) for name in before} == before
    assert interpreter.interpreter_builder.options is options


def test_addresses_follow_the_strides() -> None:
    tensor = torch.zeros(4, 6, dtype=torch.float16)[:, ::2]
    chosen = torch.zeros(4, 3, dtype=torch.bool)
    chosen[1, 2] = chosen[3, 0] = True

    addresses = element_addresses(tensor, chosen) - tensor.data_ptr()

    assert addresses.tolist() == [(6 + 4) * 2, 18 * 2]
    assert merged(addresses[1:], addresses[:1]).tolist() == addresses.tolist()
