"""From what was asked for to a result: options checked, contenders found, cases chosen, everything run."""

from __future__ import annotations

import datetime
import os
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from fuzz import values
from fuzz.bench import peers
from fuzz.bench.cases import ITEMSIZES, AnyCase, BadCase, parse
from fuzz.bench.contenders import Contender, make_contender
from fuzz.bench.memory import why_too_big
from fuzz.bench.result import Result, Row, compare
from fuzz.bench.runner import Tell, gpu_is_lost, is_interpreted, measure_ceilings, run_case
from fuzz.bench.suites import SUITES, default_cases
from fuzz.versions import distribution_of, installed
from properties.contract import UsageError

INSTALLED_PEERS = "peers"
"""Given to --against: every peer that is installed."""


@dataclass(frozen=True)
class Wish:
    """The options of the command, as they were given."""

    target: str
    against: tuple[str, ...] = ()
    suites: tuple[str, ...] = ()
    cases: tuple[str, ...] = ()
    dtype: str | None = None
    device: str | None = None
    quick: bool = False


def run(wish: Wish, tell: Tell) -> Result:
    """Raises UsageError for a mistake, before anything is measured."""
    device = _device(wish.device)
    dtype = values.choice(wish.dtype or ("float32" if device == "cpu" else "bfloat16"), "--dtype", tuple(ITEMSIZES))
    cases, left_out = _cases(wish, device, dtype)
    tell(f"looking for {', '.join((wish.target, *wish.against))}")
    contenders, missing = _contenders(wish, device)
    for case in _one_of_each_kind(cases) if device == "cpu" or os.environ.get("TRITON_INTERPRET") == "1" else ():
        contenders = _without_interpreted(contenders, case, device, missing, tell)
    load = os.getloadavg()[0] / (os.cpu_count() or 1) if device == "cpu" else None
    tell("measuring the ceilings")
    ceilings = measure_ceilings(cases, device)
    rows: list[Row] = []
    for case in cases:
        rows += run_case(case, contenders, device, ceilings, tell)
        if device == "cuda" and gpu_is_lost(rows):
            left_out["the rest"] = (
                f"everything behind {case.text}: the GPU answers no call after what {rows[-1].target} did"
            )
            break
    return Result(
        date=datetime.date.today().isoformat(),
        device=device,
        device_name=torch.cuda.get_device_name() if device == "cuda" else f"CPU, {torch.get_num_threads()} threads",
        load=load,
        versions=_versions(contenders),
        target=wish.target,
        against=tuple(contender.name for contender in contenders[1:]),
        ceilings=ceilings,
        rows=tuple(rows),
        compared=tuple(compare(rows, wish.target)),
        missing=missing,
        left_out=left_out,
    )


def _device(wanted: str | None) -> str:
    if wanted is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    values.choice(wanted, "--device", ("cpu", "cuda"))
    if wanted == "cuda" and not torch.cuda.is_available():
        raise UsageError("--device cuda: torch sees no GPU here. Give --device cpu, or start it on a machine with one")
    return wanted


def _cases(wish: Wish, device: str, dtype: str) -> tuple[list[AnyCase], dict[str, str]]:
    """What is run, and default cases that are too big for this memory."""
    suites = tuple(dict.fromkeys(values.choice(name, "--suite", SUITES) for name in wish.suites)) or SUITES
    if not wish.cases:
        found = default_cases(suites, device, dtype, quick=wish.quick)
        left_out = {case.text: reason for case in found if (reason := why_too_big(case, device))}
        return [case for case in found if case.text not in left_out], left_out
    try:
        named = list(dict.fromkeys(parse(text, dtype) for text in wish.cases))  # one case has more than one text
    except BadCase as error:
        raise UsageError(f"--case {error}") from None
    chosen: list[AnyCase] = [case for case in named if not wish.suites or case.kind in suites]
    if not chosen:
        raise UsageError(f"--case and --suite leave nothing: none of the cases is a {' or '.join(suites)}")
    for case in chosen:
        reason = why_too_big(case, device)
        if reason is not None:
            raise UsageError(reason)
    return chosen, {}


def _contenders(wish: Wish, device: str) -> tuple[list[Contender], dict[str, str]]:
    """The target first; and the peers that are not here, with how to get them."""
    named = [name for name in wish.against if name != INSTALLED_PEERS]
    if wish.target in named:
        raise UsageError(f"--against {wish.target} is the target itself: name another")
    absent = {name: reason for name in peers.PEERS_BY_NAME if (reason := peers.found(name)) is not None}
    missing = {name: f"{reason}. {peers.PEERS_BY_NAME[name].how_to_get}" for name, reason in absent.items()}
    contenders = [make_contender(name, device) for name in dict.fromkeys((wish.target, *named))]
    if device == "cpu":
        cuda_only = {name: "runs on an NVIDIA GPU only" for name in peers.PEERS_BY_NAME if name not in absent}
        return contenders, (missing | cuda_only if INSTALLED_PEERS in wish.against else {})
    if INSTALLED_PEERS not in wish.against:
        return contenders, missing
    for name in peers.PEERS_BY_NAME:
        if name not in absent and name not in (wish.target, *named):
            try:
                contenders.append(make_contender(name, device))
            except UsageError as error:
                missing[name] = str(error)
    return contenders, missing


def _one_of_each_kind(cases: Sequence[AnyCase]) -> list[AnyCase]:
    return list({case.kind: case for case in reversed(cases)}.values())


def _without_interpreted(
    contenders: list[Contender], case: AnyCase, device: str, missing: dict[str, str], tell: Tell
) -> list[Contender]:
    """Those whose time means something on this machine."""
    kept = []
    for contender in contenders:
        tell(f"one {case.kind}: {contender.name}")
        if is_interpreted(contender, case, device):
            reason = (
                f"{contender.name} runs in Triton's interpreter here, where a time means nothing. Time it on a machine with a "
                f"GPU; `pagefault run -t {contender.name}` checks its answers here"
            )
            if contender is contenders[0]:
                raise UsageError(reason)
            missing[contender.name] = reason
        else:
            kept.append(contender)
    return kept


def _versions(contenders: Sequence[Contender]) -> dict[str, str]:
    found = {"torch": str(torch.__version__)}
    if torch.version.cuda:
        found["CUDA"] = torch.version.cuda
    distributions = [
        peers.PEERS_BY_NAME[contender.name].distribution
        if contender.name in peers.PEERS_BY_NAME
        else distribution_of(contender.name, getattr(contender, "adapter", None))
        for contender in contenders
    ]
    for name in ("triton", *distributions):
        version = installed(name) if name else None
        if name and version and name not in found:
            found[name] = version
    return found
