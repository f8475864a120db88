"""Going on with a campaign: its options, counters and findings are read back from its folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from fuzz.campaign import Campaign
from fuzz.campaign_state import Finding, Options
from fuzz.folder import Folder
from fuzz.tally import Tally
from fuzz.versions import version_under_test
from properties.case import fingerprint, read
from properties.contract import UsageError


class _Options(msgspec.Struct):
    """campaign.json."""

    targets: list[str]
    chosen: bool
    seed: int
    corpus: str


class _State(msgspec.Struct):
    """state.json."""

    elapsed_s: float
    targets: dict[str, Tally]


@dataclass(frozen=True)
class Saved:
    """A campaign on file."""

    path: Path
    targets: tuple[str, ...]
    chosen: bool
    seed: int
    corpus: str
    elapsed_s: float
    tallies: dict[str, Tally]


def save_options(folder: Folder, options: Options) -> None:
    """Write what a resumed campaign needs. Raises `DiskError`."""
    corpus = str(folder.corpus_root.absolute())
    folder.write("campaign.json", _Options(list(options.targets), options.chosen, options.seed, corpus))


def read_saved(path: Path) -> Saved:
    """Read a campaign's folder. Raises `UsageError`."""
    path = path.resolve() if path.is_symlink() else path
    if not path.is_dir():
        raise UsageError(f"--resume {path}: no such folder. Give the folder of a campaign (pagefault-out/latest)")
    folder = Folder(path, path)
    options: _Options = folder.read("campaign.json", _Options)
    state = _State(0.0, {})
    if (path / "state.json").exists():  # not yet there if the campaign was killed in its first second
        state = folder.read("state.json", _State)
    targets = tuple(options.targets)
    return Saved(path, targets, options.chosen, options.seed, options.corpus, state.elapsed_s, state.targets)


def start_again(campaign: Campaign, saved: Saved) -> None:
    """Give a campaign the counters and findings of its earlier life. What was under way then is run again."""
    campaign.before_s = saved.elapsed_s
    for name, run in campaign.runs.items():
        run.tally = saved.tallies.get(name, run.tally)
        run.rerun = run.tally.cases > 0  # the corpus was run the first time
    for path in sorted((saved.path / "findings").glob("*.json")):
        case = read(path)
        if case.target not in campaign.runs:
            continue
        run, print_ = campaign.runs[case.target], fingerprint(case)
        version = version_under_test(run.name, case.versions)
        known = None if case.flaky else campaign.ledger.find(run.name, case.property, print_, version)
        run.findings[case.property, print_] = Finding(path, case, print_, known)
        run.tolerate.add(case.property)
