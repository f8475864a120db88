# ruff: noqa: T201  (a script: it prints its table)
"""How long a batch takes under decode's schedule, in a model: where the numbers `wave` and `total` of rules.py come from.

    python benchmarks/schedule_model.py

Programs start in order as places free up, spend START_US (IDLE_US where they find no piece), and then share the memory:
together they read at most `tiles_per_us`, one alone at most `max_tiles_per_us`. The constants are fits to an H200 (NOTES.md);
the model ranks schedules, it does not predict a time to better than 5 %.
"""

import random
from dataclasses import dataclass

START_US, IDLE_US = 3.0, 1.3
PATTERN = (0.1, 0.4, 0.5, 1.0, 0.2)


@dataclass(frozen=True)
class Machine:
    """places: programs that fit at once; tiles are those of the rule, of one KV head."""

    places: int
    tile_tokens: int
    tiles_per_us: float
    max_tiles_per_us: float


TWO_A_MULTIPROCESSOR = Machine(264, 64, 128.0, 1.0)
FOUR_A_MULTIPROCESSOR = Machine(528, 32, 256.0, 1.6)


def pieces(tiles: list[int], wave_pieces: int, num_pieces: int, min_tiles: int) -> list[int]:
    """plan() of decode.py in plain Python: pieces of each sequence."""
    num_seqs, total, longest = len(tiles), sum(tiles), max(tiles)
    in_wave = wave_pieces // num_seqs
    even = longest * num_seqs * 10 <= total * 11 and in_wave * num_seqs * 10 >= wave_pieces * 8
    in_wave = min(in_wave, max(min(16, longest), longest // min_tiles))
    average = max(-(-total // wave_pieces), min_tiles)
    limits = [average * (32 + slack) // 32 for slack in (3, 8)]
    fitting = [limit for limit in limits if sum(max(1, -(-count // limit)) for count in tiles) <= wave_pieces]
    share = fitting[0] if fitting and 2 * num_seqs <= wave_pieces else max(-(-total // num_pieces), min_tiles)
    return [max(1, in_wave if even else -(-count // share)) for count in tiles]


def time_us(
    lens: list[int], machine: Machine, wave_pieces: int, num_pieces: int, pairs: int = 8, min_tiles: int = 4
) -> float:
    """Time until the last program ends."""
    tiles = [-(-length // machine.tile_tokens) for length in lens]
    cut = pieces(tiles, wave_pieces, num_pieces, min_tiles)
    work = [
        (START_US, (index + 1) * count // number - index * count // number)
        for count, number in zip(tiles, cut, strict=True)
        for index in range(number)
        for _ in range(pairs)
    ]
    work += [(IDLE_US, 0)] * ((len(lens) + num_pieces) * pairs - len(work))
    now, waiting, running = 0.0, work[::-1], []
    while waiting or running:
        while waiting and len(running) < machine.places:
            running.append(list(waiting.pop()))
        reading = [program for program in running if program[0] <= 1e-9]
        rate = min(machine.max_tiles_per_us, machine.tiles_per_us / len(reading)) if reading else 1.0
        step = min(program[0] if program[0] > 1e-9 else program[1] / rate for program in running)
        now += step
        for program in running:
            if program[0] > 1e-9:
                program[0] -= step
            else:
                program[1] -= rate * step
        running = [program for program in running if program[0] > 1e-9 or program[1] > 1e-9]
    return now


def main() -> None:
    random.seed(0)
    small = {
        "ragged 16 x 8192": [int(8192 * PATTERN[i % 5]) for i in range(16)],
        "ragged 32 x 8192": [int(8192 * PATTERN[i % 5]) for i in range(32)],
        "one of 65536, 7 of 512": [65536] + [512] * 7,
        "24 of 100 to 16000": [random.randint(100, 16000) for _ in range(24)],
        "12 of 100 to 30000": [random.randint(100, 30000) for _ in range(12)],
        "32 x 4096": [4096] * 32, "4 x 8192": [8192] * 4, "20 x 4096": [4096] * 20,
    }  # fmt: skip
    large = {
        "ragged 64 x 8192": [int(8192 * PATTERN[i % 5]) for i in range(64)],
        "64 x 2048": [2048] * 64, "40 x 4096": [4096] * 40,
        "64 of 100 to 8000": [random.randint(100, 8000) for _ in range(64)],
        "one of 65536, 63 of 512": [65536] + [512] * 63,
    }  # fmt: skip
    for machine, wave, batches, totals in (
        (TWO_A_MULTIPROCESSOR, 33, small, (2, 3, 4, 6, 12)), (FOUR_A_MULTIPROCESSOR, 66, large, (4, 6, 8, 12)),
    ):  # fmt: skip
        for name, lens in batches.items():
            times = [f"total {total}: {time_us(lens, machine, wave, 132 * total // 8):6.1f}" for total in totals]
            print(f"{name:24s}", "  ".join(times))


if __name__ == "__main__":
    main()
