"""The kernels run interpreted on a CPU, compiled on a GPU; the same tests either way."""

import pytest
import torch
import triton


@pytest.fixture(scope="session")
def device() -> str:
    if triton.knobs.runtime.interpret:
        return "cpu"
    if torch.cuda.is_available():
        return "cuda"
    pytest.skip("no GPU, and TRITON_INTERPRET was not set before Triton was imported")
