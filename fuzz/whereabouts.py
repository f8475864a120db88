"""Where the adapter of a case is: its path is noted as it was typed, in the folder in which the campaign was started."""

from __future__ import annotations

from pathlib import Path

from properties.case import Case
from properties.contract import UsageError
from properties.targets import BUILTIN, WITH_PATH


def located(target: str, case_file: Path | None = None) -> str:
    """The target with an absolute path, if it names a file or a checkout that can be found; else as it is.

    A relative path is looked for from this folder, then from each folder above the case's own file: campaigns write
    below the folder in which they are started.

    >>> located("torch-flex"), located("package.module:Target")
    ('torch-flex', 'package.module:Target')
    """
    name, _, checkout = target.partition(":")
    if name in WITH_PATH:
        found = _found(checkout, case_file)
        return f"{name}:{found}" if found else target
    file, _, attribute = target.rpartition(":")
    if not file.endswith(".py"):
        return target
    found = _found(file, case_file)
    return f"{found}:{attribute}" if found else target


def _found(path: str, case_file: Path | None) -> Path | None:
    above = case_file.absolute().parents if case_file is not None else ()
    for folder in (Path.cwd(), *above):
        candidate = folder / path
        try:
            if path and candidate.exists():
                return candidate.resolve()
        except OSError:
            continue
    return None


def check_level(case: Case) -> None:
    """Raise `UsageError` where the case's target is known to be of another level than the case."""
    entry = BUILTIN.get(case.target) or WITH_PATH.get(case.target.partition(":")[0])
    if entry is not None and entry.level != case.level:
        raise UsageError(
            f"the case is of level {case.level}, and {case.target} is a target of level {entry.level}: name a "
            f"{case.level} target with --target"
        )
