"""The folder of a campaign: findings, events, status, journals, what is still to be confirmed.

campaign.json   what was asked for          findings/   confirmed and minimised cases
state.json      counters, to resume from    pending/    cases that are not confirmed yet
status.json     plain status, every second  journal/    what each worker is doing now
events.jsonl    one line an event           corpus/     traces that the next campaign starts from
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Any

import msgspec

from fuzz.loop import safe_name
from properties.case import write_atomically
from properties.contract import UsageError

ROOT = Path("pagefault-out")
"""Where campaigns go that were given no folder."""
_PARTS = ("findings", "pending", "journal")


class DiskError(Exception):
    """The campaign's folder cannot be written. `str()` is one line with the remedy."""

    def __init__(self, path: Path, error: OSError) -> None:
        super().__init__(
            f"cannot write {path}: {error.strerror or error}. Make room or give --out DIR on another disk; what was found "
            f"so far is kept, and --resume goes on with it"
        )


class Damaged(UsageError):
    """A file of a campaign that cannot be read. `str()` is half a line: which file, and what is wrong with it."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"{path} cannot be read ({why})")
        self.path = path


class Folder:
    """A campaign's folder, locked while the campaign runs."""

    def __init__(self, path: Path, corpus: Path) -> None:
        self.path, self.corpus_root = path, corpus
        self._lock: int | None = None

    def create(self, *, resume: bool) -> None:
        """Make what is missing and take the lock. Raises `UsageError`."""
        if not resume and (self.path / "campaign.json").exists():
            raise UsageError(f"{self.path} holds a campaign already: continue it with --resume, or give another --out")
        try:
            for part in _PARTS:
                (self.path / part).mkdir(parents=True, exist_ok=True)
            self.corpus_root.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            reason = error.strerror or str(error)
            option = "--resume" if resume else "--out"
            where = f" ({error.filename} is in the way)" if isinstance(error, FileExistsError) else ""
            raise UsageError(
                f"{option} {self.path} cannot be written: {reason}{where}. Give a folder that you may write"
            ) from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UsageError(f"{self.path} is in use by another campaign: wait for it, or give another --out") from None
        self._tidy()

    def _tidy(self) -> None:
        """Remove what a kill left half written (the whole file before it is still there), and make room for our own files."""
        for name in ("events.jsonl", "status.json"):
            if (self.path / name).is_dir():
                self.set_aside(self.path / name)
        for part in (self.path, *(self.path / part for part in _PARTS)):
            for path in part.glob(".*"):
                if path.suffix[1:].isdigit() and path.is_file():
                    with contextlib.suppress(OSError):
                        path.unlink()

    def set_aside(self, path: Path) -> str:
        """Give a damaged file another name, so that its place is free and nothing of it is lost: what became of it.

        Raises `DiskError`.
        """
        beside = path.with_name(f"{path.name}.damaged")
        number = 2
        while beside.exists():
            beside, number = path.with_name(f"{path.name}.damaged-{number}"), number + 1
        try:
            path.replace(beside)
        except FileNotFoundError:
            return "it is missing"
        except OSError as error:
            raise DiskError(path, error) from None
        return f"it is kept as {beside.name}"

    def corpus(self, target: str) -> Path:
        """Where a target's saved traces are. Raises `DiskError`."""
        path = self.corpus_root / safe_name(target)
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DiskError(path, error) from None
        return path

    def journal(self, target: str, slot: int) -> Path:
        """The journal of one worker."""
        return self.path / "journal" / f"{safe_name(target)}-{slot}.jsonl"

    def finding(self, target: str, property: str, fingerprint: str) -> Path:
        """Where a finding's case lies."""
        return self.path / "findings" / f"{safe_name(target)}-{property}-{fingerprint}.json"

    def write(self, name: str, value: Any) -> None:
        """Write a file of the campaign, whole or not at all. Raises `DiskError`."""
        self.write_bytes(self.path / name, msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n")

    def write_bytes(self, path: Path, data: bytes) -> None:
        """Write a file, whole or not at all. Raises `DiskError`."""
        try:
            write_atomically(path, data)
        except OSError as error:
            raise DiskError(path, error) from None

    def event(self, kind: str, **fields: Any) -> None:
        """Append a line to the events. Raises `DiskError`."""
        record = {"time": datetime.now().astimezone().isoformat(timespec="milliseconds"), "event": kind, **fields}
        path = self.path / "events.jsonl"
        try:
            with path.open("ab", buffering=0) as file:
                file.write(msgspec.json.encode(record) + b"\n")
        except OSError as error:
            raise DiskError(path, error) from None

    def read(self, name: str, kind: Any) -> Any:
        """Read a file of the campaign. Raises `Damaged`."""
        path = self.path / name
        try:
            return msgspec.json.decode(path.read_bytes(), type=kind)
        except OSError as error:
            raise Damaged(path, error.strerror or str(error)) from None
        except (msgspec.DecodeError, RecursionError) as error:
            raise Damaged(path, str(error)) from None

    def remove_if_empty(self) -> None:
        """Take a campaign back that never began: no folder is left of a mistyped target's name."""
        if any(any((self.path / part).glob("*")) for part in ("findings", "pending")):
            return
        with contextlib.suppress(OSError):
            for part in _PARTS:
                shutil.rmtree(self.path / part, ignore_errors=True)
            for name in ("campaign.json", "state.json", "status.json", "events.jsonl", "lock"):
                (self.path / name).unlink(missing_ok=True)
            for path in (*self.corpus_root.glob("*"), self.corpus_root, self.path, ROOT / "latest", ROOT):
                if path.is_symlink() and not path.exists():
                    path.unlink()
                elif path.is_dir() and not any(path.iterdir()):
                    path.rmdir()

    def link_latest(self) -> None:
        """`pagefault-out/latest` points at the campaign, where the file system has links."""
        if self.path.parent != ROOT:
            return  # a folder of the user's choice: nothing is put beside it
        link = self.path.parent / "latest"
        with contextlib.suppress(OSError):
            if link.is_symlink() or not link.exists():
                beside = link.with_name(f".latest.{os.getpid()}")
                beside.symlink_to(self.path.name)
                beside.replace(link)


def default_path(targets: list[str]) -> Path:
    """`pagefault-out/<targets>-<date>-<time>`, with a number behind it where another campaign began in the same second.

    The folder is made at once, so that no other campaign takes it, unless it cannot be.
    """
    names = "+".join(safe_name(target) for target in targets)[:80]
    path = ROOT / f"{names}-{datetime.now():%Y%m%d-%H%M%S}"
    for number in count(1):
        mine = path if number == 1 else path.with_name(f"{path.name}-{number}")
        try:
            mine.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError:
            break  # said when the campaign is begun
        return mine
    return path
