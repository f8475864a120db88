"""Runs a target's native code in a child process, so that a crash in it is a finding and not the end of the suite.

The child is this module run as a script: `python -m properties.attention.targets.child module:Class`. Both sides speak
length-prefixed pickles over the child's standard input and output; pools and batches travel as dense copies.
"""

import importlib
import os
import pickle
import struct
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from typing import IO, Any

from properties.attention.target import Batch, Output, Pool
from properties.lifeline import signal_name


class ChildDied(RuntimeError):
    """The child process ended in the middle of a call: the signal or exit status is in the message."""


class Child:
    """One child process that holds one object; `call` runs a method of it there. Started at the first call."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.process: subprocess.Popen[bytes] | None = None

    def call(self, method: str, *arguments: Any) -> Any:
        """The method's result. Re-raises what it raises; raises ChildDied if the process ends, and starts anew next time."""
        process = self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            _send(process.stdin, (method, arguments))
            kind, value = _receive(process.stdout)
        except (EOFError, BrokenPipeError):
            status = self._end(process)
            what = f"signal {signal_name(-status) or -status}" if status < 0 else f"exit status {status}"
            raise ChildDied(f"the process of {self.where} died in {method}: {what}") from None
        if kind == "raised":
            raise value
        return value

    def close(self) -> None:
        """Ends the child."""
        if self.process is not None:
            self.process.kill()
            self._end(self.process)

    def _end(self, process: subprocess.Popen[bytes]) -> int:
        """The exit status of a process that is ending; its pipes are closed."""
        self.process = None
        for pipe in (process.stdin, process.stdout):
            with suppress(BrokenPipeError):  # what was not sent yet is lost with the process
                if pipe is not None:
                    pipe.close()
        return process.wait()

    def _running(self) -> subprocess.Popen[bytes]:
        if self.process is None:
            self.process = subprocess.Popen(
                [sys.executable, "-m", __name__, self.where],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            )
        return self.process

    def __del__(self) -> None:
        self.close()


def dense_pool(pool: Pool) -> Pool:
    """A dense copy of a pool: a view into a huge reservation must not travel whole."""
    return Pool(pool.key_cache.contiguous().clone(), pool.value_cache.contiguous().clone(), pool.layout)


def dense_batch(batch: Batch) -> Batch:
    """The batch with dense queries."""
    return replace(batch, q=batch.q.contiguous().clone())


class ReadsInChild:
    """Mix-in for a target whose reads run in `self.child`, by methods of the same names."""

    child: Child

    def decode(self, pool: Pool, batch: Batch) -> Output:
        """One query per sequence, in the child."""
        return Output(*self.child.call("decode", dense_pool(pool), dense_batch(batch)))

    def prefill(self, pool: Pool, batch: Batch) -> Output:
        """Causal attention, in the child."""
        return Output(*self.child.call("prefill", dense_pool(pool), dense_batch(batch)))


def _send(stream: IO[bytes], message: Any) -> None:
    data = pickle.dumps(message)
    stream.write(struct.pack("<Q", len(data)))
    stream.write(data)
    stream.flush()


def _receive(stream: IO[bytes]) -> Any:
    header = stream.read(8)
    if len(header) < 8:
        raise EOFError
    return pickle.loads(stream.read(struct.unpack("<Q", header)[0]))


def serve(where: str, requests: IO[bytes], answers: IO[bytes]) -> None:
    """The child's loop: makes the object, runs the methods it is told to, until its input ends."""
    module, _, name = where.partition(":")
    served = getattr(importlib.import_module(module), name)()
    while True:
        try:
            method, arguments = _receive(requests)
        except EOFError:
            return
        try:
            answer = ("returned", getattr(served, method)(*arguments))
        except Exception as error:
            answer = ("raised", error)
        _send(answers, answer)


if __name__ == "__main__":
    stdout, sys.stdout = sys.stdout, sys.stderr  # what native code prints must not mix with the answers
    serve(sys.argv[1], sys.stdin.buffer, stdout.buffer)
