"""`pagefault test`: pytest over the properties, from anywhere, whatever the user's own pytest set-up is."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as xml
from pathlib import Path
from typing import Annotated, Any

import typer

import fuzz
from fuzz.child import OURS_FIRST
from fuzz.folder import ROOT
from fuzz.output import Json, note, say

_MAIN = (
    OURS_FIRST + "import pathlib, pytest; ended = pathlib.Path(sys.argv.pop(1)); code = pytest.main(sys.argv[1:]); "
    "ended.touch(); sys.exit(code)"
)
"""pytest, and a mark that it came to its end: a target that calls `os._exit(0)` must not pass for a green run."""
_EXIT_CODES = {0: 0, 1: 1}
"""pytest's other codes (interrupted, internal error, usage, nothing collected) are all errors here."""


def command(
    ctx: typer.Context,
    target: Annotated[list[str] | None, typer.Option("--target", "-t", help="Target; may be repeated.")] = None,
    json_: Json = False,
) -> int:
    """Run pytest on the installed properties. All other options are pytest's or the plugin's (--property, --case, -k ...)."""
    chosen = [f"--target={_anywhere(name)}" for name in target or []]
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.xml"
        arguments = [*_base(), *chosen, *ctx.args, *([f"--junit-xml={report}"] if json_ else [])]
        ended = Path(scratch) / "ended"
        finished = subprocess.run(
            [sys.executable, "-P", "-c", _MAIN, str(Path(fuzz.__file__).parent.parent), str(ended), *arguments],
            check=False,
            stdout=sys.stderr if json_ else None,
            env=_environment(),
        )
        code = _EXIT_CODES.get(finished.returncode, 2)
        if not ended.exists():
            code = 2
            note(
                f"{_how(finished.returncode)} in the middle: a target did that. `pagefault run` has it in a process apart"
            )
        if json_:
            say(json.dumps(_results(report, code), indent=1))
    return code


def _how(returncode: int) -> str:
    from fuzz.isolate import describe_exit

    return describe_exit(returncode) or "the process ended itself with exit status 0"


def _base() -> list[str]:
    """Our own configuration and root, so that neither a pytest.ini nor a conftest.py of the user's is read."""
    import properties

    folder = Path(properties.__file__).parent
    ours = Path(__file__).parent.parent / "pytest.ini"
    return [
        str(folder),
        "-p",
        "properties.plugin",
        "-c",
        str(ours),
        f"--rootdir={folder}",
        f"--confcutdir={folder}",
        "-o",
        f"cache_dir={(ROOT / 'pytest-cache').absolute()}",
    ]


def _environment() -> dict[str, str]:
    """The user's, without options that are meant for the user's own tests; the checkout last on the path."""
    root = str(Path(__file__).parent.parent.parent)
    path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH", ""), root]))
    kept = {key: value for key, value in os.environ.items() if key != "PYTEST_ADDOPTS"}
    interpreted = {} if shutil.which("nvidia-smi") else {"TRITON_INTERPRET": "1"}  # before Triton is imported
    hypothesis = {"HYPOTHESIS_STORAGE_DIRECTORY": str((ROOT / "hypothesis").absolute())}  # not in the user's folder
    seed = {"PYTHONHASHSEED": "0"}  # that of replays, else what depends on it would break here and hold there
    return {**interpreted, **hypothesis, **kept, "PYTHONPATH": path, **seed}


def _anywhere(name: str) -> str:
    """A path in a target's name as an absolute one, since pytest may change folders."""
    file, colon, attribute = name.rpartition(":")
    return f"{Path(file).absolute()}{colon}{attribute}" if file.endswith(".py") else name


def _results(report: Path, code: int) -> dict[str, Any]:
    tests = []
    if report.exists():
        for case in xml.parse(report).getroot().iter("testcase"):
            outcome = next((child for child in case if child.tag in ("failure", "error", "skipped")), None)
            tests.append(
                {
                    "test": f"{case.get('classname')}::{case.get('name')}",
                    "outcome": "passed" if outcome is None else outcome.tag,
                    "message": "" if outcome is None else outcome.get("message", ""),
                    "seconds": float(case.get("time", 0)),
                }
            )
    return {"exit_code": code, "tests": tests}
