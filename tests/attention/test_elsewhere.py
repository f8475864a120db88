"""Judging in a process of its own, here on a CPU: the same verdicts, and a death that is a finding and ends nothing else."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from properties import ahead, chapter, elsewhere, plugin
from properties.attention.cases import ReadCase
from properties.contract import AdapterError, UsageError
from properties.effort import effort_for
from properties.elsewhere import LOST
from properties.elsewhere_child import leave_if_lost
from properties.judging import judge_target
from properties.ledger import Ledger
from properties.lifeline import command_of_ours
from properties.targets import Unavailable, load
from tests.attention.gather_targets import written

ROOT = str(Path(__file__).parents[2])

TARGETS = """
class Once(OurGather):
    # Does something once a context is long.
    def decode(self, pool, batch):
        if max(batch.context_lens) > 12:
            self.act()
        return super().decode(pool, batch)

class Killed(Once):
    def act(self):
        os.kill(os.getpid(), signal.SIGKILL)

class Unnamed(Once):
    def act(self):
        os.kill(os.getpid(), 40)

class EndsLikeALostDevice(Once):
    def act(self):
        os._exit(87)

class SpoilsTheFiles(Once):
    def act(self):
        for name in os.listdir(folder()):
            os.truncate(os.path.join(folder(), name), os.path.getsize(os.path.join(folder(), name)) - 3)
        os._exit(3)

class RemovesTheFolder(Once):
    def act(self):
        shutil.rmtree(folder(), ignore_errors=True)
        os.abort()

class Forks(Once):
    def act(self):
        if not os.path.exists("forked"):
            pid = os.fork()
            if pid == 0:
                signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
                time.sleep(300)
            open("forked", "w").write(str(pid))

class LeavesAThread(Once):
    def act(self):
        threading.Thread(target=time.sleep, args=(90,)).start()

class Talks(Once):
    def act(self):
        os.write(1, b"so far so good")
        os.chdir("/")

class NoRoom(Once):
    # The next note finds the disk full.
    def act(self):
        from properties.elsewhere_child import Noted
        class Full:
            def write(self, data):
                raise OSError(28, "No space left on device")
            def close(self): pass
        def apply(self, operation, original=Noted.apply):
            self.file = Full()
            return original(self, operation)
        Noted.apply = apply

def folder():
    return sys.argv[-1]

class EndsLikeAFullDisk(Once):
    def act(self):
        os._exit(88)

class WritesIntoTheNote(Once):
    def act(self):
        open(os.path.join(folder(), "note"), "ab").write(b"so far so good\\n")
        os._exit(3)

class DiesWhenMade(OurGather):
    def __init__(self):
        os._exit(5)

class CannotBeMade(OurGather):
    def __init__(self):
        raise KeyError("weights")

if "elsewhere_child" in str(sys.orig_argv) and os.path.exists(__file__ + ".once"):
    raise ImportError("only once")

class Elsewhere(OurGather):
    def __init__(self):
        raise Unavailable("needs another machine: buy one")
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return written(tmp_path, TARGETS)


def judged(file: Path, name: str) -> elsewhere.Results:
    return elsewhere.judge_elsewhere(load(f"{file}:{name}"), "pagefault-dev", "cpu", Ledger())


def test_the_verdicts_are_those_of_judging_here(file: Path) -> None:
    right = judged(file, "Right")
    here = judge_target(*effort_for(load(f"{file}:Right"), "pagefault-dev", "cpu"), Ledger(), [])

    assert (right.findings, right.ended) == ({}, None)
    assert (set(right.judged), right.marks, right.applicable) == (set(here.judged), here.marks, here.applicable)


def test_a_death_is_a_finding_with_the_operation_that_led_to_it(file: Path) -> None:
    results = judged(file, "Dies")

    finding = results.findings["CRASH-2"]
    (operation,) = finding.case.operations
    assert results.ended == finding.case.message == "the process died of SIGABRT"
    assert isinstance(operation, ReadCase)
    assert max(row.context_len for row in operation.rows) > 12
    assert not finding.case.flaky


def test_a_child_that_does_not_move_is_hung(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It moves where a file of its folder changes; how long it runs in all does not matter."""
    monkeypatch.setattr(elsewhere, "HANG_S", 1.0)
    still = subprocess.Popen(["sleep", "30"])
    moving = subprocess.Popen(["sh", "-c", f"for i in 1 2 3 4 5; do sleep 0.4; echo $i > {tmp_path}/note; done"])

    assert not elsewhere._watch(moving, tmp_path)
    assert elsewhere._watch(still, tmp_path)
    still.kill()
    still.wait()


def test_an_adapter_that_cannot_be_made(file: Path) -> None:
    results = judged(file, "DiesWhenMade")

    assert results.adapter is not None
    assert "before its first operation" in results.adapter.problem
    with pytest.raises(
        AdapterError, match="DiesWhenMade, before its first decode: the process ended with exit status 5"
    ):
        elsewhere.shapes_elsewhere(f"{file}:DiesWhenMade", "cpu")
    with pytest.raises(Unavailable, match="buy one"):
        judged(file, "Elsewhere")
    with pytest.raises(Unavailable, match="buy one"):
        elsewhere.shapes_elsewhere(f"{file}:Elsewhere", "cpu")


def test_an_adapter_that_cannot_be_made_says_what_it_raised(file: Path) -> None:
    raised = judged(file, "CannotBeMade").adapter
    with pytest.raises(AdapterError, match="making the adapter raised KeyError: 'weights'"):
        elsewhere.shapes_elsewhere(f"{file}:CannotBeMade", "cpu")
    Path(f"{file}.once").touch()
    twice = judged(file, "Right").adapter

    assert raised is not None
    assert raised.problem.startswith("making the adapter raised KeyError: 'weights' (some_target.py:")
    assert twice is not None
    assert "in a process of its own: target" in twice.problem
    assert "ImportError: only once" in twice.problem


def judging_becomes(what: str) -> Callable[..., list[str]]:
    def command(module: str, call: str, *arguments: str) -> list[str]:
        return command_of_ours(module, f"judge = {what}; {module}.{call}", *arguments)

    return command


def test_an_error_of_ours_is_not_the_death_of_the_target(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elsewhere, "command_of_ours", judging_becomes("None"))

    with pytest.raises(elsewhere.OwnError, match="an error of pagefault itself, not of the target") as caught:
        judged(file, "Right")

    assert "TypeError: 'NoneType' object is not callable" in str(caught.value)


def test_a_device_without_memory_is_no_error_of_ours(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raises = "lambda *_: (_ for _ in ()).throw(__import__('torch').OutOfMemoryError('CUDA out of memory'))"
    monkeypatch.setattr(elsewhere, "command_of_ours", judging_becomes(raises))

    assert judged(file, "Right").ended == "the device has no memory left: CUDA out of memory"


def test_shapes_of_real_models(file: Path) -> None:
    right = elsewhere.shapes_elsewhere(f"{file}:Right", "cpu")
    dies = elsewhere.shapes_elsewhere(f"{file}:Dies", "cpu")
    zeros = elsewhere.shapes_elsewhere(f"{file}:Zeros", "cpu")

    assert len(right) == 14
    assert set(right.values()) == {None}
    assert list(dies.values()) == ["the process died of SIGABRT"]
    assert all("READ-1" in str(message) for message in zeros.values())


def test_a_lost_device_ends_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    def lost() -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered\nmore")

    left: list[int] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lost)
    monkeypatch.setattr(os, "_exit", left.append)

    leave_if_lost("cuda", tmp_path)
    leave_if_lost("cpu", tmp_path)

    assert left == [LOST]
    assert (tmp_path / "lost").read_text() == "the device faulted: CUDA error: an illegal memory access was encountered"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Killed", "the process died of SIGKILL, as the system does when memory runs out"),
        ("Unnamed", "the process died of signal 40"),
        ("EndsLikeALostDevice", "the process ended with exit status 87"),
        ("EndsLikeAFullDisk", "the process ended with exit status 88"),
    ],
)
def test_every_way_to_die_has_words(file: Path, name: str, words: str) -> None:
    finding = judged(file, name).findings["CRASH-2"]

    assert finding.case.message == words
    assert len(finding.case.operations) == 1


def test_files_that_a_target_spoilt_or_removed_are_no_error_of_ours(file: Path) -> None:
    spoilt, removed = judged(file, "SpoilsTheFiles"), judged(file, "RemovesTheFolder")
    written = judged(file, "WritesIntoTheNote").adapter

    assert spoilt.ended == "the process ended with exit status 3"
    assert (list(spoilt.findings), spoilt.tally.adapter) == (["CRASH-2"], None)
    assert removed.ended == "the process died of SIGABRT"
    assert removed.tally.adapter is not None
    assert written is not None
    assert "what was noted of its calls cannot be read" in written.problem


def gone(pid: int) -> bool:
    """Whether a process ends within ten seconds; nobody may have fetched its status yet."""
    status = Path(f"/proc/{pid}/status")
    for _ in range(100):
        try:
            if "State:\tZ" in status.read_text():
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.1)
    return False


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="asks /proc")
def test_nothing_that_a_target_forked_is_left(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elsewhere, "START", tmp_path)
    results = judged(file, "Forks")
    pid = int((tmp_path / "forked").read_text())

    assert (results.findings, results.ended) == ({}, None)
    assert gone(pid)


def test_nobody_waits_for_a_thread_that_a_target_left(file: Path, tmp_path: Path) -> None:
    start = time.monotonic()
    results = judged(file, "LeavesAThread")
    done = ahead.judge_ahead(f"{file}:LeavesAThread", "cpu", 4, tmp_path)

    assert (results.findings, results.ended, results.adapter) == ({}, None, None)
    assert len(done.seeds) == 4
    assert time.monotonic() - start < 85


def test_output_and_folder_of_a_target_are_its_own(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A name is relative to the folder in which everything started, wherever the process is by now."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(elsewhere, "START", tmp_path)
    target = load("some_target.py:Talks")
    (tmp_path / "properties.py").write_text("raise SystemExit('this is not the package')")
    monkeypatch.chdir("/")
    talks = elsewhere.judge_elsewhere(target, "pagefault-dev", "cpu", Ledger())
    out, err = capfd.readouterr()

    assert (talks.findings, talks.ended, out) == ({}, None, "")
    assert "so far so good" in err


def test_a_full_disk_is_nobodys_finding(file: Path) -> None:
    with pytest.raises(UsageError, match=r"no room left in .*: make room, or set TMPDIR"):
        judged(file, "NoRoom")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a file that is always full")
def test_where_nothing_can_be_noted_judging_says_so(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / elsewhere.ORDER).symlink_to("/dev/full")
    monkeypatch.setattr(elsewhere, "_folder", lambda: nullcontext(str(tmp_path)))
    with pytest.raises(UsageError, match=r"no room left in .*: make room, or set TMPDIR"):
        judged(file, "Right")
    monkeypatch.undo()
    monkeypatch.setattr(elsewhere, "TemporaryDirectory", no_folder)
    with pytest.raises(UsageError, match=r"no temporary folder can be made .No usable temporary directory.*set TMPDIR"):
        judged(file, "Right")


def test_a_session_does_not_wait_again_for_what_could_not_be_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def full(name: str) -> elsewhere.Results:
        asked.append(name)
        raise UsageError("no room left: make some")

    session = plugin.Session.__new__(plugin.Session)
    session.results, session.failed, session.told_by = {}, {}, {}
    monkeypatch.setattr(session, "_judge", full)
    for _ in range(3):
        with pytest.raises(pytest.fail.Exception, match="mine was not judged: no room left: make some") as caught:
            chapter.results_of(session, "mine")
        assert caught.value.__context__ is None  # one line, and not the way to it

    assert asked == ["mine"]


def no_folder(**options: bool) -> None:
    raise FileNotFoundError(2, "No usable temporary directory found in ['/tmp', '/var/tmp', '/usr/tmp', '/']")


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="asks /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_no_process_is_left_when_judging_is_interrupted(tmp_path: Path, number: int) -> None:
    waiting = """
class Waits(Once):
    def act(self):
        signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 32))
        open("waits", "w").write(str(os.getpid()))
        time.sleep(300)
"""
    written(tmp_path, TARGETS + waiting)
    code = (
        "from properties.elsewhere import *; from properties.targets import load; "
        "judge_elsewhere(load('some_target.py:Waits'), 'pagefault-dev', 'cpu', Ledger())"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code], cwd=tmp_path, env={**os.environ, "PYTHONPATH": ROOT}, stderr=subprocess.DEVNULL
    )
    waits = tmp_path / "waits"
    for _ in range(600):
        if waits.exists() and waits.read_text():
            break
        time.sleep(0.1)
    parent.send_signal(number)
    parent.wait(30)
    assert gone(int(waits.read_text()))


def test_no_process_is_left_whose_parent_died_while_it_began(tmp_path: Path) -> None:
    """Nobody has told it yet that it is to die with its parent."""
    call = "os.getpid(); import time; time.sleep(2); open(sys.argv[1], 'w')"
    parent = (
        "import os, subprocess, sys, time; from properties.lifeline import command_of_ours; "
        f'subprocess.Popen(command_of_ours("properties.lifeline", "{call}", sys.argv[1])); '
        "time.sleep(float(sys.argv[2])); os._exit(0)"
    )
    for file, wait_s in (("dies", "0"), ("lives", "4")):
        command = [sys.executable, "-c", parent, str(tmp_path / file), wait_s]
        subprocess.run(command, env={**os.environ, "PYTHONPATH": ROOT}, check=True)

    assert [path.name for path in tmp_path.iterdir()] == ["lives"]
