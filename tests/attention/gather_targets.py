"""Targets for judging in other processes: a file of their own, with some that both tests need."""

from pathlib import Path

COMMON = """
import os, shutil, signal, sys, threading, time
from properties.attention.target import Output
from properties.attention.targets.backends import OurGather
from properties.targets import Unavailable

class Right(OurGather):
    pass

class Zeros(OurGather):
    def decode(self, pool, batch):
        answer = super().decode(pool, batch)
        return Output(answer.out * 0, answer.lse)

class Dies(OurGather):
    # As soon as a context is long.
    def decode(self, pool, batch):
        if max(batch.context_lens) > 12:
            os.abort()
        return super().decode(pool, batch)
"""


def written(folder: Path, targets: str) -> Path:
    """A file in the folder with the common targets and those given."""
    path = folder / "some_target.py"
    path.write_text(COMMON + targets)
    return path
