"""Known failures: what was found, looked at and reported. They are still run, minimised and counted, but break no build.

An entry names one fault: a target, the clause, and the fingerprints of its minimised traces; without fingerprints it covers
every case of that clause of that target. It must say where it is tracked, and no entry may cover our own targets: a fault
of ours is mended, not noted.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from properties.contract import UsageError, clause

SHIPPED = Path(__file__).with_name("known_failures.json")
PLACEHOLDER = "TODO: the link where this is reported, or why it is not"
"""What an entry that was printed for a case has as its tracker. It is refused until somebody has filled it in."""


class Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One known fault. `fingerprints` of its minimised cases (none = any case of the clause); `versions` of the target in
    which it is known (none = any); `tracker`: a link, or why none."""

    target: str
    property: str
    fingerprints: tuple[str, ...]
    versions: tuple[str, ...] = ()
    tracker: str
    note: str = ""


def not_met(entry: Entry) -> str:
    """What is said of an entry that nothing matched."""
    return f"known failure not met: {entry.target} {entry.property} ({entry.note}). Is it fixed? Then remove its entry"


class Ledger:
    """The entries of one file. `matches` counts how often each was met, so that an entry that never is can be announced."""

    def __init__(self, entries: tuple[Entry, ...] = ()) -> None:
        self.entries = entries
        self.matches: dict[Entry, int] = dict.fromkeys(entries, 0)

    def find(self, target: str, property: str, fingerprint: str, version: str | None = None) -> Entry | None:
        """The entry for that finding; it is counted. In a version that the entry does not name, the finding is new."""
        for entry in self.entries:
            if version is not None and entry.versions and version not in entry.versions:
                continue
            if (
                without_folder(entry.target) == without_folder(target)
                and entry.property == property
                and (not entry.fingerprints or fingerprint in entry.fingerprints)
            ):
                self.matches[entry] += 1
                return entry
        return None

    def expired(self, targets: set[str]) -> list[Entry]:
        """Entries of these targets that no finding matched: fixed upstream, or no longer reached."""
        spelt = {without_folder(target) for target in targets}
        return [entry for entry, count in self.matches.items() if not count and without_folder(entry.target) in spelt]


def read_ledger(path: Path | None) -> Ledger:
    """Read a ledger file; None = the shipped one. Raises `UsageError` that names the file and what is wrong with it."""
    file = path or SHIPPED
    try:
        entries = msgspec.json.decode(file.read_bytes(), type=tuple[Entry, ...])
    except OSError as error:
        raise UsageError(f"cannot read the known failures {file}: {error.strerror}") from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise UsageError(f"{file} is not a list of known failures: {error}") from None
    for entry in entries:
        clause(entry.property)
        if entry.tracker.strip() in ("", PLACEHOLDER):
            raise UsageError(
                f"{file}: the entry for {entry.target} {entry.property} names no tracker; say where it is reported, or why "
                f"it is not, in place of {entry.tracker!r}"
            )
        if is_ours(entry.target):
            raise UsageError(f"{file}: {entry.target} is ours: mend the fault instead of noting it")
    return Ledger(entries)


def without_folder(target: str) -> str:
    """A target of a file by the file's name alone: `run` and `test` may be told the same file by different paths.

    >>> without_folder("/home/me/my_target.py:Target"), without_folder("nano-vllm:/checkout")
    ('my_target.py:Target', 'nano-vllm:/checkout')
    """
    file, colon, attribute = target.rpartition(":")
    return f"{Path(file).name}{colon}{attribute}" if file.endswith(".py") else target


def is_ours(target: str) -> bool:
    """Whether a target is pagefault's own code, or a planted fault: neither may have an entry.

    >>> [is_ours(name) for name in ("ours", "cache-ours-triton", "fault:no-cow", "properties.targets.ours:OurBlocks")]
    [True, True, True, True]
    >>> [is_ours(name) for name in ("torch-flex", "mine.py:Ours", "nano-vllm:/checkout")]
    [False, False, False]
    """
    name = target.partition(":")[0]
    own_code = name.split(".")[0] in ("properties", "fuzz", "paged_impl") and not name.endswith(".py")
    return own_code or name == "fault" or "ours" in name.split("-")
