"""Compiles what a run on a GPU will need before it is judged, in several processes: the compiled kernels come back through
the compiler's own cache on disk.

A compilation is not a hang, so it must not happen under the time limit of a trace; and one process would spend most of
`pytest properties --device cuda` compiling (ATTENTION: 20,000 cases in eight minutes).
"""

import os
import subprocess
import sys
import time
from contextlib import suppress

from properties.lifeline import command_of_ours

BYTES_OF_A_PROCESS = 40 << 30
"""What one needs for high block ids in real memory, on a GPU: see buffers.py."""
MOST_SEEDS = 420
"""Of our kernels 400 traces need some 50 compilations, the next 400 three more."""
LIMIT_S = 120.0
"""What is not compiled by then is compiled when it is met."""


def warm(target_name: str, device: str, num_seeds: int) -> int:
    """Run the first traces of a target in parallel, whatever comes of them. Returns the number of processes.

    Only helps targets whose compiler keeps its results on disk, as Triton's does; harms none.
    """
    num_seeds = min(num_seeds, MOST_SEEDS)
    shares = max(1, min(_room(device), (os.cpu_count() or 1) - 1, num_seeds))
    command = command_of_ours(__name__, "main()", target_name, device, str(num_seeds), str(shares))
    workers = [
        subprocess.Popen([*command, str(share)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for share in range(shares)
    ]
    deadline = time.monotonic() + LIMIT_S
    try:
        for worker in workers:
            with suppress(subprocess.TimeoutExpired):
                worker.wait(max(0.0, deadline - time.monotonic()))
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    return shares


def _room(device: str) -> int:
    """Processes that a device has memory for, this one left out."""
    if device != "cuda":
        return 2
    import torch

    free, _ = torch.cuda.mem_get_info()
    return free // BYTES_OF_A_PROCESS


def run_share(target_name: str, device: str, num_seeds: int, shares: int, share: int) -> None:
    """Every `shares`-th trace, for its compilations alone: what it breaks is found again when it is judged."""
    import torch

    from properties.attention.budget import on_device
    from properties.drive import drive
    from properties.specs import spec_of
    from properties.targets import load

    torch.set_num_threads(1)
    target = on_device(load(target_name), device)
    for seed in range(share, num_seeds, shares):
        drive(spec_of(target.level), target.make, seed)


def main() -> None:
    """One process of `warm`: target, device, number of traces, of processes, and which of them this is."""
    name, where, *numbers = sys.argv[1:]
    run_share(name, where, *(int(number) for number in numbers))
