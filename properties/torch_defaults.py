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


_theirs: dict[type, Defaults] = {}
"""What the code of a target left behind last, where that is not ours. By its class: a trace makes a new adapter."""


def keep_ours(target: object) -> None:
    """Called where our own tensor code begins after the target was imported or made: remembers what that left behind."""
    torch = sys.modules.get("torch")
    if torch is None:
        return
    left, ours = _current(torch), Defaults("cpu", torch.float32)
    if left != ours:
        _theirs[type(target)] = left
        _set(torch, ours)


@contextmanager
def theirs(target: object) -> Iterator[None]:
    """Code of the target runs inside, with the defaults that it left behind last."""
    keep_ours(target)
    left = _theirs.pop(type(target), None)
    if left is not None:
        _set(sys.modules["torch"], left)
    try:
        yield
    finally:
        keep_ours(target)


def _current(torch: Any) -> Defaults:
    return Defaults(str(torch.get_default_device()), torch.get_default_dtype())


def _set(torch: Any, defaults: Defaults) -> None:
    torch.set_default_device(None if defaults.device == "cpu" else defaults.device)
    torch.set_default_dtype(defaults.dtype)
