# ruff: noqa: E402, T201  (a script: it finds its neighbours by path, and prints its table)
"""Search launch rules on a GPU: time variants of one kernel over a few shapes. Results go by hand into
paged_impl/kernels/rules.py.

    python benchmarks/tune.py OUT.json [--suite decode|prefill|store] [--peers fa3]

Every variant is compiled first in parallel processes (Triton's disk cache hands the result over), then timed in one process.
"""

import argparse
import dataclasses
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parent.parent)]

import torch

from fuzz.bench import inputs, oracle, peers, suites, timing
from fuzz.bench.cases import Case
from paged_impl.kernels import Workspace, decode, prefill, rules

D, P = rules.DecodeRule, rules.PrefillRule
WORKSPACE = Workspace()  # all calls follow one another on one stream


def decode_cases() -> list[Case]:
    return [case for group in suites.DECODE.values() for case in group]


def decode_variants(case: Case) -> Iterator[tuple[str, dict]]:
    """The shipped rule, and one thing changed at a time."""
    shipped = rules.decode_rule(
        case.batch, case.num_heads, case.num_kv_heads, case.head_dim, case.page, torch.bfloat16, 90, 132
    )
    half = dataclasses.replace(shipped, block_n=shipped.block_n // 2, num_warps=2, wave=4, total=12)
    for name, rule in (
        ("shipped", shipped),
        ("total 8", dataclasses.replace(shipped, total=8)),
        ("2 in flight", dataclasses.replace(shipped, num_stages=5)),
        ("3 in flight", dataclasses.replace(shipped, num_stages=7)),
        ("half tile", half),
        ("plan short rows too", dataclasses.replace(shipped, short_tokens=0)),
    ):
        yield name, {"rule": rule}
    for pieces in (8, 16, 32, 64) if case.batch == 1 else ():
        yield f"{pieces} pieces", {"rule": shipped, "num_splits": pieces}


def prefill_variants(case: Case) -> Iterator[tuple[str, dict]]:
    """The shipped rule, and the nearest others."""
    group = case.num_heads // case.num_kv_heads
    yield (
        "shipped",
        {"rule": rules.prefill_rule(group, case.head_dim, case.page, case.query, case.context, torch.bfloat16, 90)},
    )
    tma = case.page % 128 == 0
    for name, rule in (
        ("128 rows, 128 keys", P(128, 128, 8, 5, 1, tma)),
        ("256 rows", P(256, 64, 16, 5, 1, tma)),
        ("256 rows of 4 heads", P(256, 64, 16, 5, 4, tma)),
        ("two programs", P(128, 64, 8, 3, 1, tma, 128)),
        ("two programs of 4 heads", P(128, 64, 8, 3, 4, tma, 128)),
    ):
        yield name, {"rule": rule}


def bind(case: Case, x: inputs.Inputs, options: dict) -> Callable[[], torch.Tensor]:
    out = torch.full_like(x.q, float("nan"))
    longest = int(x.lens.max())  # what an engine knows, and what the peers are told
    if case.kind == "decode":
        return lambda: decode(
            x.q, x.k_cache, x.v_cache, x.table, x.lens, scale=x.scale, max_context_len=longest, out=out, check_values=False,
            workspace=WORKSPACE, **options,
        )  # fmt: skip
    return lambda: prefill(
        x.q, x.k_cache, x.v_cache, x.table, x.cu_q, x.lens, scale=x.scale, max_query_len=case.query, max_context_len=longest,
        out=out, check_values=False, **options,
    )  # fmt: skip


def work(suite: str) -> list[tuple[Case, str, dict]]:
    if suite == "decode":
        return [(case, name, options) for case in decode_cases() for name, options in decode_variants(case)]
    return [(case, name, options) for case in suites.PREFILL for name, options in prefill_variants(case)]


def compile_share(suite: str, share: int, num_shares: int) -> None:
    items = {}
    for case, _, options in work(suite):
        rule = options["rule"]
        if isinstance(rule, D):  # numbers that do not change the code
            rule = dataclasses.replace(rule, wave=0, total=0, min_tiles=0)
        batch = (
            ("one" if case.batch == 1 else "big" if case.batch > 128 else "few")
            if case.kind == "decode"
            else case.batch
        )
        key = (
            case.kind,
            batch,
            case.num_heads,
            case.num_kv_heads,
            case.head_dim,
            case.page,
            rule,
            options.get("num_splits", 0) > 0,
        )
        items[key] = (case, options)
    for case, options in list(items.values())[share::num_shares]:
        short = dataclasses.replace(case, context=min(case.context, 512) if case.kind == "decode" else case.context)
        try:
            bind(case, inputs.make_inputs(short, 0), options)()
        except Exception as error:
            sys.stderr.write(f"{case.name} {options}: {str(error)[:200]}\n")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--suite", default="decode,prefill")
    parser.add_argument("--peers", default="")
    parser.add_argument("--share", type=int)
    parser.add_argument("--jobs", type=int, default=14)
    parser.add_argument("--compile-only", action="store_true")
    args = parser.parse_args()
    if args.share is not None:
        for suite in args.suite.split(","):
            compile_share(suite, args.share, args.jobs)
        return
    start = time.time()
    command = [sys.executable, __file__, args.out, "--suite", args.suite, "--jobs", str(args.jobs)]
    for process in (
        [] if args.jobs == 1 else [subprocess.Popen([*command, "--share", str(index)]) for index in range(args.jobs)]
    ):
        process.wait()
    if args.compile_only:
        return
    sys.stderr.write(f"compiled in {time.time() - start:.0f} s\n")
    result = {"read_tb_s": timing.read_ceiling_tb_s(), "copy_tb_s": timing.copy_tb_s(), "rows": []}
    loaded = {name: peers.LOADERS[name]() for name in args.peers.split(",") if name}
    previous = None
    for suite in args.suite.split(","):
        for case, name, options in work(suite):
            if case != previous:
                sets = [inputs.make_inputs(case, seed) for seed in range(inputs.num_sets(case))]
                answer = oracle.answer(case, sets[0], oracle.spread(case, 2))
                previous = case
                for peer, make in loaded.items():
                    _time(result["rows"], case, peer, [make(case, x) for x in sets], answer)
            _time(result["rows"], case, name, [bind(case, x, options) for x in sets], answer)
            Path(args.out).write_text(json.dumps(result, indent=1))
    _print(result)


def _time(rows: list, case: Case, name: str, calls: list, answer: oracle.Answer) -> None:
    try:
        error = answer.relative_error(calls[0]())
        time_us = timing.microseconds(calls, replays=10)
    except Exception as failure:
        sys.stderr.write(f"{case.name} {name}: {str(failure)[:150]}\n")
        return
    rows.append(
        {
            "case": case.name,
            "variant": name,
            "us": time_us,
            "tb_s": case.kv_bytes / time_us / 1e6,
            "tflops": case.flops / time_us / 1e6,
            "error": error,
        }
    )


def _print(result: dict) -> None:
    print(f"read {result['read_tb_s']:.3f} copy {result['copy_tb_s']:.3f} TB/s")
    names = list(dict.fromkeys(row["case"] for row in result["rows"]))
    for name in names:
        rows = sorted((row for row in result["rows"] if row["case"] == name), key=lambda row: row["us"])
        unit = "tflops" if name.startswith("prefill") else "tb_s"
        print(
            name,
            "|",
            "; ".join(
                f"{row['variant']} {row['us']:.1f} ({row[unit]:.3g})"
                + ("" if row["error"] < 6e-3 else f" ERROR {row['error']:.1e}")
                for row in rows[:7]
            ),
        )
        best_peer = [row for row in rows if row["variant"] in peers.LOADERS]
        if best_peer:
            print("    ", "; ".join(f"{row['variant']} {row['us']:.1f}" for row in best_peer))


if __name__ == "__main__":
    main()
