"""How much memory a case needs, and how much there is."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from fuzz.bench.cases import AnyCase, Case
from fuzz.bench.inputs import num_sets

CPU_SETS = 2
"""On a CPU the cache is flushed instead of rotated out."""


def sets_for(case: AnyCase, device: str) -> int:
    """Sets of inputs that are made."""
    return CPU_SETS if device == "cpu" else num_sets(case)


def needed_bytes(case: AnyCase, device: str) -> int:
    """The sets, once more in a target's own layout, and the float64 answer; an implementation's scratch comes on top."""
    sets = 2 * sets_for(case, device) * case.set_bytes
    if not isinstance(case, Case):
        return sets + case.set_bytes
    longest = max(case.lengths())
    ratio = case.num_heads // case.num_kv_heads
    answer = 8 * (4 * longest * case.head_dim + 3 * min(case.query, 65) * ratio * longest)
    answer += 8 * case.batch * min(case.query, 65) * case.num_heads * case.head_dim * 2
    return sets + answer


def free_bytes(device: str) -> int:
    """Memory that can be had now."""
    if device != "cpu":
        return int(torch.cuda.mem_get_info()[0])
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        fields = dict(line.split(":") for line in meminfo.read_text().splitlines())
        return int(fields["MemAvailable"].split()[0]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def why_too_big(case: AnyCase, device: str) -> str | None:
    """One sentence with both numbers, or None if the case fits."""
    needed, free = needed_bytes(case, device), free_bytes(device)
    if needed <= free:
        return None
    return (
        f"case {case.text} needs {needed:,} bytes ({sets_for(case, device)} sets of {case.set_bytes:,} and working space), "
        f"{device} has {free:,} free: give fewer sequences or tokens"
    )
