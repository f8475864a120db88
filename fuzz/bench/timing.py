"""Time calls, and measure what the machine itself can do: read, copy, multiply.

On a GPU many calls are captured in one CUDA graph, over rotating inputs larger than the L2 cache; the time of a replay over
the number of calls is what a decode step would pay for one call, launch gaps between kernels included. A call that cannot
be captured is timed between two events, one after the other; on a CPU by the clock, with the cache flushed before.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import torch

Call = Callable[[], object]

REPLAYS = 20
WARM_REPLAYS = 3
EVENT_CALLS = 30
CPU_FLUSH_BYTES = 128 << 20
"""Larger than the part of the last-level cache that one process of a server CPU can use."""
CPU_BUDGET_S = 0.4
CPU_LEAST_CALLS, CPU_MOST_CALLS = 3, 30


@dataclass(frozen=True)
class Recording:
    """Calls captured in a CUDA graph, and what the last of them returned: a replay writes it anew.

    That is the first of the calls that were given. Nothing runs behind it, so that calls that share an output leave its own.
    """

    graph: torch.cuda.CUDAGraph
    num_calls: int
    result: object


def record(calls: Sequence[Call], min_calls: int = 8) -> Recording:
    """Captures `calls` in turn, repeated until there are at least min_calls, so that the first of them comes last.

    Raises what a call raises in a capture.
    """
    num_calls = max(min_calls, len(calls))
    sequence = [calls[index % len(calls)] for index in range(1 - num_calls, 1)]
    stream: torch.cuda.Stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for call in calls:
            call()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in sequence[:-1]:
            call()
        result = sequence[-1]()
    return Recording(graph, num_calls, result)


def replayed_us(recording: Recording, replays: int = REPLAYS) -> float:
    """Median time of one call of a recording, in microseconds."""
    for _ in range(WARM_REPLAYS):
        recording.graph.replay()
    events = [(_event(), _event()) for _ in range(replays)]
    for start, stop in events:
        start.record()
        recording.graph.replay()
        stop.record()
    torch.cuda.synchronize()
    return float(median(start.elapsed_time(stop) for start, stop in events)) * 1e3 / recording.num_calls


def microseconds(calls: Sequence[Call], min_calls: int = 8, replays: int = REPLAYS) -> float:
    """Median time of one call by graph replay, in microseconds."""
    return replayed_us(record(calls, min_calls), replays)


def microseconds_apart(calls: Sequence[Call], written: Sequence[torch.Tensor]) -> float:
    """Time of one call between two other kernels, as in a model: what it adds to a graph of small kernels.

    Kernels that overlap their own neighbours (programmatic dependent launch) gain nothing from it here.
    """
    scratch = [torch.empty_like(tensor) for tensor in written]

    def filler(source: torch.Tensor, out: torch.Tensor) -> Call:
        return lambda: torch.mul(source, 1.0, out=out)  # not copy_: of a dense tensor it becomes a memcpy node

    def both(call: Call, before: Call) -> Call:
        return lambda: (before(), call())

    fillers = [filler(s, t) for t, s in zip(scratch, written, strict=True)]
    return microseconds([both(*pair) for pair in zip(calls, fillers, strict=True)]) - microseconds(fillers)


def events_us(calls: Sequence[Call], num_calls: int = EVENT_CALLS) -> float:
    """Median time of one call between two events, in microseconds: it includes what the host does in between."""
    times = []
    for index in range(num_calls + WARM_REPLAYS):
        start, stop = _event(), _event()
        start.record()
        calls[index % len(calls)]()
        stop.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(stop) * 1e3)
    return float(median(times[WARM_REPLAYS:]))


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def clock_us(calls: Sequence[Call], flush: torch.Tensor | None = None) -> float:
    """Shortest time of one call on a CPU, in microseconds, each after the cache was filled with other data.

    Not the median: what makes a call longer here is other work on the machine.
    """
    times: list[float] = []
    spent_s = 0.0
    while len(times) < CPU_LEAST_CALLS or (spent_s < CPU_BUDGET_S and len(times) < CPU_MOST_CALLS):
        if flush is not None:
            flush.add_(1.0)
        start = time.perf_counter()
        calls[len(times) % len(calls)]()
        times.append((time.perf_counter() - start) * 1e6)
        spent_s += times[-1] / 1e6
    return min(times)


def flush_buffer() -> torch.Tensor:
    """What `clock_us` fills the cache with."""
    return torch.zeros(CPU_FLUSH_BYTES // 4, dtype=torch.float32)


def _us(call: Call, device: str) -> float:
    call()
    return clock_us([call]) if device == "cpu" else microseconds([call], min_calls=4)


def read_ceiling_tb_s(num_bytes: int = 4 << 30, device: str = "cuda") -> float:
    """Bytes read per second by a float32 sum over num_bytes, in TB/s: what a kernel that only reads can reach."""
    data = torch.ones(num_bytes // 4, dtype=torch.float32, device=device)
    out = torch.empty((), dtype=torch.float32, device=device)
    return num_bytes / _us(lambda: torch.sum(data, dim=0, out=out), device) / 1e6


def copy_tb_s(num_bytes: int = 2 << 30, device: str = "cuda") -> float:
    """Device-to-device copy by a kernel (not a memcpy node), counting bytes read and written, in TB/s."""
    source = torch.ones(num_bytes // 4, dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    return 2 * num_bytes / _us(lambda: torch.add(source, 1.0, out=target), device) / 1e6


def product_tflops(dtype: torch.dtype, size: int = 8192, device: str = "cuda") -> float:
    """Speed of a square matrix product of that size, in TFLOP/s."""
    factor = torch.ones(size, size, dtype=dtype, device=device)
    out = torch.empty_like(factor)
    return 2 * size**3 / _us(lambda: torch.mm(factor, factor, out=out), device) / 1e6
