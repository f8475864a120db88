"""Work in a fork: its answers, its death, its silence."""

from __future__ import annotations

import faulthandler
import os
import signal
import time

import pytest

from fuzz.isolate import BEAT, Emit, in_fork


def test_what_it_emits_comes_back_in_order() -> None:
    def work(emit: Emit) -> None:
        for number in range(3):
            emit(BEAT)
            emit(b"x" * number * 70_000)  # more than a pipe holds
        emit(b"end")

    ended = in_fork(work, limit_s=5)

    assert [len(frame) for frame in ended.frames] == [70_000, 140_000, 3]
    assert (ended.beats, ended.failed) == (4, False)  # the empty frame is a beat too


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGKILL])
def test_a_death_by_signal_is_told(number: signal.Signals) -> None:
    def work(emit: Emit) -> None:
        faulthandler.disable()  # pytest's would print the death that is wanted
        os.kill(os.getpid(), number)

    ended = in_fork(work, limit_s=5)

    assert ended.failed
    assert number.name in ended.died
    assert ended.signal == number


@pytest.mark.parametrize("status", [0, 1, 77])
def test_an_exit_is_a_death_whatever_its_status(status: int) -> None:
    ended = in_fork(lambda emit: os._exit(status), limit_s=5)

    assert ended.failed
    assert f"exit status {status}" in ended.died


def test_an_exception_is_a_death() -> None:
    def work(emit: Emit) -> None:
        raise SystemExit(0)

    assert in_fork(work, limit_s=5).failed


def test_silence_is_a_hang_and_slow_work_is_not() -> None:
    def slow(emit: Emit) -> None:
        for _ in range(6):
            time.sleep(0.1)
            emit(BEAT)

    assert in_fork(lambda emit: time.sleep(60), limit_s=0.3).hung
    assert not in_fork(slow, limit_s=0.4).failed


def test_a_deadline_ends_work_that_still_answers() -> None:
    def endless(emit: Emit) -> None:
        emit(b"best so far")
        while True:
            emit(BEAT)
            time.sleep(0.01)

    ended = in_fork(endless, limit_s=5, deadline=time.monotonic() + 0.3)

    assert (ended.late, ended.hung, ended.frames) == (True, False, [b"best so far"])


def test_a_process_that_closes_its_pipe_and_lives_on_is_ended() -> None:
    def work(emit: Emit) -> None:
        os.closerange(3, 256)
        time.sleep(60)

    started = time.monotonic()

    assert in_fork(work, limit_s=0.3).hung
    assert time.monotonic() - started < 10
