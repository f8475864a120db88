"""Outputs of our kernels under Triton's interpreter, recorded, so that compiled kernels can be compared with them where
no interpreter runs (ATTENTION: Triton 3.6's does not run beside NumPy 2.5).

    TRITON_INTERPRET=1 python -m tests.kernels.recorded      # writes recorded.npz anew, after a change of a kernel's arithmetic

Cases follow from their seeds; the recording holds a digest of each case's inputs, so that another machine's random numbers
are told apart from another answer.
"""

import hashlib
import json
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from msgspec.structs import replace

from properties.attention.cases import ReadCase
from properties.attention.generate import AttentionMaker, choose_geometry
from properties.attention.named import BLOCK_SIZES, SHAPES, named_case
from properties.attention.reading import Judge
from properties.attention.target import Output
from properties.attention.targets.ours_triton import OurTriton
from properties.drive import below_of

FILE = Path(__file__).with_name("recorded.npz")
NUM_GENERATED = 60
MAX_QUERIES = 4
"""Of a row in a prefill: an output row is as large as a query."""
OPERATIONS = frozenset({"decode", "prefill"})


@dataclass(frozen=True)
class Recorded:
    """One output; `digest` belongs to the inputs that gave it."""

    out_THD: torch.Tensor
    lse_TH: torch.Tensor
    digest: str


def recorded_cases() -> dict[str, ReadCase]:
    """Every case by name: the shapes of real models in two dtypes, and generated ones of the geometries compiled on a GPU."""
    named = {
        f"{model}-{block_size}-{dtype}": named_case(model, block_size, dtype)
        for model, block_size, dtype in product(SHAPES, BLOCK_SIZES, ("float16", "bfloat16"))
    }
    return named | {f"generated-{seed}": _generated(seed) for seed in range(NUM_GENERATED)}


def _generated(seed: int) -> ReadCase:
    capabilities = replace(OurTriton.capabilities_on_cuda, max_context=120, max_queries=MAX_QUERIES, max_rows=3)
    below = below_of(seed)
    maker = AttentionMaker(below, choose_geometry(below, capabilities, OPERATIONS), capabilities, OPERATIONS)
    case = maker.decode() if seed % 3 else maker.prefill()
    return replace(case, variation="none", num_splits=case.num_splits or 1 + seed % 4 if seed % 3 else None)


def answer(case: ReadCase, device: str) -> tuple[Judge, Output, str]:
    """(judge of the case, what our kernels give for it, digest of its inputs)."""
    judge = Judge(OurTriton(), case, device)
    reading = judge.read(case, judge.contents)
    assert reading.output is not None, reading.fault
    assert reading.output.lse is not None
    return judge, reading.output, _digest(judge)


def _digest(judge: Judge) -> str:
    digest = hashlib.sha256()
    for content in judge.contents.values():
        for tensor in (content.q, content.k, content.v):
            digest.update(tensor.contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def read_recording() -> dict[str, Recorded]:
    """The recording, by case."""
    with np.load(FILE) as file:
        header = json.loads(str(file["header"]))
        return {
            name: Recorded(_tensor(file[f"{name}/out"], dtype), torch.from_numpy(file[f"{name}/lse"]), digest)
            for name, (digest, dtype) in header.items()
        }


def _tensor(bits: np.ndarray[Any, Any], dtype: str) -> torch.Tensor:
    return torch.from_numpy(bits).view(getattr(torch, dtype))


def record() -> None:
    """Run every case interpreted, and write the file."""
    arrays, header = {}, {}
    for name, case in recorded_cases().items():
        _, output, digest = answer(case, "cpu")
        bits = torch.int32 if output.out.dtype == torch.float32 else torch.int16  # NumPy has no bfloat16
        assert output.lse is not None
        arrays[f"{name}/out"], arrays[f"{name}/lse"] = (
            output.out.contiguous().view(bits).numpy(),
            output.lse.float().numpy(),
        )
        header[name] = (digest, str(output.out.dtype).removeprefix("torch."))
    np.savez_compressed(FILE, header=np.array(json.dumps(header)), **arrays)


if __name__ == "__main__":
    torch.set_num_threads(1)
    record()
