"""Time GPU work by CUDA-graph replay, and measure what the card can read.

Many calls are captured in one graph, over rotating inputs larger than the L2 cache; the time of a replay over the
number of calls is what a decode step would pay for one call, launch gaps between kernels included.
"""

from collections.abc import Callable, Sequence
from statistics import median

import torch

REPLAYS = 20
WARM_REPLAYS = 3


def microseconds(calls: Sequence[Callable[[], object]], min_calls: int = 8, replays: int = REPLAYS) -> float:
    """Median time of one call, in microseconds. `calls` are run in turn, repeated until there are at least min_calls in
    the graph."""
    sequence = [calls[index % len(calls)] for index in range(max(min_calls, len(calls)))]
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for call in calls:
            call()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in sequence:
            call()
    for _ in range(WARM_REPLAYS):
        graph.replay()
    events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(replays)]
    for start, stop in events:
        start.record()
        graph.replay()
        stop.record()
    torch.cuda.synchronize()
    return median(start.elapsed_time(stop) for start, stop in events) * 1e3 / len(sequence)


def microseconds_apart(calls: Sequence[Callable[[], object]], written: Sequence[torch.Tensor]) -> float:
    """Time of one call between two other kernels, as in a model: what it adds to a graph of small kernels.

    Kernels that overlap their own neighbours (programmatic dependent launch) gain nothing from it here.
    """
    scratch = [torch.empty_like(tensor) for tensor in written]
    # Not copy_: of a dense tensor it becomes a memcpy node.
    fillers = [lambda t=t, s=s: torch.mul(s, 1.0, out=t) for t, s in zip(scratch, written, strict=True)]
    both = [lambda call=call, filler=filler: (filler(), call()) for call, filler in zip(calls, fillers, strict=True)]
    return microseconds(both) - microseconds(fillers)


def read_ceiling_tb_s(num_bytes: int = 4 << 30) -> float:
    """Bytes read per second by a float32 sum over num_bytes, in TB/s: what a kernel that only reads can reach."""
    data = torch.ones(num_bytes // 4, dtype=torch.float32, device="cuda")
    out = torch.empty((), dtype=torch.float32, device="cuda")
    time_us = microseconds([lambda: torch.sum(data, dim=0, out=out)], min_calls=4)
    return num_bytes / time_us / 1e6


def copy_tb_s(num_bytes: int = 2 << 30) -> float:
    """Device-to-device copy by a kernel (not a memcpy node), counting bytes read and written, in TB/s."""
    source = torch.ones(num_bytes // 4, dtype=torch.float32, device="cuda")
    target = torch.empty_like(source)
    time_us = microseconds([lambda: torch.add(source, 1.0, out=target)], min_calls=4)
    return 2 * num_bytes / time_us / 1e6
