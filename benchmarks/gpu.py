# ruff: noqa: E402, T201  (a script: it finds its neighbours by path, and prints its table)
"""Time store, decode and prefill on a GPU, beside every peer that is installed, in one process.

    python benchmarks/gpu.py OUT.json [--suites decode,prefill,store] [--peers fa3,flashinfer,fa2,vllm-triton] [--variants]

Every output is checked against float64 first; a call whose relative error is above MAX_ERROR is reported and not timed.
Kernels are compiled first in parallel processes, so that the timed process finds them in Triton's disk cache.
--variants also times launch rules near the shipped one (tune.py). Table on the standard output; numbers, versions and
date in OUT.json.
"""

import argparse
import datetime
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parent.parent)]

import torch
import triton
import tune

from fuzz.bench import inputs, oracle, peers, suites, timing
from fuzz.bench.cases import Case

MAX_ERROR = 6e-3  # relative norm; bfloat16 results of all peers lie at 2e-3 to 3e-3
TUNED = ("uniform", "single", "ragged", "alone", "few")


def all_cases(wanted: str) -> list[tuple[str, Case]]:
    groups = (suites.DECODE if "decode" in wanted else {}) | (
        {"prefill": suites.PREFILL} if "prefill" in wanted else {}
    )
    order = ("uniform", "single", "ragged", "alone", "few", "prefill", "short", "shapes", "pages")
    return [(group, case) for group in order for case in groups.get(group, [])]


def ours(group: str, case: Case, variants: bool) -> list[tuple[str, dict[str, Any]]]:
    options = list((tune.prefill_variants if case.kind == "prefill" else tune.decode_variants)(case))
    if not variants:
        return options[:1]
    return options if group in TUNED or case.kind == "prefill" else [options[0], *options[-2:]]


def compile_share(args: argparse.Namespace) -> None:
    """Compile what this process's share of the work needs, by running it once."""
    jobs = []
    for group, case in all_cases(args.suites):
        jobs += [
            (case, lambda x, case=case, options=options: tune.bind(case, x, options))
            for _, options in ours(group, case, args.variants)
        ]
        if "vllm-triton" in args.peers:
            jobs.append((case, lambda x, case=case: peers.LOADERS["vllm-triton"]()(case, x)))
    for case, make in jobs[args.share :: args.jobs]:
        try:
            make(inputs.make_inputs(case, 0))()
        except Exception as error:
            sys.stderr.write(f"{case.name}: {str(error)[:200]}\n")


def measure(
    case: Case,
    calls: list[Callable[[], torch.Tensor]],
    sets: list[inputs.Inputs],
    answer: oracle.Answer,
    apart: bool,
) -> dict[str, Any]:
    error = answer.relative_error(calls[0]())
    if not error < MAX_ERROR:
        return {"error": error, "refused": "the answer is wrong"}
    long = case.kind == "prefill"
    time_us = timing.microseconds(calls, min_calls=2 if long else 8, replays=8 if long else timing.REPLAYS)
    row = {"us": time_us, "error": error}
    if apart:
        row["us_apart"] = timing.microseconds_apart(calls, [x.q for x in sets])
    return row | ({"tflops": case.flops / time_us / 1e6} if long else {"tb_s": case.kv_bytes / time_us / 1e6})


def run_case(group: str, case: Case, loaded: dict[str, Any], variants: bool) -> list[dict[str, Any]]:
    sets = [inputs.make_inputs(case, seed) for seed in range(inputs.num_sets(case))]
    answer = oracle.answer(case, sets[0], oracle.spread(case, 2))
    makers = [
        (name, lambda x, options=options: tune.bind(case, x, options)) for name, options in ours(group, case, variants)
    ]
    makers += [(name, lambda x, make=make: make(case, x)) for name, make in loaded.items()]
    rules = {name: options["rule"] for name, options in ours(group, case, variants)}
    apart = group in ("single", "ragged") or (case.batch, case.context) == (32, 4096)
    rows = []
    for name, make in makers:
        if name in loaded and peers.PEERS_BY_NAME[name].why_not(case) is not None:
            continue
        try:
            row = measure(case, [make(x) for x in sets], sets, answer, apart)
        except Exception as failure:
            row = {"refused": str(failure)[:200]}
        rule = {"rule": str(rules[name])} if name in rules else {}
        rows.append({"group": group, "case": case.name, "kernel": name, **rule, **row})
    return rows


def store_rows() -> list[dict[str, Any]]:
    """Tokens scattered over the pool, keys and values as slices of one projection."""
    from paged_impl.kernels import store

    rows = []
    for case in suites.STORE:
        sets = [inputs.make_store_inputs(case, seed) for seed in range(inputs.num_sets(case))]
        slots = [x.slots.int() for x in sets]
        calls = [
            lambda x=x, slots=each: store(x.keys, x.values, x.k_cache, x.v_cache, slots, check_values=False)
            for x, each in zip(sets, slots, strict=True)
        ]
        time_us = timing.microseconds(calls)
        exact = torch.equal(sets[0].k_cache.flatten(0, 1)[sets[0].slots], sets[0].keys)
        row = {"group": "store", "case": case.name, "kernel": "shipped", "us": time_us}
        rows.append(row | {"tb_s": case.bytes_moved / time_us / 1e6, "exact": exact})
    return rows


def header() -> dict[str, Any]:
    return {
        "date": datetime.date.today().isoformat(), "device": torch.cuda.get_device_name(), "torch": torch.__version__,
        "triton": triton.__version__, "cuda": torch.version.cuda,
        "read_tb_s": timing.read_ceiling_tb_s(), "copy_tb_s": timing.copy_tb_s(),
    }  # fmt: skip


def print_table(result: dict[str, Any]) -> None:
    print(f"{result['device']}: read {result['read_tb_s']:.3f}, copy {result['copy_tb_s']:.3f} TB/s")
    for name in dict.fromkeys(row["case"] for row in result["rows"]):
        rows = [row for row in result["rows"] if row["case"] == name]
        print(name, "|", "; ".join(_cell(row) for row in rows))


def _cell(row: dict[str, Any]) -> str:
    if "us" not in row:
        return f"{row['kernel']} -"
    rate = f"({row['tflops']:.0f})" if "tflops" in row else ""
    return f"{row['kernel']} {row['us']:.1f}{rate}" + (f"/{row['us_apart']:.1f}" if "us_apart" in row else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out")
    parser.add_argument("--suites", default="decode,prefill,store")
    parser.add_argument("--peers", default=",".join(peers.LOADERS))
    parser.add_argument("--variants", action="store_true")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 1) - 1))
    parser.add_argument("--share", type=int)
    args = parser.parse_args()
    if args.share is not None:
        compile_share(args)
        return
    command = [sys.executable, *sys.argv, "--jobs", str(args.jobs)]
    for process in [subprocess.Popen([*command, "--share", str(index)]) for index in range(args.jobs)]:
        process.wait()
    result = header() | {"missing": {}, "rows": []}
    loaded = {}
    for name in filter(None, args.peers.split(",")):
        try:
            loaded[name] = peers.LOADERS[name]()
        except Exception as failure:
            result["missing"][name] = str(failure)[:200]
    if "store" in args.suites:
        result["rows"] += store_rows()
    for group, case in all_cases(args.suites):
        result["rows"] += run_case(group, case, loaded, args.variants)
        Path(args.out).write_text(json.dumps(result, indent=1))
    print_table(result)


if __name__ == "__main__":
    main()
