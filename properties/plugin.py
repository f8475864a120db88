"""The pytest plugin of `pytest properties`: options, profiles, one `contract` per target, a summary of what was judged.

It is loaded by the root `conftest.py` of a checkout and by `pagefault test`, never through an entry point: an installed
pagefault must not add options to, or break, somebody's own pytest.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis.errors import InvalidArgument
from msgspec import structs

from properties.alone import confirm
from properties.case import read
from properties.contract import CLAUSES, UsageError, clause
from properties.distributed import Distributed, Section, hand_over
from properties.effort import ON_DEVICES, effort_for
from properties.elsewhere import judge_elsewhere, shapes_elsewhere
from properties.judging import Results, applicable_clauses, judge_target, read_corpus
from properties.ledger import Ledger, not_met, read_ledger
from properties.levels import clauses_of
from properties.machine import PROFILES, register_profiles
from properties.targets import Target, Unavailable, load

DEFAULT_TARGETS = ("ours", "ours-engine", "ours-triton", "cache-ours")
"""Ours, on every level. One that cannot run here (torch or Triton is missing) is left out, and the header says why."""
DRIVEN_LEVELS = ("blocks", "engine", "cache", "attention")
"""Levels that traces drive."""

register_profiles()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("pagefault")
    group.addoption("--target", action="append", default=[], help="target under test; may be given several times")
    group.addoption("--device", default="cpu", choices=("cpu", "cuda"), help="device of attention and cache targets")
    group.addoption("--property", action="append", default=[], metavar="ID", help="judge only this clause")
    group.addoption("--case", action="append", default=[], metavar="FILE", help="replay only this case")
    group.addoption("--known-failures", metavar="FILE", help="ledger of known failures instead of the shipped one")


class Session:
    """What this pytest session judges. Targets are judged once, when the first test asks."""

    def __init__(self, config: pytest.Config) -> None:
        self.left_out: dict[str, str] = {}
        self.targets: dict[str, Target] = _named(config.getoption("--target")) or self._default_targets()
        self.names = list(self.targets)
        self.only = [clause(id).id for id in config.getoption("--property")]
        self.cases = [read(Path(file)) for file in config.getoption("--case")]
        path = config.getoption("--known-failures")
        self.ledger: Ledger = read_ledger(Path(path) if path else None)
        self.profile_name = _profile_name()
        self.device: str = config.getoption("--device")
        self.results: dict[str, Results | Unavailable] = {}
        self.failed: dict[str, Exception] = {}
        self.told_by: dict[str, str] = {}
        """The test that said why a target is not judged, by the target's name."""
        self.shapes_of: dict[str, dict[str, str | None]] = {}
        self._refuse_clauses_of_other_levels()

    def _default_targets(self) -> dict[str, Target]:
        targets = {}
        for name in DEFAULT_TARGETS:
            try:
                targets[name] = load(name)
            except UsageError as reason:
                self.left_out[name] = str(reason)
        return targets

    def _refuse_clauses_of_other_levels(self) -> None:
        levels = {target.level for target in self.targets.values()}
        for id in self.only:
            if not levels & set(CLAUSES[id].levels):
                raise UsageError(
                    f"{id} is judged on targets of level {' or '.join(CLAUSES[id].levels)}; "
                    f"{', '.join(self.names)}: level {' and '.join(sorted(levels))}. Name another --target"
                )

    def judge(self, name: str) -> Results | Unavailable:
        """The results for a target of this session. What judging it raised is raised again, and not waited for again."""
        if name not in self.results and name not in self.failed:
            try:
                self.results[name] = self._judge(name)
            except Unavailable as reason:
                self.results[name] = reason
            except Exception as error:
                self.failed[name] = error
        if name in self.failed:
            raise self.failed[name]
        return self.results[name]

    def _judge(self, name: str) -> Results:
        """Once more where a hang does not come back: a machine that stood still is no fault of the target."""
        results = self._judge_once(name)
        return self._judge_once(name) if results.hung_once else results

    def _judge_once(self, name: str) -> Results:
        target = self.targets[name]
        if self.device == "cuda" and target.level in ON_DEVICES:
            results = judge_elsewhere(target, self.profile_name, self.device, self.ledger)
        else:
            results = judge_target(*effort_for(target, self.profile_name, self.device), self.ledger, read_corpus())
        confirm(results, self.device)
        return results

    def shapes(self, name: str) -> dict[str, str | None]:
        """What is wrong with the shapes of real models on an attention target (see `elsewhere.shapes_elsewhere`)."""
        if name not in self.shapes_of:
            self.shapes_of[name] = shapes_elsewhere(name, self.device)
        return self.shapes_of[name]


def _named(names: list[str]) -> dict[str, Target]:
    """The targets that the user named. Raises `UsageError` for one that is not there."""
    return {name: load(name) for name in names}


def _profile_name() -> str:
    """Ours if Hypothesis was told to load one of ours, else the one for CI or for a developer."""
    current = settings.get_current_profile_name()
    if current in PROFILES:
        return current
    return "pagefault-ci" if os.environ.get("CI") else "pagefault-dev"


HERE = Path(__file__).parent.resolve()
_SESSION = pytest.StashKey[Session]()
_WORKERS = pytest.StashKey[Distributed]()


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """An unknown Hypothesis profile is the user's mistake; Hypothesis would answer it with an internal error."""
    name = config.getoption("--hypothesis-profile", default=None)
    try:
        if name:
            settings.get_profile(name)
    except InvalidArgument:
        raise pytest.UsageError(
            f"--hypothesis-profile {name!r} is unknown: give {', '.join(PROFILES)}, or one of Hypothesis' own (default, ci)"
        ) from None


def _refuse_another_copy(config: pytest.Config) -> None:
    """Properties of a checkout under the plugin of an installed copy would find none of its fixtures."""
    for argument in config.args:
        path = Path(argument.partition("::")[0])
        folder = (path if path.is_dir() else path.parent).resolve()
        if folder.name == HERE.name and (folder / "plugin.py").exists() and folder != HERE:
            raise UsageError(
                f"{folder} belongs to another copy of pagefault than the one that is installed, {HERE}: run `python -m pytest "
                "properties` in the checkout, install that with `pip install -e .`, or use `pagefault test`"
            )


def pytest_configure(config: pytest.Config) -> None:
    try:
        _refuse_another_copy(config)
        config.stash[_SESSION] = Session(config)
    except UsageError as error:
        raise pytest.UsageError(str(error)) from None
    if config.pluginmanager.hasplugin("xdist"):
        config.stash[_WORKERS] = Distributed(config.stash[_SESSION].names)
        config.pluginmanager.register(config.stash[_WORKERS])


def pytest_report_header(config: pytest.Config) -> list[str]:
    session = config.stash[_SESSION]
    unknown = sorted(key for key in os.environ if key.startswith("PAGEFAULT_"))
    lines = [f"pagefault: targets {', '.join(session.names)}; profile {session.profile_name}"]
    lines += [f"pagefault: {name} is left out: {reason}" for name, reason in session.left_out.items()]
    return lines + [f"pagefault: environment variables are not read, found {', '.join(unknown)}"] * bool(unknown)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`clause_id` and `target_name` for the chapters, `case_file` for `--case`."""
    if not _is_ours(metafunc.definition):
        return
    session = metafunc.config.stash[_SESSION]
    if "clause_id" in metafunc.fixturenames and "target_name" in metafunc.fixturenames:
        chapter = metafunc.function.__name__.removeprefix("test_").upper()
        pairs = [] if session.cases else list(_pairs(session, chapter))
        metafunc.parametrize(("clause_id", "target_name"), pairs, ids=[f"{id}-{name}" for id, name in pairs])
    elif "case" in metafunc.fixturenames:
        if metafunc.config.getoption("--target"):
            session.cases = [structs.replace(case, target=name) for case in session.cases for name in session.names]
        metafunc.parametrize("case", session.cases, ids=[f"{case.target}-{case.property}" for case in session.cases])
    elif "attention_name" in metafunc.fixturenames:
        names = [name for name, target in session.targets.items() if target.level == "attention"]
        metafunc.parametrize("attention_name", [] if session.cases or session.only else names)
    elif "target_name" in metafunc.fixturenames:
        skipped = session.cases or session.only
        metafunc.parametrize("target_name", [] if skipped else _driven(session))


def _driven(session: Session) -> list[str]:
    return [name for name, target in session.targets.items() if target.level in DRIVEN_LEVELS]


def _pairs(session: Session, chapter: str) -> Any:
    """The clauses of a chapter that can be judged on each target; a clause asked for with `--property` always."""
    for name in _driven(session):
        target = session.targets[name]
        applicable = applicable_clauses(target)
        for id in clauses_of(target.level):
            wanted = id in session.only if session.only else applicable is None or id in applicable or _is_crash(id)
            if wanted and CLAUSES[id].chapter == chapter:
                yield id, name


def _is_crash(id: str) -> bool:
    """Crashes are judged by every call that returns, on every target."""
    return CLAUSES[id].chapter == "CRASH"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what an empty parameter list made pytest skip: it is not a test that somebody could enable."""
    empty = [item for item in items if _has_no_parameters(item) and _is_ours(item)]
    if empty:
        config.hook.pytest_deselected(items=empty)
        items[:] = [item for item in items if item not in empty]


def _has_no_parameters(item: pytest.Item) -> bool:
    """By the mark that pytest gives such a test; its name is another in each version (8.3, 9.2)."""
    reasons = (str(mark.kwargs.get("reason", "")) for mark in item.iter_markers("skip"))
    return any(reason.startswith("got empty parameter set") for reason in reasons)


def _is_ours(item: pytest.Item) -> bool:
    return item.path.parent.resolve() == HERE


@pytest.fixture(scope="session")
def contract(request: pytest.FixtureRequest) -> Session:
    """The session that judges targets."""
    return request.config.stash[_SESSION]


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker of xdist tells nothing itself."""
    hand_over(session.config, lambda: _sections(session.config.stash[_SESSION]))


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    workers = config.stash.get(_WORKERS, None)
    for title, lines in [*_sections(config.stash[_SESSION]), *(workers.sections if workers else [])]:
        terminalreporter.section(title)
        for line in lines:
            terminalreporter.line(line)


def _sections(session: Session) -> list[Section]:
    """What is told of each target that was judged here, and of entries of the ledger that it did not meet."""
    sections = []
    for name, results in session.results.items():
        if isinstance(results, Unavailable):
            lines = [f"not judged: {results}"]
        else:
            lines = [*summary(results), *map(not_met, session.ledger.expired({name}))]
        sections.append((f"pagefault: {name}", lines))
    return sections


def summary(results: Results) -> list[str]:
    """What judging a target reached, for the end of the run."""
    tally = results.tally
    done = tally.outcomes["done"]
    lines = [
        f"{tally.traces} traces ({results.corpus} from the corpus), {tally.steps} operations, "
        f"{done / max(1, tally.steps):.0%} of them done, {tally.outcomes['refused']} refused",
        "judged: " + ", ".join(f"{id} {results.judged[id]}" for id in CLAUSES if results.judged[id]),
        "reached: " + ", ".join(f"{mark} {count}" for mark, count in sorted(tally.marks.items()) if count),
    ]
    if tally.given_up:
        lines.append(
            "the same calls did not always have the same outcome, so Hypothesis gave up early; seeded traces went on. Is "
            "something kept from trace to trace (a global, a buffer), or left to time or chance?"
        )
    level = results.target.level
    beside = results.applicable | {id for id, count in results.judged.items() if count}
    not_judged = [id for id in clauses_of(level) if id not in beside and not id.startswith("CRASH")]
    if not_judged:
        lines.append("not judged (not offered, or not promised): " + ", ".join(not_judged))
    lines.append(f"this was a short look; `pagefault run -t {results.target.name} --time 10m` looks deeper")
    known = [
        f"{finding.case.property} ({finding.known.tracker})" for finding in results.findings.values() if finding.known
    ]
    return lines + ["known failures: " + ", ".join(known)] * bool(known)
