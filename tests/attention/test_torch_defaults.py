"""Adapters that set torch's process-wide defaults: theirs hold within their calls, ours everywhere else."""

from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
import torch

from properties.attention.spec import SPEC
from properties.attention.target import Batch, Output, Pool
from properties.attention.targets.plain import PlainTorch
from properties.cache.operations import CacheGeometry
from properties.cache.spec import SPEC as CACHE_SPEC
from properties.drive import drive
from properties.targets.cache_ours import OurCache
from properties.torch_defaults import theirs
from tests.attention.clean import reads_judged_clean


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    yield
    torch.set_default_device(None)
    torch.set_default_dtype(torch.float32)


def _defaults() -> tuple[str, torch.dtype]:
    return torch.get_default_device().type, torch.get_default_dtype()


class SetsThemOnce(PlainTorch):
    """In its constructor; counts the calls that found them so, and sets others in between."""

    seen = 0

    def __init__(self) -> None:
        torch.set_default_device("meta")
        torch.set_default_dtype(torch.float64)

    def store(self, pool: Pool, *arguments: Any) -> None:
        with torch.device("cpu"):
            super().store(pool, *arguments)

    def _read(self, pool: Pool, batch: Batch) -> Output:
        SetsThemOnce.seen += _defaults() in (("meta", torch.float64), ("meta", torch.float16))
        torch.set_default_dtype(torch.float16)
        with torch.device("cpu"):
            torch.set_default_dtype(torch.float32)
            answer = super()._read(pool, batch)
        torch.set_default_dtype(torch.float16)
        return answer


class SetsThemWhenOpened(OurCache):
    """A whole cache does so."""

    def open(self, config: CacheGeometry) -> None:  # type: ignore[override]
        super().open(config)
        torch.set_default_device("meta")

    def read(self, *arguments: Any) -> Any:
        assert _defaults()[0] == "meta"
        with torch.device("cpu"):
            return super().read(*arguments)

    def write(self, *arguments: Any) -> Any:
        with torch.device("cpu"):
            return super().write(*arguments)


def test_a_kernel_keeps_its_defaults_and_is_judged_with_ours() -> None:
    judged = reads_judged_clean(SPEC, SetsThemOnce, 12)

    assert _defaults() == ("cpu", torch.float32)
    assert SetsThemOnce.seen >= judged >= 20


def test_a_cache_too() -> None:
    assert reads_judged_clean(CACHE_SPEC, SetsThemWhenOpened, 4) >= 4


def test_another_target_has_ours() -> None:
    drive(SPEC, SetsThemOnce, 0)

    with theirs(PlainTorch()):
        assert _defaults() == ("cpu", torch.float32)
    with theirs(object.__new__(SetsThemOnce)):
        assert _defaults()[0] == "meta"
    assert _defaults() == ("cpu", torch.float32)


class CountsThreads(PlainTorch):
    """Notes with how many threads it is called."""

    seen: ClassVar[set[int]] = set()

    def _read(self, pool: Pool, batch: Batch) -> Output:
        CountsThreads.seen.add(torch.get_num_threads())
        return super()._read(pool, batch)


def test_small_tensors_are_judged_on_one_thread_and_the_others_are_given_back() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        _, verdict = drive(SPEC, CountsThreads, 1)
        assert (verdict.breaches, CountsThreads.seen, torch.get_num_threads()) == ([], {1}, 3)
    finally:
        torch.set_num_threads(before)
