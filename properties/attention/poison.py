"""What a slot holds that nobody may read. NaN and infinities show a leak through 0 x NaN; huge finite
values show a weight that is not exactly 0; an attractor is what a stale key of the same model looks like,
and takes the weight.
"""

import torch
from torch import Tensor


def fill(tensor: Tensor, poison: str, attractor: Tensor | None = None) -> None:
    """Fills `tensor` [..., G, D] in place. `attractor` [G, D]: the key that the queries are drawn to."""
    if poison == "attractor" and attractor is not None:
        tensor[:] = attractor.to(tensor.dtype)
        return
    values = {
        "zero": 0.0,
        "nan": torch.nan,
        "inf": torch.inf,
        "-inf": -torch.inf,
        "huge": torch.finfo(tensor.dtype).max,
        "attractor": 3.0,
    }
    tensor.fill_(values[poison])


def padding_ids(kind: str, *, width: int, num_blocks: int, seed: int) -> tuple[int, ...]:
    """Block-table entries that mean nothing: one per column."""
    if kind == "foreign":
        return tuple((seed + column) % num_blocks for column in range(width))
    constant = {"minus_one": -1, "beyond": num_blocks, "huge": 2**31 - 1, "zero": 0}[kind]
    return (constant,) * width
