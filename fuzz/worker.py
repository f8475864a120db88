"""The child process that runs target code: `python -m fuzz.worker`, started by a supervisor.

It loads one target, says READY, and then obeys commands until its input ends. Targets print, crash, hang and exit:
their standard output is no part of the conversation, and every operation is in the journal before it is applied.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import os
import sys
import traceback
from pathlib import Path
from typing import NoReturn

from fuzz import jobs, messages, needs, versions
from fuzz.loop import Loop
from fuzz.making import signs_of_life
from properties.blame import said
from properties.contract import AdapterError, UsageError
from properties.lifeline import die_with_parent
from properties.specs import spec_of
from properties.targets import Target, Unavailable, load
from properties.trial import new_target


class Conversation:
    """The pipes to the supervisor."""

    def __init__(self, commands: int, replies: int) -> None:
        self._commands = os.fdopen(commands, "rb")
        self._replies = replies

    def say(self, message: messages.Message) -> None:
        """Send a message; blocks while the supervisor is busy. A supervisor that is gone ends this process."""
        data = messages.encode(message)
        try:
            while data:
                data = data[os.write(self._replies, data) :]
        except BrokenPipeError:
            os._exit(0)

    def listen(self) -> messages.Command | None:
        """The next command; None when the supervisor has no more."""
        line = self._commands.readline()
        return messages.decode_command(line) if line else None


def main() -> None:
    """Load the target and obey."""
    options = _options()
    talk = _take_pipes(options.commands, options.replies)
    die_with_parent()
    _be_first_to_go()
    faulthandler.enable()
    target = _load(options.target, options.device, talk)
    if options.campaign is None:
        _serve_jobs(target, talk)
    else:
        _serve_campaign(target, talk, options)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m fuzz.worker")
    parser.add_argument("--target", required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--commands", type=int, required=True)
    parser.add_argument("--replies", type=int, required=True)
    parser.add_argument("--campaign", type=Path, help="folder of the campaign; without it, a child for single jobs")
    parser.add_argument("--journal", type=Path)
    parser.add_argument("--corpus", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def _take_pipes(commands: int, replies: int) -> Conversation:
    for file in (commands, replies):
        os.set_inheritable(file, False)
    return Conversation(commands, replies)


def _be_first_to_go() -> None:
    """When memory runs out the system should end the target's process, not the supervisor or the user's desktop."""
    with contextlib.suppress(OSError):  # not Linux, or not allowed: the system chooses for itself
        Path("/proc/self/oom_score_adj").write_text("700")


def _load(name: str, device: str, talk: Conversation) -> Target:
    try:
        target = load(name)
        if target.level not in ("attention", "cache"):
            return target  # bookkeeping has no device
        from properties.attention.budget import on_device

        return on_device(target, device)
    except UsageError as error:
        lacks = needs.missing(name)  # a module of ours that cannot be imported without torch
        why = "unavailable" if lacks or isinstance(error, Unavailable) else "usage"
        _give_up(talk, why, f"{name}: {lacks}" if lacks else str(error))
    except BaseException as error:  # whatever a module raises while it is imported
        _give_up(talk, "usage", f"target {name!r} cannot be imported: {said(error)}. Mend it first")


def _give_up(talk: Conversation, why: str, message: str) -> NoReturn:
    talk.say(messages.Unusable(why=why, message=" ".join(message.split())))
    sys.stdout.flush()
    os._exit(0)


def _serve_jobs(target: Target, talk: Conversation) -> None:
    """Single jobs: the target is imported here, and used in forks only."""
    talk.say(messages.Ready(level=target.level, versions=versions.versions_of(target.name)))
    while (command := talk.listen()) is not None:
        try:
            talk.say(jobs.perform(target, command))
        except UsageError as error:
            talk.say(messages.Unusable(why="usage", message=str(error)))
        except Exception:
            _give_up(talk, "internal", traceback.format_exc(limit=-4))


def _serve_campaign(target: Target, talk: Conversation, options: argparse.Namespace) -> None:
    try:
        spec = spec_of(target.level)
        folders = (options.campaign, options.journal, options.corpus)
        with signs_of_life(lambda: talk.say(messages.Making(limit_s=spec.limit_s or 0.0))):
            adapter = new_target(target.make)
        loop = Loop(target, spec, talk.say, *folders, options.seed, adapter, fragile=options.device == "cuda")
    except Unavailable as reason:
        _give_up(talk, "unavailable", str(reason))
    except AdapterError as error:
        _give_up(talk, "adapter", str(error))
    except UsageError as error:
        _give_up(talk, "usage", str(error))
    except OSError as error:
        _give_up(talk, "disk", error.strerror or str(error))
    talk.say(loop.ready())
    while (command := talk.listen()) is not None:
        try:
            loop.obey(command)
        except OSError as error:
            _give_up(talk, "disk", error.strerror or str(error))
        except Exception:
            _give_up(talk, "internal", traceback.format_exc(limit=-4))


if __name__ == "__main__":
    main()
