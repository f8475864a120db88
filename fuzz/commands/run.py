"""`pagefault run`: a campaign."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Annotated

import typer

from fuzz import values
from fuzz.campaign import Campaign
from fuzz.campaign_state import Options
from fuzz.folder import DiskError, Folder, default_path
from fuzz.outcome import as_json as outcome_json
from fuzz.outcome import exit_code
from fuzz.output import CallLimit, Json, note, say
from fuzz.resume import Saved, read_saved, save_options, saved_ledger, start_again
from properties.contract import UsageError
from properties.ledger import read_ledger

DEFAULT_TARGETS = ("ours", "ours-engine", "torch-flex")
"""What a plain install can drive; one that cannot run here is skipped with the reason."""
DEFAULT_TIME = "60s"


def command(
    target: Annotated[
        list[str] | None,
        typer.Option("--target", "-t", help="Target, repeatable. Default: what a plain install drives."),
    ] = None,
    time: Annotated[str | None, typer.Option(help="How long, for example 60s, 10m or 8h. Default: 60s.")] = None,
    cases: Annotated[
        str | None, typer.Option(help="How many generated cases of each target, instead of a time.")
    ] = None,
    workers: Annotated[str, typer.Option(help="Processes that run cases at once.")] = "1",
    device: Annotated[str, typer.Option(help="cpu or cuda, for targets that have tensors.")] = "cpu",
    seed: Annotated[str | None, typer.Option(help="Seed of the campaign. Default: a new one.")] = None,
    out: Annotated[str | None, typer.Option(help="Folder. Default: pagefault-out/TARGETS-DATE-TIME.")] = None,
    resume: Annotated[str | None, typer.Option(help="Go on with the campaign in this folder.")] = None,
    known_failures: Annotated[
        str | None,
        typer.Option(help="Ledger of known failures, instead of the shipped one; --resume keeps it."),
    ] = None,
    fail_fast: Annotated[bool, typer.Option("--fail-fast", help="Stop at the first new finding.")] = False,
    call_limit: CallLimit = values.DEFAULT_LIMIT,
    json_: Json = False,
) -> int:
    """Fuzz targets: draw operations, judge every step, keep each broken clause as a small case that replays."""
    saved = read_saved(resume, tuple(target or ())) if resume is not None else None
    options = _options(saved, target, time, cases, workers, device, seed, fail_fast, call_limit)
    known = _ledger_file(saved, known_failures)
    ledger = read_ledger(known)
    folder = _folder(saved, out, options)
    try:
        folder.create(resume=saved is not None)
    except UsageError:
        if saved is None and out is None:
            folder.remove_if_empty()  # the folder is of this campaign's own making
        raise
    campaign = Campaign(options, folder, ledger, note)
    try:
        if saved is not None:
            start_again(campaign, saved, note)
        save_options(folder, options, known)
    except DiskError as error:
        if saved is None:
            folder.remove_if_empty()
        raise UsageError(str(error)) from None
    folder.link_latest()
    note(_opening(campaign))
    _stop_in_order(campaign)
    return _run(campaign, json_, fresh=saved is None)


def _run(campaign: Campaign, json_: bool, fresh: bool) -> int:
    from fuzz.progress import Progress

    with Progress(campaign) as progress:
        campaign.tell = progress.say
        try:
            campaign.run(progress.update)
        except UsageError:
            if fresh and not any(run.tally.began for run in campaign.runs.values()):
                campaign.folder.remove_if_empty()
            raise
    if json_:
        say(json.dumps(outcome_json(campaign), indent=1))
    else:
        from rich.console import Console

        from fuzz.summary import print_summary

        print_summary(campaign, Console())
    return exit_code(campaign)


def _options(
    saved: Saved | None,
    target: list[str] | None,
    time: str | None,
    cases: str | None,
    workers: str,
    device: str,
    seed: str | None,
    fail_fast: bool,
    call_limit: str,
) -> Options:
    if saved is not None and not saved.forgot_targets and (target or seed is not None):
        raise UsageError("--resume keeps the campaign's targets and seed: leave out --target and --seed")
    if not all(name.strip() for name in target or ()):
        raise UsageError("--target is empty: give a name (`pagefault targets`), module:object or path.py:object")
    names = tuple(dict.fromkeys(target or (saved.targets if saved else DEFAULT_TARGETS)))
    chosen_seed = values.whole(seed, "--seed", 0, values.MOST_SEED, "1") if seed is not None else _seed(saved)
    return Options(
        targets=names,
        chosen=bool(target) or (saved is not None and saved.chosen),
        seconds=_seconds(time) if time is not None or cases is None else None,
        cases=values.whole(cases, "--cases", 1, values.MOST_CASES, "1000") if cases is not None else None,
        workers=values.whole(workers, "--workers", 1, 256, "2"),
        device=values.choice(device, "--device", ("cpu", "cuda")),
        seed=chosen_seed,
        fail_fast=fail_fast,
        limit_s=values.call_limit(call_limit),
    )


def _ledger_file(saved: Saved | None, known_failures: str | None) -> Path | None:
    if known_failures is not None:
        return values.existing_file(known_failures, "--known-failures")
    return saved_ledger(saved, note) if saved is not None else None


def _seconds(time: str | None) -> float:
    return values.seconds(DEFAULT_TIME if time is None else time, "--time")


def _seed(saved: Saved | None) -> int:
    import secrets

    return saved.seed if saved is not None and saved.seed is not None else secrets.randbelow(2**31)


def _folder(saved: Saved | None, out: str | None, options: Options) -> Folder:
    if saved is not None:
        if out is not None:
            raise UsageError("--resume goes on in the campaign's own folder: leave out --out")
        return Folder(saved.path, Path(saved.corpus))
    if out is not None and not out.strip():
        raise UsageError("--out is empty: give a folder, or leave it out")
    path = default_path(list(options.targets)) if out is None else Path(out)
    if _is_file(path):
        raise UsageError(f"--out {path} is a file: give a folder")
    return Folder(path, path / "corpus" if out is not None else path.parent / "corpus")


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError as error:
        raise UsageError(
            f"--out {path} cannot be written: {error.strerror}. Give a folder that you may write"
        ) from None


def _opening(campaign: Campaign) -> str:
    options = campaign.options
    much = [values.plain_seconds(options.seconds)] if options.seconds is not None else []
    much += [f"{options.cases:,} case{'s' * (options.cases != 1)} each"] if options.cases is not None else []
    workers = f"{options.workers} worker{'s' * (options.workers != 1)}"
    return (
        f"pagefault run: {', '.join(options.targets)}; {', '.join(much)}; {workers}; seed {options.seed}; "
        f"folder {campaign.folder.path}"
    )


def _stop_in_order(campaign: Campaign) -> None:
    """The first Ctrl-C ends the campaign in order; the second ends the process. Nothing found is lost by either."""

    def stop(number: int, frame: object) -> None:
        signal.signal(number, signal.SIG_DFL)
        campaign.stop(f"{signal.Signals(number).name} received")

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
