"""Triton kernels for a paged KV cache: store, decode, prefill. One problem a file; each opens with its formula."""

from paged_impl.kernels.decode import Workspace, decode
from paged_impl.kernels.prefill import prefill
from paged_impl.kernels.store import store

__all__ = ["Workspace", "decode", "prefill", "store"]
