"""The kernels run interpreted on a CPU, compiled on a GPU; the same tests either way."""

from collections.abc import Iterator

import pytest
import torch
import triton


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tensors this small are slower on several threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def device() -> str:
    if triton.knobs.runtime.interpret:
        return "cpu"
    if torch.cuda.is_available():
        return "cuda"
    pytest.skip("no GPU, and TRITON_INTERPRET was not set before Triton was imported")
