"""Backends: what stores, reads and copies the tensors of a cache. Each is imported when it is asked for."""

from __future__ import annotations

import importlib
import importlib.util

import torch

from paged_impl.backends.interface import Backend, PoolShape

NAMES: dict[str, str] = {
    "triton": "paged_impl.backends.triton_backend:TritonBackend",
    "torch-gather": "paged_impl.backends.torch_gather:TorchGather",
    "flash-attn": "paged_impl.backends.flash_attn_backend:FlashAttention",
    "torch-varlen": "paged_impl.backends.torch_varlen:TorchVarlen",
}


def make_backend(name: str, device: torch.device) -> Backend:
    """The backend of that name; "auto" is Triton on a GPU that has it, plain torch elsewhere.

    Raises ValueError for an unknown name, or where the backend cannot run here; the message says what is missing.
    """
    if name == "auto":
        name = "triton" if device.type == "cuda" and importlib.util.find_spec("triton") else "torch-gather"
    if name not in NAMES:
        raise ValueError(f"backend={name!r}: known are 'auto', {', '.join(map(repr, NAMES))}, or a Backend of your own")
    module, _, cls = NAMES[name].partition(":")
    backend: Backend = getattr(importlib.import_module(module), cls)()
    return backend


__all__ = ["NAMES", "Backend", "PoolShape", "make_backend"]
