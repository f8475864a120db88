"""Run `pagefault` as a user does: as a process, in a folder of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
BAD = Path(__file__).with_name("bad_targets.py")


@dataclass(frozen=True)
class Finished:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """What it printed with `--json`."""
        return json.loads(self.out)


def environment(**more: str) -> dict[str, str]:
    """The environment of a child, with the checkout on its path."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"  # as in an active environment
    return {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), **more}


def command(*arguments: object) -> list[str]:
    """The command line of `pagefault`."""
    return [sys.executable, "-m", "fuzz", *map(str, arguments)]


def pagefault(*arguments: object, cwd: Path, timeout_s: float = 90, **env: str) -> Finished:
    """Run `pagefault` to its end."""
    done = subprocess.run(
        command(*arguments),
        cwd=cwd,
        env=environment(**env),
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    return Finished(done.returncode, done.stdout, done.stderr)


def bad(name: str) -> str:
    """The target of that name in `bad_targets`."""
    return f"{BAD}:{name}"
