"""Compile what the rules choose for a set of shapes, for sm_90; print one JSON object. A process of its own: see sm90.py."""

import dataclasses
import json
import re
import sys
from collections.abc import Callable
from typing import Any

import sm90
import torch

from paged_impl.kernels import decode, prefill, store
from paged_impl.kernels.rules import PrefillRule

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
# (name, sequences, query length, query heads, KV heads, head dim, block size, dtype); contexts of 4096 tokens, "short" ones
# as long as their queries
DECODE = (
    ("one wave", 32, 1, 32, 8, 128, 16, BF16), ("few sequences", 8, 1, 32, 8, 128, 16, BF16),
    ("one page a tile", 32, 1, 32, 8, 128, 256, BF16), ("four small programs", 64, 1, 32, 8, 128, 16, BF16),
    ("odd page", 32, 1, 32, 8, 128, 24, BF16), ("multi-query", 64, 1, 71, 1, 64, 16, BF16),
    ("wide head", 64, 1, 16, 8, 256, 16, BF16), ("padded head", 64, 1, 32, 8, 96, 16, F16),
    ("small head", 32, 1, 8, 2, 16, 16, F16), ("multi-query, wide head", 32, 1, 71, 1, 256, 16, BF16),
    ("multi-query, head of 72", 32, 1, 48, 1, 72, 24, BF16), ("five queries a head", 32, 1, 10, 2, 80, 16, BF16),
    ("float32", 4, 1, 32, 8, 128, 16, F32), ("float32, odd page", 32, 1, 28, 4, 128, 24, F32),
    ("float32, multi-query", 32, 1, 71, 1, 64, 1, F32), ("float32, wide head", 32, 1, 8, 1, 256, 16, F32),
)  # fmt: skip
PREFILL = (
    ("long", 4, 4096, 32, 8, 128, 16, BF16), ("long, copy engine", 4, 4096, 32, 8, 128, 256, BF16),
    ("long, copy engine, padded head", 4, 4096, 32, 32, 72, 256, BF16),
    ("long, odd page", 4, 4096, 28, 4, 128, 24, F16), ("long, one page a tile", 4, 4096, 32, 8, 128, 64, BF16),
    ("long, padded head", 4, 4096, 32, 32, 96, 16, BF16), ("long, small head", 4, 4096, 16, 8, 64, 16, BF16),
    ("packed", 4, 16, 28, 4, 128, 16, BF16), ("wide head", 4, 2048, 16, 8, 256, 16, BF16),
    ("short", 4, 512, 32, 8, 128, 16, BF16), ("short, odd page", 4, 512, 32, 32, 96, 24, BF16),
    ("short, large page", 4, 512, 32, 8, 128, 256, BF16),
    ("smallest head", 4, 2048, 8, 2, 16, 16, F16), ("small head", 4, 2048, 8, 2, 32, 24, BF16),
    ("head of 72", 4, 4096, 16, 8, 72, 16, BF16), ("short, head of 72", 4, 512, 16, 8, 72, 16, F16),
    ("float32", 4, 64, 32, 8, 128, 16, F32), ("float32, odd page", 4, 16, 32, 8, 128, 24, F32),
)  # fmt: skip
# What is asked for beside: no rule looks at it, but other code is compiled. (kind, name above, options)
WINDOW, LSE, ONE_PASS = {"window": 1000}, {"return_lse": True}, {"num_splits": 1}
VARIANTS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    *(("decode", "one wave", options) for options in (WINDOW, LSE, WINDOW | LSE, {"num_splits": 7} | LSE)),
    *(("decode", "one wave", ONE_PASS | options) for options in ({}, LSE, WINDOW)),
    ("decode", "four small programs", WINDOW | LSE),
    *(("prefill", "long", options) for options in (WINDOW, LSE, WINDOW | LSE)),
    *(("prefill", "long, copy engine", options) for options in (LSE, WINDOW | LSE)),
    *(("prefill", name, WINDOW | LSE) for name in ("packed", "short", "short, large page", "head of 72")),
    ("decode", "five queries a head", WINDOW), ("decode", "float32, odd page", WINDOW | LSE),
    *(("decode", "float32, multi-query", options) for options in (ONE_PASS, LSE)),
)  # fmt: skip
OTHER_DEVICES = ((80, 108), (89, 58))  # A100, L4: capability and multiprocessors; compiled for, never run


def empty(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def launches(
    kind: str, seqs: int, query: int, heads: int, kv_heads: int, dim: int, block: int, dtype: torch.dtype,
    device: tuple[int, int] = (90, 132), context: int = 4096, **options: Any,
) -> list[sm90.Launch]:  # fmt: skip
    width = -(-context // block)
    cache = empty(64, block, kv_heads, dim, dtype=dtype)
    q = empty(seqs * query, heads, dim, dtype=dtype)
    with sm90.recording(*device) as recorded:
        if kind == "decode":
            decode(q, cache, cache, empty(seqs, width), empty(seqs), scale=0.1, check_values=False, **options)
        else:
            prefill(
                q, cache, cache, empty(seqs, width), empty(seqs + 1), empty(seqs),
                scale=0.1, max_query_len=query, check_values=False, **options,
            )  # fmt: skip
    return recorded


def store_launches() -> list[sm90.Launch]:
    """In the flash layout, and in vLLM's packed one."""
    new = empty(100, 8, 128, dtype=BF16)
    with sm90.recording() as recorded:
        for shapes in (((64, 16, 8, 128),) * 2, ((64, 8, 16, 16, 8), (64, 8, 128, 16))):
            store(new, new, *(empty(*shape, dtype=BF16) for shape in shapes), empty(100), check_values=False)
        new = empty(100, 8, 80, dtype=F32)
        store(
            new,
            new,
            empty(64, 8, 20, 16, 4, dtype=F32),
            empty(64, 8, 80, 16, dtype=F32),
            empty(100),
            check_values=False,
        )
    return recorded


def starved_launch() -> sm90.Launch:
    """A prefill whose threads have too few registers."""
    rule = PrefillRule(64, 64, 4, 3, pack=1, max_registers=104)
    return launches("prefill", *PREFILL[0][1:], rule=rule)[0]


def before_atomic(ptx: list[str]) -> list[str]:
    """Stores, barriers and fences in front of the first atomic, the nearest last; [] without an atomic."""
    kinds = ("st.global", "bar.sync", "atom.global.gpu.acq_rel", "atom.")
    seen = [next((kind for kind in kinds if kind in line), "") for line in ptx]
    atomics = [index for index, kind in enumerate(seen) if kind.startswith("atom")]
    return [kind for kind in seen[: atomics[0] + 1] if kind] if atomics else []


def named_launches() -> list[tuple[str, str, sm90.Launch]]:
    """(name, options, launch) of everything that is compiled for sm_90."""
    shapes = {(kind, name): shape for kind, rows in (("decode", DECODE), ("prefill", PREFILL)) for name, *shape in rows}
    jobs = [(f"store {index}", "", launch) for index, launch in enumerate(store_launches())]
    for kind, name, options in (*((kind, name, {}) for kind, name in shapes), *VARIANTS):
        shape = shapes[kind, name]
        context = shape[1] if name.startswith("short") else 4096
        told = ", ".join(f"{key}={value}" for key, value in options.items())
        jobs += [(f"{kind} {name}", told, launch) for launch in launches(kind, *shape, context=context, **options)]
    return jobs


def main(write: Callable[[str], object] = sys.stdout.write) -> None:
    jobs_90 = [(name, options, 90, launch) for name, options, launch in named_launches()]
    others = [
        (f"{kind} {name}", "", capability, launch)
        for capability, num_sms in OTHER_DEVICES
        for kind, (name, *shape) in (("decode", DECODE[0]), ("decode", DECODE[-1]), ("prefill", PREFILL[0]))
        for launch in launches(kind, *shape, device=(capability, num_sms))
    ]
    compiled = []
    for name, options, capability, launch in jobs_90 + others:
        fields = {"capability": capability} | dataclasses.asdict(sm90.compile_launch(launch, capability))
        ptx = fields.pop("ptx").splitlines()
        loads = [line for line in ptx if "ld.global" in line]
        fields["vector_loads"] = len([line for line in loads if ".v4.b32" in line])
        fields["narrow_loads"] = len([line for line in loads if re.search(r"\.[bus](8|16)\b", line)])
        fields["before_atomic"] = before_atomic(ptx)
        compiled.append({"shape": name, "options": options} | fields)
    starved = sm90.compile_launch(starved_launch())
    write(json.dumps({"shipped": compiled, "starved": {"stack_bytes": starved.stack_bytes}}))


if __name__ == "__main__":
    main()
