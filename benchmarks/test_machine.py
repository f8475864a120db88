"""The Hypothesis machine: how much of its time goes into judging, against the same draws with empty rule bodies.

The draws depend on the model's state, so the machine cannot run without its bodies; their time is taken out instead.
`pytest benchmarks/test_machine.py` prints the share; a machine at half the speed of the bare draws has a share of 0.5.
"""

from time import perf_counter

from properties.machine import PROFILES, Tally, search
from properties.specs import spec_of
from properties.targets.ours import OurBlocks


def test_judging_costs_less_than_drawing(benchmark) -> None:
    tallies: list[Tally] = []

    def run() -> float:
        started = perf_counter()
        tallies.append(search(spec_of("blocks"), OurBlocks, PROFILES["pagefault-ci"]))
        return perf_counter() - started

    elapsed_s = benchmark.pedantic(run, rounds=1)
    tally = tallies[-1]
    benchmark.extra_info.update(
        operations=tally.steps, operations_per_s=tally.steps / elapsed_s, share_of_bodies=tally.body_s / elapsed_s
    )

    assert tally.steps > 3_000
    assert tally.failing == {}
    assert tally.body_s <= elapsed_s / 2, f"{tally.body_s:.2f} s of {elapsed_s:.2f} s went into the rules' bodies"
