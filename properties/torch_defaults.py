"""torch's process-wide defaults: an adapter may set them (`torch.set_default_device("cuda")`, as tests of kernels do), and
what it sets holds for its own calls alone. Ours are the CPU and float32. Does not import torch.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple


class Defaults(NamedTuple):
    """device: its text; "cpu" where none is set. dtype: a torch.dtype."""

    device: str
    dtype: Any


_theirs: list[Defaults] = []  # at most one: what target code left behind, where that is not ours


def keep_ours() -> None:
    """Called where our own tensor code begins after target code (an import, a constructor): remembers what that left."""
    torch = sys.modules.get("torch")
    if torch is None:
        return
    left, ours = _current(torch), Defaults("cpu", torch.float32)
    if left != ours:
        _theirs[:] = [left]
        _set(torch, ours)


@contextmanager
def theirs() -> Iterator[None]:
    """Target code runs inside, with the defaults that it left behind last."""
    keep_ours()
    if _theirs:
        _set(sys.modules["torch"], _theirs.pop())
    try:
        yield
    finally:
        keep_ours()


def _current(torch: Any) -> Defaults:
    return Defaults(str(torch.get_default_device()), torch.get_default_dtype())


def _set(torch: Any, defaults: Defaults) -> None:
    if defaults != _current(torch):
        torch.set_default_device(None if defaults.device == "cpu" else defaults.device)
        torch.set_default_dtype(defaults.dtype)
