"""Every case of a campaign is handed out once, whatever is given back and however often it is interrupted."""

from __future__ import annotations

from random import Random

import msgspec
import pytest

from fuzz.seeds import case_seed
from fuzz.tally import Tally


@pytest.mark.parametrize("most", [1, 63, 64, 65, 1000])
def test_each_case_is_run_once(most: int) -> None:
    tally, random, run = Tally(), Random(most), []
    while (cases := tally.take(most)) is not None:
        done = random.randint(cases[0], cases[1])
        run += range(cases[0], done)
        tally.give_back(done, cases[1])
        if random.random() < 0.2:  # the campaign is resumed from its file
            tally = msgspec.json.decode(msgspec.json.encode(tally), type=Tally)

    assert sorted(run) == list(range(most))


def test_seeds_of_cases_differ_and_do_not_change() -> None:
    seeds = {case_seed(seed, target, index) for seed in range(3) for target in ("ours", "b") for index in range(200)}

    assert len(seeds) == 1200
    assert case_seed(1, "ours", 0) == 120033408218492449  # a campaign's cases are the same on every machine
    assert all(0 <= seed < 2**63 for seed in seeds)


@pytest.mark.parametrize(
    ("here", "there"),
    [
        ("kernels/mine.py:Target", "/builds/17/kernels/mine.py:Target"),
        ("nano-vllm:nano-vllm", "nano-vllm:/home/me/checkouts/f64d821"),
    ],
)
def test_a_target_in_another_folder_gets_the_same_cases(here: str, there: str) -> None:
    assert case_seed(1, here, 5) == case_seed(1, there, 5)
    assert case_seed(1, here, 5) != case_seed(1, "other.py:Target", 5)
