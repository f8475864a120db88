"""Going on with a campaign: its options, counters and findings are read back from its folder.

Whatever is damaged there is named in one line and kept: counters that cannot be read start again at zero, a finding that
cannot be read is left out, and where the options are gone the user names the targets again.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
import xxhash

from fuzz.campaign import Campaign
from fuzz.campaign_state import Finding, Options
from fuzz.folder import Damaged, Folder
from fuzz.tally import Tally
from fuzz.values import LONGEST_S, MOST_CASES, MOST_SEED
from fuzz.versions import version_under_test
from properties.case import fingerprint, read
from properties.contract import UsageError


class KnownFailures(msgspec.Struct, frozen=True):
    """The ledger that a campaign was started with: its absolute path, and what was in it, as a hash."""

    path: Annotated[str, msgspec.Meta(min_length=1)]
    xxh64: str


class _Options(msgspec.Struct):
    """campaign.json."""

    targets: Annotated[list[Annotated[str, msgspec.Meta(min_length=1)]], msgspec.Meta(min_length=1)]
    chosen: bool
    seed: Annotated[int, msgspec.Meta(ge=0, le=MOST_SEED)]
    corpus: Annotated[str, msgspec.Meta(min_length=1)]
    known_failures: KnownFailures | None = None


class _State(msgspec.Struct):
    """state.json."""

    elapsed_s: Annotated[float, msgspec.Meta(ge=0, le=1000 * LONGEST_S)]
    targets: dict[str, Tally]


@dataclass(frozen=True)
class Saved:
    """A campaign on file. `damaged` are lines about what could not be read; those files are set aside when it goes on."""

    path: Path
    targets: tuple[str, ...]
    chosen: bool
    seed: int | None
    corpus: str
    elapsed_s: float
    tallies: dict[str, Tally]
    damaged: tuple[Damaged, ...] = ()
    known_failures: KnownFailures | None = None

    @property
    def forgot_targets(self) -> bool:
        """Whether the user had to name the targets again."""
        return any(error.path.name == "campaign.json" for error in self.damaged)


def save_options(folder: Folder, options: Options, ledger: Path | None = None) -> None:
    """Write what a resumed campaign needs. `ledger` is the user's, where there is one. Raises `DiskError`."""
    corpus = str(folder.corpus_root.absolute())
    known = KnownFailures(str(ledger.absolute()), _hash(ledger)) if ledger is not None else None
    folder.write("campaign.json", _Options(list(options.targets), options.chosen, options.seed, corpus, known))


def saved_ledger(saved: Saved, tell: Callable[[str], None]) -> Path | None:
    """The ledger that the campaign was started with, None for the shipped one; a change since then is told.

    Raises `UsageError` where it is gone: what it covers would be new findings.
    """
    known = saved.known_failures
    if known is None:
        return None
    path = Path(known.path)
    if not path.is_file():
        raise UsageError(
            f"--resume {saved.path}: the ledger that the campaign was started with, {path}, is gone: bring it back, or give "
            "another with --known-failures"
        )
    if _hash(path) != known.xxh64:
        tell(f"the ledger {path} was changed since the campaign was started; it holds as it is now")
    return path


def _hash(path: Path) -> str:
    try:
        return xxhash.xxh64_hexdigest(path.read_bytes())
    except OSError as error:
        raise UsageError(f"cannot read the known failures {path}: {error.strerror}") from None


def read_saved(text: str, targets: tuple[str, ...] = ()) -> Saved:
    """Read a campaign's folder. `targets` are those that the user named, which only a damaged campaign needs.

    Raises `UsageError`.
    """
    path = _folder_at(text)
    damaged: list[Damaged] = []
    options = _read_options(Folder(path, path), targets, damaged)
    state = _read_state(Folder(path, path), damaged)
    return Saved(
        path,
        tuple(options.targets),
        options.chosen,
        options.seed if options.seed >= 0 else None,
        _corpus(path, options.corpus),
        state.elapsed_s,
        state.targets,
        tuple(damaged),
        options.known_failures,
    )


def _folder_at(text: str) -> Path:
    if not text.strip():
        raise UsageError("--resume is empty: give the folder of a campaign (pagefault-out/latest)")
    path = Path(text)
    try:
        path = path.resolve(strict=True) if path.is_symlink() else path
        there = path.is_dir()
    except (OSError, RuntimeError) as error:  # a loop of links is a RuntimeError in Python 3.11 and 3.12
        raise UsageError(f"--resume {text}: {error}. Give the folder of a campaign (pagefault-out/latest)") from None
    if not there:
        kind = "it is a file" if path.exists() else "no such folder"
        raise UsageError(f"--resume {text}: {kind}. Give the folder of a campaign (pagefault-out/latest)")
    return path


def _read_options(folder: Folder, targets: tuple[str, ...], damaged: list[Damaged]) -> _Options:
    """campaign.json; what the user says instead, where it cannot be read and the folder is a campaign's all the same."""
    try:
        options: _Options = folder.read("campaign.json", _Options)
        return options
    except Damaged as error:
        if not (folder.path / "findings").is_dir():
            raise UsageError(
                f"--resume {folder.path}: there is no campaign.json that can be read, so it is no campaign: give its folder"
            ) from None
        if not targets:
            raise UsageError(
                f"{error}. Findings and saved traces are kept: name the targets as well to start afresh from them "
                f"(pagefault run --resume {folder.path} -t TARGET, and --known-failures if it had a ledger of its own)"
            ) from None
        damaged.append(error)
        return _Options(list(targets), True, -1, str((folder.path / "corpus").absolute()))


def _read_state(folder: Folder, damaged: list[Damaged]) -> _State:
    if not os.path.lexists(folder.path / "state.json"):  # not yet there if the campaign was killed in its first second
        return _State(0.0, {})
    try:
        state: _State = folder.read("state.json", _State)
        for name, tally in state.targets.items():
            problem = tally.problem(MOST_CASES)
            if problem:
                raise Damaged(folder.path / "state.json", f"{name}: {problem}")
        return state
    except Damaged as error:
        damaged.append(error)
        return _State(0.0, {})


def _corpus(path: Path, saved: str) -> str:
    """Where the saved traces are; a folder that was moved has its own beside it."""
    moved = path / "corpus"
    return str(moved.absolute()) if moved.is_dir() and not Path(saved).is_dir() else saved


def start_again(campaign: Campaign, saved: Saved, tell: Callable[[str], None]) -> None:
    """Give a campaign the counters and findings of its earlier life. What was under way then is run again.

    `tell` gets a line for each file that cannot be read: it stays where it is, and the campaign goes on without it.
    Raises `DiskError`.
    """
    for error in saved.damaged:
        tell(f"{error}: {campaign.folder.set_aside(error.path)}, and its part of the campaign starts afresh")
    campaign.before_s = saved.elapsed_s
    for name, run in campaign.runs.items():
        run.tally = saved.tallies.get(name, run.tally)
        run.rerun = run.tally.began  # the corpus was run the first time
    for path in sorted((saved.path / "findings").glob("*.json")):
        try:
            _take_finding(campaign, path)
        except UsageError as error:
            tell(f"{error}. It is left out, and stays where it is")


def _take_finding(campaign: Campaign, path: Path) -> None:
    """Read a finding back. Raises `UsageError`."""
    case = read(path)
    run = campaign.runs.get(case.target)
    if run is None:
        raise UsageError(f"{path} is a case of {case.target}, which is no target of this campaign")
    print_ = fingerprint(case)
    version = version_under_test(run.name, case.versions)
    known = None if case.flaky else campaign.ledger.find(run.name, case.property, print_, version)
    run.findings[case.property, print_] = Finding(path, case, print_, known)
    run.tolerate.add(case.property)


__all__ = ["Saved", "read_saved", "save_options", "saved_ledger", "start_again"]
