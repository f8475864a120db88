"""Recorded workloads: hits counted from the file, faults found at scale, files that are wrong."""

from __future__ import annotations

import gzip
import json
import os
import random
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest
from typer.testing import CliRunner

from fuzz.cli import app, main
from fuzz.faults import all_faults
from fuzz.trace_file import Request, expected_hits, prompt_tokens, read_requests
from fuzz.workload import run_blocks
from fuzz.workload_engine import run_engine
from fuzz.workload_pool import WorkloadResult
from fuzz.workload_report import in_words
from paged_impl.block_manager import BlockManager
from paged_impl.scheduler import ScheduledStep, Scheduler
from properties.contract import UsageError
from properties.targets.engine_ours import OurEngine
from properties.targets.ours import OurBlocks


def quiet(result: WorkloadResult) -> None:
    """No progress."""


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """120 requests of conversations that go on: each prompt is an earlier one, cut and extended, in ids of 512 tokens."""
    draw = random.Random(7)
    prompts: list[list[int]] = [[0]]
    lines = []
    for number in range(120):
        base = draw.choice(prompts)
        fresh = list(range(1000 + 10 * number, 1000 + 10 * number + draw.randint(1, 3)))
        ids = base[: draw.randint(1, len(base))] + fresh
        prompts.append(ids)
        length = 512 * (len(ids) - 1) + draw.randint(1, 512)
        lines.append(
            {"timestamp": number, "input_length": length, "output_length": draw.randint(0, 40), "hash_ids": ids}
        )
    path = tmp_path_factory.mktemp("workload") / "trace.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)) + "\n")
    return path


def of(path: Path) -> Callable[[], Iterator[Request]]:
    return lambda: read_requests(str(path))


@pytest.mark.parametrize("block_size", [16, 64, 512])
def test_hits_equal_the_count_from_the_file(trace: Path, block_size: int) -> None:
    result = run_blocks("ours", OurBlocks(), of(trace), block_size, None, 8, quiet)

    assert not result.breaches
    assert result.num_requests == 120
    assert result.hit_tokens == result.expected_hit_tokens
    assert result.hit_tokens > 0.2 * result.prompt_tokens
    assert result.num_pool_checks > 0


def test_the_count_from_the_file_agrees_with_tokens_compared_one_by_one(trace: Path) -> None:
    published: set[tuple[int, ...]] = set()
    for request, expected in zip(read_requests(str(trace)), expected_hits(of(trace)(), 64), strict=True):
        tokens = tuple(prompt_tokens(request))
        hit = 0
        while hit + 64 < len(tokens) and tokens[: hit + 64] in published:
            hit += 64
        published |= {tokens[:stop] for stop in range(64, len(tokens) + 1, 64)}

        assert hit == expected


def test_a_small_pool_evicts_refuses_and_stays_right(trace: Path) -> None:
    result = run_blocks("ours", OurBlocks(), of(trace), 16, 700, 8, quiet)

    assert not result.breaches
    assert result.evictions > 0
    assert result.peak_blocks <= 700
    assert result.curve


def test_an_engine_runs_the_same_file(trace: Path) -> None:
    result = run_engine("ours-engine", OurEngine(), of(trace), 16, 1200, 8, quiet)

    assert not result.breaches
    assert result.num_requests == 120
    assert result.hit_tokens > 0


class WrongHits(OurBlocks):
    """A block is found by the start of its tokens."""

    def open(self, config: object) -> None:
        super().open(config)
        real = self.manager._cache.match

        def match(data: bytes, chunk_bytes: int, salt: object) -> list:
            chain = real(data, chunk_bytes, salt)
            return [chain[0], *chain[2:], chain[1]] if len(chain) > 2 else chain

        self.manager._cache.match = match


class Leaking(OurBlocks):
    """Every tenth request keeps one block for ever."""

    def free(self, name: str) -> None:
        if name.endswith("0"):
            self.manager._pool.hold(self.manager.table(name)[-1])
        super().free(name)


class HandsOutHeldBlocks(OurBlocks):
    """The free list has every block twice."""

    def open(self, config: object) -> None:
        super().open(config)
        self.manager._pool._blank *= 2


class SaysAllIsCached(OurBlocks):
    """No token is left to compute."""

    def admit(self, name: str, tokens: object, salt: str | None = None) -> int:
        super().admit(name, tokens, salt)
        return len(tokens)


class Crashing(OurBlocks):
    """Breaks down at the fiftieth request."""

    class manager_class(BlockManager):
        def allocate(self, name: object, tokens: object, salt: object = None) -> int:
            if name == "r50":
                raise IndexError("list index out of range")
            return super().allocate(name, tokens, salt)


@pytest.mark.parametrize(
    ("target", "clauses"),
    [
        (WrongHits, {"HASH-1"}),
        (Leaking, {"ALLOC-1", "REF-1"}),
        (HandsOutHeldBlocks, {"EVICT-1", "CONTENT-1"}),
        (SaysAllIsCached, {"HASH-4"}),
        (Crashing, {"CRASH-1"}),
    ],
)
def test_a_fault_is_found(trace: Path, target: type[OurBlocks], clauses: set[str]) -> None:
    result = run_blocks(target.__name__, target(), of(trace), 64, 900, 8, quiet)

    assert clauses & {breach.property for breach in result.breaches}


GOOD = '{"input_length": 600, "output_length": 3, "hash_ids": [1, 2]}\n'


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "has no request"),
        ("\n\n", "has no request"),
        ("nonsense\n", "line 1"),
        (GOOD + '{"input_length": 600}\n', "line 2"),
        (GOOD + '{"input_length": -5, "output_length": 3, "hash_ids": []}\n', "input_length -5"),
        ('{"input_length": 600, "output_length": -1, "hash_ids": [1, 2]}\n', "output_length -1"),
        ('{"input_length": 600, "output_length": 3, "hash_ids": [1]}\n', "600 tokens are 2 blocks"),
        ('{"input_length": 600, "output_length": 3, "hash_ids": [1, -2]}\n', "hash_ids must lie"),
        ('{"input_length": "many", "output_length": 3, "hash_ids": [1]}\n', "line 1"),
        (GOOD.rstrip()[:-4], "line 1"),
        (GOOD.replace("3,", "1048576,"), "less than 1048576"),
        ('{"x": ' + "[" * 100_000, "nested too deeply"),
    ],
)
def test_a_wrong_file_is_refused_with_its_line(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(text)

    with pytest.raises(UsageError, match=says):
        list(read_requests(str(path)))


def invoke(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["workload", *arguments], standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return result.return_value, result.output


def test_the_command_reports_and_plots(trace: Path, tmp_path: Path) -> None:
    plot = tmp_path / "blocks.png"
    code, text = invoke(str(trace), "--requests", "40", "-t", "ours", "-t", "ours-engine", "--plot", str(plot))

    assert code == 0
    assert "equal to" in text
    assert "x 1.00" in text
    assert plot.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [(["--block-size", "24"], "divide"), (["--requests", "0"], "out of range"), (["-t", "nothing"], "no target")],
)
def test_the_command_refuses_wrong_options(trace: Path, arguments: list[str], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        invoke(str(trace), *arguments)


def requests_of(tmp_path: Path, *chains: list[int]) -> Callable[[], Iterator[Request]]:
    """Requests of whole blocks of 512 that generate nothing."""
    path = tmp_path / "by_hand.jsonl"
    lines = [{"input_length": 512 * len(ids), "output_length": 0, "hash_ids": ids} for ids in chains]
    path.write_text("\n".join(map(json.dumps, lines)) + "\n")
    return of(path)


@pytest.mark.parametrize(
    ("chains", "num_blocks", "evictions"),
    [
        ([[1], [2], [3]], 3, 0),  # three blocks for three prompts
        ([[1], [2], [3], [4]], 3, 1),  # 4 takes the block of 1
        ([[1], [2], [3], [4], [5], [6]], 3, 3),
        ([[1, 2], [1, 2]], 3, 0),  # the second hits 1, and computes 2 again into the block that was never used
        (
            [[1, 2], [1, 2], [1, 2]],
            3,
            1,
        ),  # the third hits 1; there are two copies of 2, and the spare one is overwritten
        ([[1, 2, 3], [4, 5, 6]], 3, 3),  # each block of the first prompt is one
    ],
)
def test_evictions_equal_a_count_by_hand(
    tmp_path: Path, chains: list[list[int]], num_blocks: int, evictions: int
) -> None:
    result = run_blocks("ours", OurBlocks(), requests_of(tmp_path, *chains), 512, num_blocks, 1, quiet)

    assert not result.breaches
    assert result.evictions == evictions


@pytest.mark.parametrize("prefix_cache", [True, False])
def test_evictions_are_told_only_where_a_prefix_cache_is_declared(tmp_path: Path, prefix_cache: bool) -> None:
    class Mine(OurBlocks):
        capabilities = msgspec.structs.replace(OurBlocks.capabilities, prefix_cache=prefix_cache, salts=False)

    result = run_blocks("mine", Mine(), requests_of(tmp_path, [1], [2], [3], [4]), 512, 3, 1, quiet)
    text = in_words([result])

    assert ("\n  1 eviction: " in text) == prefix_cache
    assert ("no prefix cache is declared" in text) != prefix_cache


def test_every_wrong_kind_of_file_is_refused_in_one_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    good = GOOD.encode()
    packed, binary, pipe, rows = (tmp_path / name for name in ("t.gz", "t.bin", "pipe", "t.csv"))
    packed.write_bytes(gzip.compress(good))
    binary.write_bytes(bytes(range(256)) * 20)
    rows.write_text("timestamp,input_length\n1,2\n")
    os.mkfifo(pipe)
    for path, says in (
        (packed, "packed with gzip"),
        (binary, "line 1"),
        (rows, "line 1"),
        (pipe, "is a pipe or a device"),
        (tmp_path, "is a folder"),
        (tmp_path / "nowhere", "no such file"),
        (Path("/dev/null"), "is a pipe or a device"),
    ):
        with pytest.raises(SystemExit) as ended:
            main(["workload", str(path)])
        out, errors = capfd.readouterr()

        assert ended.value.code == 2
        assert out == ""
        assert says in errors
        assert errors.startswith("pagefault: ")
        assert len(errors.splitlines()) == 1


class _AllocatesAhead(Scheduler):
    """The request that waits first gets its blocks in one step and its first row in a later one."""

    def schedule(self) -> ScheduledStep:
        step = super().schedule()
        for request in self._waiting[:1]:
            if request.name not in self.ahead and self.manager.can_allocate(request.tokens):
                request.num_scheduled = self.manager.allocate(request.name, request.tokens)
                self.ahead.add(request.name)
        return step

    def table(self, name: object) -> tuple[int, ...]:
        return self.manager.table(name) if name in self.ahead else super().table(name)

    def _admit(self, request: Any, draft: Any) -> bool:
        if request.name not in self.ahead:
            return super()._admit(request, draft)
        self.ahead.discard(request.name)
        draft.admitted.append(request.name)
        request.running = True
        self._waiting.remove(request)
        self._running.append(request)
        self._continue(request, draft)
        return True


class AllocatesAhead(OurEngine):
    """Sound: blocks that no row has used yet are held all the same."""

    def open(self, config: Any) -> None:
        super().open(config)
        self.engine.scheduler.__class__ = _AllocatesAhead
        self.engine.scheduler.ahead = set()


def test_blocks_that_no_row_has_used_yet_are_held_all_the_same(trace: Path) -> None:
    result = run_engine("ahead", AllocatesAhead(), of(trace), 16, 9000, 24, quiet)

    assert not result.breaches
    assert result.num_pool_checks > 5


@pytest.mark.parametrize("num_blocks", [320, 500])
def test_an_engine_that_preempts_stays_right(trace: Path, num_blocks: int) -> None:
    result = run_engine("ours-engine", OurEngine(), of(trace), 16, num_blocks, 16, quiet)

    assert not result.breaches
    assert result.peak_blocks > 0.95 * num_blocks
    assert result.evictions > 100


@pytest.mark.parametrize(
    ("id", "clause"),
    [
        ("held-blocks-are-handed-out", "EVICT-1"),
        ("hits-are-not-counted", "REF-1"),
        ("held-blocks-are-on-the-free-list", "REF-2"),
        ("tokens-scheduled-before-the-hit-is-known", "BATCH-2"),
        ("tokens-without-a-block", "ALLOC-2"),
        ("a-hit-goes-on-after-a-miss", "HASH-1"),
        ("requests-go-on-after-their-end", "SLOT-2"),
    ],
)
def test_a_fault_of_an_engine_is_found(trace: Path, id: str, clause: str) -> None:
    result = run_engine(id, all_faults()[id].make(), of(trace), 16, 320, 16, quiet)

    assert clause in {breach.property for breach in result.breaches}


class KeepsTokensInFourBytes(OurBlocks):
    """As an engine does that hashes or stores its tokens as 32-bit integers."""

    generated: ClassVar[list[int]] = []

    def admit(self, name: str, tokens: Any, salt: str | None = None) -> int:
        array("i", tokens)
        return super().admit(name, tokens, salt)

    def append(self, name: str, tokens: Any) -> None:
        self.generated += array("i", tokens)
        super().append(name, tokens)


def test_tokens_fit_into_four_bytes_and_generated_ones_are_like_no_other(trace: Path) -> None:
    result = run_blocks("narrow", KeepsTokensInFourBytes(), of(trace), 64, None, 8, quiet)
    generated = KeepsTokensInFourBytes.generated

    assert not result.breaches
    assert len(generated) == sum(request.output_length for request in of(trace)())
    assert len(set(generated)) == len(generated)
    assert min(generated) > max(token for request in of(trace)() for token in prompt_tokens(request))
