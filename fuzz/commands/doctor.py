"""`pagefault doctor`: what this machine can run, and what is missing."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

from fuzz import needs
from fuzz.commands.targets import Try, all_targets
from fuzz.output import Json, emit
from fuzz.versions import installed

NEEDED = ("hypothesis", "msgspec", "numpy", "pytest", "rich", "typer", "xxhash")
OPTIONAL = {
    "torch": needs.TORCH,
    "triton": f"{needs.TORCH} (Linux)",
    "transformers": "pip install 'pagefault[transformers]'",
    "jinja2": "pip install 'pagefault[report]'",
    "matplotlib": "pip install 'pagefault[report]'",
}


def command(try_: Try = False, json_: Json = False) -> int:
    """Say what this machine can run, and the command that brings what is missing. Exit 2 if pagefault itself cannot run."""
    checks = [*_python(), *_packages(), *_devices(), *_folder(), *_targets(try_)]
    lines = [
        f"{'ok  ' if ok else 'no  '} {what}{f': {remedy}' if remedy else ''}" for ok, needed, what, remedy in checks
    ]
    broken = [what for ok, needed, what, _ in checks if needed and not ok]
    lines.append(f"\npagefault cannot run here: {', '.join(broken)}" if broken else "\npagefault can run here")
    rows = [{"ok": ok, "needed": needed, "what": what, "remedy": remedy} for ok, needed, what, remedy in checks]
    emit({"checks": rows, "can_run": not broken}, as_json=json_, text="\n".join(lines))
    return 2 if broken else 0


_Check = tuple[bool, bool, str, str]
"""Whether it is there, whether pagefault needs it, what it is, and what brings it."""


def _python() -> list[_Check]:
    good = (3, 11) <= sys.version_info < (3, 14)
    version = platform.python_version()
    system = platform.system() in ("Linux", "Darwin")
    return [
        (good, True, f"Python {version}", "" if good else "use Python 3.11, 3.12 or 3.13"),
        (system, True, f"{platform.system()} {platform.machine()}", "" if system else "use Linux or macOS (it forks)"),
        (True, False, f"{os.cpu_count()} processors", "`pagefault run --workers N` uses N of them"),
    ]


def _packages() -> list[_Check]:
    found: list[_Check] = []
    for name in NEEDED:
        version = installed(name)
        found.append((version is not None, True, f"{name} {version or ''}", "" if version else f"pip install {name}"))
    for name, remedy in OPTIONAL.items():
        version = installed(name)
        found.append((version is not None, False, f"{name} {version or ''} (optional)", "" if version else remedy))
    return found


def _devices() -> list[_Check]:
    """Asked of the driver, not of torch: importing torch takes seconds, and this must work without it."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return [(False, False, "NVIDIA GPU (optional)", "kernels run in Triton's interpreter, or give --device cpu")]
    query = [tool, "--query-gpu=name,memory.total", "--format=csv,noheader"]
    answer = subprocess.run(query, capture_output=True, text=True, check=False, timeout=30)
    names = [line.strip() for line in answer.stdout.splitlines() if line.strip()]
    if answer.returncode or not names:
        return [(False, False, "NVIDIA GPU (optional)", f"nvidia-smi failed: {answer.stderr.strip()[:200]}")]
    return [(True, False, f"NVIDIA GPU {name}", "use --device cuda") for name in names]


def _folder() -> list[_Check]:
    writable = os.access(Path.cwd(), os.W_OK)
    free_gib = shutil.disk_usage(Path.cwd()).free / 2**30
    remedy = "" if writable else "give `pagefault run --out DIR` a folder that you may write"
    return [(writable, False, f"{Path.cwd()} can be written ({free_gib:.1f} GiB free)", remedy)]


def _targets(try_: bool) -> list[_Check]:
    return [
        (bool(row["available"]), False, f"target {row['name']} {row['version']}".strip(), str(row["reason"]))
        for row in all_targets("cpu", try_)
    ]
