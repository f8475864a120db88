"""What makes tests alike each time they run: torch on one thread, and its random numbers from one seed."""

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def torch_alike() -> Iterator[None]:
    """Where torch is there. Tensors this small are slower on several threads."""
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(before)
