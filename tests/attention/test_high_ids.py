"""Pools that reach beyond 2**31 elements are address space, not memory: a process that holds one can still be forked."""

import os

import pytest
import torch

from properties.attention.buffers import _high_bytes


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
def test_a_process_with_a_high_pool_can_be_forked(dtype: torch.dtype) -> None:
    buffer = _high_bytes(dtype.itemsize, "cpu").view(dtype)
    buffer[-1] = 1

    pid = os.fork()
    if pid == 0:
        os._exit(0 if buffer[-1] == 1 else 1)

    assert os.waitpid(pid, 0)[1] == 0
