"""The interpreter guard finds out-of-bounds lanes, foreign slots and integer overflow, and names the kernel's line."""

import inspect
import os

import pytest
import torch

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("kernels are compiled in this process, so there is no interpreter to guard", allow_module_level=True)

import triton
import triton.language as tl
from torch import Tensor
from triton.runtime import interpreter, jit
from triton.runtime.errors import InterpreterError
from triton.tools.tensor_descriptor import TensorDescriptor

from paged_ref.layouts import Layout
from properties.attention.buffers import Geometry, allocate
from properties.attention.guarding.guard import KernelFault, guarded, why_unavailable
from properties.attention.guarding.ownership import Rights, owner_of
from properties.attention.guarding.places import places_of
from properties.attention.guarding.protection import Protected


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


@triton.jit
def tuple_kernel(both, count, SIZE: tl.constexpr):
    lane = tl.arange(0, SIZE)
    tl.store(both[1][0] + lane, tl.load(both[0] + lane, mask=lane < count, other=0), mask=lane < count)


@triton.jit
def descriptor_kernel(source, target):
    target.store([0, 0], source.load([0, 0]))


@triton.jit
def pointer_kernel(pointers, target, count, SIZE: tl.constexpr):
    lane = tl.arange(0, SIZE)
    source = tl.load(pointers).to(tl.pointer_type(tl.float32))
    tl.store(target + lane, tl.load(source + lane, mask=lane < count, other=0), mask=lane < count)


@triton.jit
def address_kernel(address, target, count, SIZE: tl.constexpr):
    lane = tl.arange(0, SIZE)
    source = address.to(tl.pointer_type(tl.float32))
    tl.store(target + lane, tl.load(source + lane, mask=lane < count, other=0), mask=lane < count)


@triton.jit
def masked_products_kernel(source, factors, target, factor, count, SIZE: tl.constexpr):
    lane = tl.arange(0, SIZE)
    offset = tl.load(factors + lane) * factor  # the products
    tl.store(target + lane, tl.load(source + offset, mask=lane < count, other=0), mask=lane < count)


@triton.jit
def meant_kernel(numbers, factor, target):
    tl.store(target, tl.mul(tl.load(numbers), factor, sanitize_overflow=False))


def _line_of(kernel: object, comment: str) -> int:
    lines, start = inspect.getsourcelines(kernel.fn)  # type: ignore[attr-defined]
    return start + next(i for i, line in enumerate(lines) if comment in line)


def _fault(call: object) -> BaseException:
    with pytest.raises(InterpreterError) as caught:
        call()  # type: ignore[operator]
    assert caught.value.__cause__ is not None
    return caught.value.__cause__


def _protected(pool: Tensor, readable: list[int], writable: list[int]) -> Protected:
    """A pool of one dimension, as blocks of one token of one element."""
    places = places_of(pool.view(-1, 1), (0, 1))
    assert places is not None
    of_all, listed = (Rights(len(pool), 1, [owner_of("row 0", slots)]) for slots in (readable, writable))
    return Protected((("the pool", places),), of_all, listed)


def test_the_guard_works_with_the_installed_triton() -> None:
    assert why_unavailable() is None


@pytest.mark.parametrize(("owner", "name"), [(interpreter.GridExecutor, "_init_args_hst"), (jit, "_normalize_ty")])
def test_nothing_is_guarded_where_an_interpreter_lacks_what_is_used(
    owner: object, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(owner, name)

    assert why_unavailable() == f"this Triton's interpreter lacks {name}"
    with pytest.raises(RuntimeError, match=f"kernels cannot be guarded: .*{name}"), guarded():
        pass


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
    protected = _protected(pool, [*range(6)], [])

    with guarded((protected,)):
        copy_kernel[(1,)](pool, target, 6, 8, True, True)
        fault = _fault(lambda: copy_kernel[(1,)](pool, target, 7, 8, True, True))
        write = _fault(lambda: copy_kernel[(1,)](target, pool, 2, 8, True, True))

    assert "slots that no sequence owns" in str(fault)
    assert "the first in block 6, offset 0 (slot 6)" in str(fault)
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


def _part_of_a_buffer() -> tuple[Tensor, Tensor]:
    """Eight elements, and the buffer around them, in which an overrun stays within the process's own memory."""
    buffer = torch.arange(32.0)
    return buffer[16:24], buffer


def test_tensors_in_tuples_belong_to_the_launch() -> None:
    (source, _buffer), target = _part_of_a_buffer(), torch.zeros(16)

    with guarded():
        tuple_kernel[(1,)]((source, (target, 1)), 8, 16)
        fault = _fault(lambda: tuple_kernel[(1,)]((source, (target, 1)), 9, 16))
        named = _fault(lambda: tuple_kernel[(1,)](count=9, SIZE=16, both=(source, (target, 1))))

    assert target.tolist() == [*range(16, 24), *[0] * 8]
    for found in (fault, named):
        assert isinstance(found, KernelFault)
        assert "a load leaves every tensor of the launch in 1 active lane, the first 0 bytes behind" in str(found)
        assert "a tensor of 32 bytes" in str(found)


@pytest.mark.parametrize("wrapped", [False, True], ids=["plain", "reinterpreted"])
def test_the_tensor_below_a_descriptor_belongs_to_the_launch(wrapped: bool) -> None:
    (source, _buffer), target = _part_of_a_buffer(), torch.zeros(16)
    base = triton.reinterpret(source, tl.float32) if wrapped else source
    into = TensorDescriptor(target, [1, 16], [16, 1], [1, 16])

    with guarded() as watch:
        descriptor_kernel[(1,)](TensorDescriptor(base, [1, 8], [8, 1], [1, 16]), into)
        fault = _fault(lambda: descriptor_kernel[(1,)](TensorDescriptor(base, [1, 12], [12, 1], [1, 16]), into))

    assert target.tolist() == [*range(16, 24), *[0] * 8]
    assert watch.num_checks == 3
    assert "leaves every tensor of the launch in 4 active lanes" in str(fault)


def test_reinterpreted_tensors_belong_to_the_launch() -> None:
    source, target = torch.arange(18, dtype=torch.uint8), torch.zeros(5, dtype=torch.int32)
    words = triton.reinterpret(source, tl.int32)

    with guarded():
        copy_kernel[(1,)](words, triton.reinterpret(target, tl.int32), 4, 8, True, True)
        fault = _fault(lambda: copy_kernel[(1,)](words, target, 5, 8, True, True))

    assert target[:4].view(torch.uint8).tolist() == list(range(16))
    assert "in 1 active lane, the first 0 bytes partly behind a tensor of 18 bytes (uint8 [18])" in str(fault)


def test_the_tensors_behind_a_table_of_addresses_belong_to_the_launch() -> None:
    (source, _buffer), target = _part_of_a_buffer(), torch.zeros(16)
    pointers = torch.tensor([source.data_ptr(), 0, -1, 7])

    with guarded():
        pointer_kernel[(1,)](pointers, target, 8, 16)
        table = _fault(lambda: pointer_kernel[(1,)](pointers, target, 9, 16))
        address_kernel[(1,)](source.data_ptr(), target[8:], 8, 8)
        number = _fault(lambda: address_kernel[(1,)](source.data_ptr(), target, 9, 16))

    assert target.tolist() == [*range(16, 24)] * 2
    for found in (table, number):
        assert isinstance(found, KernelFault)
        assert "a load leaves every tensor of the launch in 1 active lane, the first 0 bytes behind" in str(found)


def test_an_address_within_a_tensor_gives_the_tensor_and_not_what_surrounds_it() -> None:
    (source, _buffer), target = _part_of_a_buffer(), torch.zeros(16)
    pointers = torch.tensor([source.data_ptr() + 8])

    with guarded():
        pointer_kernel[(1,)](pointers, target, 6, 16)
        fault = _fault(lambda: pointer_kernel[(1,)](pointers, target, 7, 16))

    assert target[:6].tolist() == [*range(18, 24)]
    assert "in 1 active lane" in str(fault)


def test_an_address_gives_the_whole_of_the_tensor_that_begins_there() -> None:
    (source, _buffer), target = _part_of_a_buffer(), torch.zeros(16)
    first_two, first_four = source[:2], source[:4]

    with guarded():
        pointer_kernel[(1,)](torch.tensor([first_two.data_ptr()]), target, 8, 16)

    assert target[:8].tolist() == [*range(16, 24)]
    assert first_four.data_ptr() == source.data_ptr()


def test_a_launch_does_not_know_what_an_earlier_one_was_told() -> None:
    (source, buffer), target = _part_of_a_buffer(), torch.zeros(32)
    pointers = torch.tensor([source.data_ptr()])

    with guarded():
        pointer_kernel[(1,)](pointers, target, 0, 8)  # told, but not used: no lane is active
        fault = _fault(lambda: copy_kernel[(1,)](buffer[:16], target, 17, 32, True, True))
        pointer_kernel[(1,)](pointers, target, 8, 8)
        again = _fault(lambda: copy_kernel[(1,)](buffer[:16], target, 17, 32, True, True))

    assert ["in 1 active lane" in str(found) for found in (fault, again)] == [True, True]


@pytest.mark.parametrize("by", ["hook", "grid"])
def test_a_launch_within_a_launch_is_guarded_by_itself(by: str) -> None:
    """A hook that clears a counter, or a grid that is computed: what is launched there has tensors of its own."""
    numbers, target, others = torch.arange(1, 9), torch.zeros(1, dtype=torch.int64), torch.zeros(4, dtype=torch.int64)

    def launch(*_: object, **__: object) -> tuple[int]:
        copy_kernel[(1,)](torch.ones_like(others), others, 4, 4, True, True)
        return (1,)

    try:
        with guarded():
            multiply_kernel.pre_run_hooks.extend([launch] if by == "hook" else [])
            multiply_kernel[launch if by == "grid" else (1,)](numbers, 3, target)
    finally:
        multiply_kernel.pre_run_hooks.clear()

    assert (target.tolist(), others.tolist()) == ([3], [1] * 4)


def test_memory_that_was_given_back_is_nobodys() -> None:
    source, target = torch.ones(2**16), torch.zeros(8)
    pointers = torch.tensor([source.data_ptr()])

    with guarded():
        pointer_kernel[(1,)](pointers, target, 8, 8)
        del source
        fault = _fault(lambda: pointer_kernel[(1,)](pointers, target, 8, 8))

    assert isinstance(fault, KernelFault)
    assert "in 8 active lanes" in str(fault)


def test_the_pool_is_known_whatever_pointer_reaches_it_and_slots_are_still_held_to() -> None:
    (pool, _buffer), target = _part_of_a_buffer(), torch.zeros(16)
    protected = _protected(pool, [*range(6)], [])
    pointers = torch.tensor([pool.data_ptr()])

    with guarded((protected,)):
        copy_kernel[(1,)](pool[:2], target, 6, 16, True, True)
        pointer_kernel[(1,)](pointers, target[6:], 6, 8)
        faults = [
            _fault(lambda: copy_kernel[(1,)](pool[:2], target, 7, 16, True, True)),
            _fault(lambda: pointer_kernel[(1,)](pointers, target, 7, 8)),
        ]
        behind = _fault(lambda: copy_kernel[(1,)](pool[6:], target, 3, 8, True, True))

    assert target.tolist() == [*[16, 17, 18, 19, 20, 21] * 2, 0, 0, 0, 0]
    assert ["slots that no sequence owns" in str(fault) for fault in faults] == [True, True]
    assert "leaves every tensor of the launch in 1 active lane, the first 0 bytes behind" in str(behind)


def test_an_access_that_begins_before_the_pool_is_held_to_its_slots_too() -> None:
    (pool, buffer), target = _part_of_a_buffer(), torch.zeros(32)
    protected = _protected(pool, [0, 1], [])

    with guarded((protected,)):
        copy_kernel[(1,)](buffer, target, 18, 32, True, True)
        fault = _fault(lambda: copy_kernel[(1,)](buffer, target, 19, 32, True, True))

    assert target[:18].tolist() == [*range(18)]
    assert "touches 1 element of the pool" in str(fault)
    assert "(slot 2)" in str(fault)


@pytest.mark.parametrize("unit", [torch.uint8, torch.int16, torch.float32, torch.int64])
def test_slots_may_be_moved_in_units_that_are_no_elements(unit: torch.dtype) -> None:
    pool, source = torch.zeros(8), torch.arange(8.0)
    protected = _protected(pool, [2, 3, 4, 5], [2, 3, 4, 5])
    count, units = 16 // unit.itemsize, pool.view(unit)
    first = units[8 // unit.itemsize :]

    with guarded((protected,)):
        copy_kernel[(1,)](source.view(unit), first, count, 32, True, True)
        behind = _fault(lambda: copy_kernel[(1,)](source.view(unit), first, count + 1, 32, True, True))
        before = _fault(lambda: copy_kernel[(1,)](source.view(unit), units, 1, 1, True, True))

    assert pool.tolist() == [0, 0, 0, 1, 2, 3, 0, 0]
    assert "touches 1 element of the pool that this call must not touch (slots that are not listed)" in str(behind)
    assert "(slot 6)" in str(behind)
    assert "(slot 0)" in str(before)


def test_a_unit_that_lies_half_in_a_foreign_slot_is_a_fault() -> None:
    pool, source = torch.zeros(8), torch.ones(8)
    protected = _protected(pool, [0, 1, 2], [0, 1, 2])
    pairs = (source.view(torch.int64), pool.view(torch.int64))

    with guarded((protected,)):
        copy_kernel[(1,)](*pairs, 1, 4, True, True)
        fault = _fault(lambda: copy_kernel[(1,)](*pairs, 2, 4, True, True))

    assert pool.tolist() == [1, 1, 0, 0, 0, 0, 0, 0]
    assert "touches 1 element of the pool that this call must not touch" in str(fault)
    assert "(slot 3)" in str(fault)


@pytest.mark.parametrize("form", ["separate", "interleaved", "layered"])
def test_the_canaries_around_a_pool_are_no_memory_of_a_launch(form: str) -> None:
    pool = allocate(Geometry(2, 4, 1, 4, torch.float32, Layout.FLASH), form, "cpu", 0).pool
    cache, target = pool.key_cache if form == "separate" else pool.value_cache, torch.zeros(64)
    end = (cache.shape[0] - 1) * cache.stride(0) + 16  # elements from the first of the cache to behind its last
    pointers = torch.tensor([cache.data_ptr() + 4 * (end - 1)])

    with guarded():
        copy_kernel[(1,)](cache[1], target, 16, 32, True, True)
        pointer_kernel[(1,)](pointers, target, 1, 2)
        faults = [
            _fault(lambda: copy_kernel[(1,)](cache, target, end + 1, 256, True, True)),
            _fault(lambda: pointer_kernel[(1,)](pointers, target, 2, 2)),
        ]

    assert ["a load leaves every tensor of the launch in 1 active lane" in str(fault) for fault in faults] == [True] * 2


def test_what_surrounds_a_view_is_foreign_and_the_message_says_what_to_do() -> None:
    (source, buffer), target = _part_of_a_buffer(), torch.zeros(16)

    with guarded():
        copy_kernel[(1,)](buffer, target, 9, 16, True, True)
        surrounding = _fault(lambda: copy_kernel[(1,)](source, target, 9, 16, True, True))
        outside = _fault(lambda: copy_kernel[(1,)](target[:5].clone(), target, 6, 16, True, True))

    assert "give the kernel the whole tensor" in str(surrounding)
    assert "whole tensor" not in str(outside)


def test_an_overflow_says_how_many_lanes_and_what_to_do() -> None:
    source, target = torch.arange(8.0), torch.zeros(4)
    factors = torch.tensor([1, 3, 2**31 - 1, 2**31 - 1], dtype=torch.int32)

    with guarded():
        masked_products_kernel[(1,)](source, factors.clamp(max=2), target, 2, 2, 4)
        fault = _fault(lambda: masked_products_kernel[(1,)](source, factors, target, 2, 2, 4))

    assert target.tolist() == [2, 4, 0, 0]
    assert isinstance(fault, KernelFault)
    assert fault.kind == "overflow"
    assert f"test_guard.py:{_line_of(masked_products_kernel, 'the products')}: int32 overflow" in str(fault)
    assert "in 2 of 4 lanes" in str(fault)
    assert "leave 'huge' out of `padding`" in str(fault)
    assert "tl.mul(..., sanitize_overflow=False)" in str(fault)


def test_an_overflow_that_the_kernel_says_is_meant_is_no_fault() -> None:
    numbers, target = torch.tensor([2**30 + 1], dtype=torch.int32), torch.zeros(1, dtype=torch.int32)

    with guarded():
        meant_kernel[(1,)](numbers, 4, target)
        fault = _fault(lambda: multiply_kernel[(1,)](numbers, 4, target))

    assert target.item() == 4
    assert "in 1 of 1 lane" in str(fault)


def test_the_interpreter_is_as_before_after_a_fault() -> None:
    from triton.runtime import interpreter

    before = {
        name: getattr(interpreter.InterpreterBuilder, name)
        for name in ("create_masked_load", "create_atomic_rmw", "create_assert")
    }
    options = interpreter.interpreter_builder.options
    with guarded():
        _fault(lambda: copy_kernel[(1,)](torch.ones(5), torch.zeros(5), 5, 8, False, True))

    assert {name: getattr(interpreter.InterpreterBuilder, name) for name in before} == before
    assert interpreter.interpreter_builder.options is options
