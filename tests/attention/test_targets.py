"""The built-in attention targets: right where they run, a reason where they do not, ADAPTER where an adapter is wrong."""

import os
from collections.abc import Callable
from typing import ClassVar

import pytest
import torch
from msgspec.structs import replace

from properties.attention.budget import on_device
from properties.attention.capabilities import AttentionCapabilities
from properties.attention.judges import judge
from properties.attention.spec import SPEC
from properties.attention.target import Batch, Output, Pool
from properties.attention.targets.plain import PlainTorch
from properties.contract import AdapterError
from properties.drive import drive
from properties.targets import Unavailable, load
from properties.targets.support import stubs
from tests.attention.clean import reads_judged_clean
from tests.attention.test_findings import BATCH


@pytest.mark.parametrize(("name", "num_traces"), [("ours-gather", 60), ("torch-flex-attention", 4), ("ours-triton", 4)])
def test_a_target_that_runs_here_has_no_finding(name: str, num_traces: int) -> None:
    if name == "ours-triton" and os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("compiled kernels are judged on a GPU by: pytest properties --target ours-triton --device cuda")
    assert reads_judged_clean(SPEC, load(name).make, num_traces) >= 2 * num_traces


@pytest.mark.skipif(torch.cuda.is_available(), reason="here they may be available")
@pytest.mark.parametrize("name", ["flash-attn", "torch-varlen"])
def test_a_target_that_needs_a_gpu_says_so(name: str) -> None:
    with pytest.raises(Unavailable, match="runs on CUDA only, and torch sees no GPU here"):
        load(name).make()


def test_a_target_refuses_a_device_that_it_does_not_declare() -> None:
    with pytest.raises(Unavailable, match="torch-flex-attention runs on cpu, not on cuda"):
        on_device(load("torch-flex-attention"), "cuda").make()


class WrongShape(PlainTorch):
    """Forgets a head."""

    def decode(self, pool: Pool, batch: Batch) -> Output:
        return Output(super().decode(pool, batch).out[:, 1:])


class WrongType(PlainTorch):
    """Returns a bare tensor."""

    def decode(self, pool: Pool, batch: Batch) -> Output:
        return super().decode(pool, batch).out  # type: ignore[return-value]


class Misspelt(PlainTorch):
    """Calls a method that does not exist."""

    def decode(self, pool: Pool, batch: Batch) -> Output:
        return batch.run()  # type: ignore[attr-defined,no-any-return]


class Returns(PlainTorch):
    """Makes something else of its answer."""

    def __init__(self, change: Callable[[Output], tuple[object, object]]) -> None:
        self.change = change

    def decode(self, pool: Pool, batch: Batch) -> Output:
        return Output(*self.change(super().decode(pool, batch)))  # type: ignore[arg-type]


class OneOutput(PlainTorch):
    """Right: every call writes the same memory, and returns a view of it that lies across."""

    memory: ClassVar[dict[torch.dtype, torch.Tensor]] = {}

    def _read(self, pool: Pool, batch: Batch) -> Output:
        out, lse = super()._read(pool, batch)
        kept = self.memory.setdefault(out.dtype, torch.empty(2**16, dtype=out.dtype))
        view = kept[: out.numel()].view(out.shape[::-1]).permute(2, 1, 0)
        return Output(view.copy_(out), lse)


def test_one_output_for_all_calls_is_no_finding() -> None:
    """The answers of two calls are compared bit for bit: the first one must not be looked up in the target's memory."""
    promised = 0
    for seed in range(60):
        _, verdict = drive(SPEC, OneOutput, seed)
        assert verdict.breaches == [], verdict.breaches[0].message
        promised += verdict.state.judged["READ-3P"] + verdict.state.judged["READ-5P"]

    assert promised > 10


@pytest.mark.parametrize(
    ("adapter", "message"),
    [
        (lambda: Returns(lambda o: ("out", None)), "returned str as out"),
        (lambda: Returns(lambda o: (o.out.numpy(), None)), "returned ndarray as out"),
        (lambda: Returns(lambda o: (o.out.to("meta"), None)), "a tensor on meta, torch.strided, as out"),
        (lambda: Returns(lambda o: (o.out.to_sparse(), None)), "torch.sparse_coo, as out"),
        (lambda: Returns(lambda o: (o.out, "lse")), "returned str as lse"),
        (lambda: Returns(lambda o: (o.out, o.out[:, :, 0].to("meta"))), "on meta, torch.strided, as lse"),
        (lambda: Returns(lambda o: (o.out, o.out[:, :, 0].int())), r"an LSE \(2, 6\) torch.int32"),
        (WrongShape, r"returned out \(2, 5, 16\)"),
        (WrongType, "returned Tensor"),
        (Misspelt, "AttributeError.*no attribute 'run'"),
    ],
)
def test_a_mistake_in_an_adapter_is_no_finding(adapter: Callable[[], PlainTorch], message: str) -> None:
    with pytest.raises(AdapterError, match=message):
        judge(adapter(), BATCH)


def test_a_stub_that_is_called_is_no_finding() -> None:
    with stubs("a_kernel_that_is_not_here"):
        from a_kernel_that_is_not_here import attend

    class Stubbed(PlainTorch):
        def decode(self, *_: object, **__: object) -> object:
            return attend()

    with pytest.raises(AdapterError, match=r"a_kernel_that_is_not_here\.attend is a stub"):
        judge(Stubbed(), BATCH)


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ({"padding": ()}, r"padding=\(\): no case can be drawn from nothing"),
        ({"block_sizes": ()}, "leave it out for the default"),
        ({"store_layouts": ()}, "store_layouts"),
        ({"dtypes": "float32"}, r"give a tuple, such as \('float32',\)"),
        ({"dtypes": ("float8",)}, "dtypes names 'float8': known are float32, float16, bfloat16"),
        ({"promises": frozenset({"READ-1"})}, "READ-3P, READ-5P"),
        ({"head_sizes": (0,)}, "a number of head_sizes is 0: give a whole number from 1"),
        ({"max_context": -1}, "max_context is -1"),
        ({"max_rows": 1.5}, "max_rows is 1.5"),
        ({"kv_heads": 4}, r"kv_heads=4: give a tuple, such as \(4,\)"),
        ({"layouts": ("vllm",), "head_sizes": (17,)}, "packs 4 elements of float32"),
    ],
)
def test_a_declaration_that_allows_no_case_is_refused_where_it_is_written(
    declared: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        AttentionCapabilities(**declared)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "declared",
    [
        {"max_context": 1, "max_queries": 1, "max_rows": 1, "max_programs": 1},
        {"block_sizes": (16,), "kv_heads": (1,), "ratios": (1,), "head_sizes": (16,), "dtypes": ("bfloat16",)},
        {"padding": ("zero",), "withstands": (), "empty_rows": "refused"},
        {"block_sizes": (1024,), "max_context": 2, "window": True},
        {"layouts": ("hnd",), "store_layouts": ("flash",), "any_scale": False},
    ],
)
def test_a_narrow_declaration_is_no_finding(declared: dict[str, object]) -> None:
    class Narrow(PlainTorch):
        capabilities = replace(PlainTorch.capabilities, num_splits=False, **declared)

    for seed in range(8):
        _, verdict = drive(SPEC, Narrow, seed)
        assert (verdict.adapter, verdict.breaches, verdict.illegal) == (None, [], 0)
