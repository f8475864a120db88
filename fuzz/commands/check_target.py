"""`pagefault check-target`: is the adapter itself sound?"""

from __future__ import annotations

from typing import Annotated

import typer

from fuzz import child, messages, values
from fuzz.case_in_fork import CRASH, MADE_WRONG
from fuzz.check_progress import told
from fuzz.output import CallLimit, Json, emit
from properties.contract import UsageError
from properties.trial import MUST_RETURN


def command(
    target: Annotated[str, typer.Argument(help="Target: a name, module:object or path.py:object.")],
    time: Annotated[str, typer.Option(help="How long to use it.")] = "3s",
    device: Annotated[str, typer.Option(help="cpu or cuda, for targets that have tensors.")] = "cpu",
    call_limit: CallLimit = values.DEFAULT_LIMIT,
    json_: Json = False,
) -> int:
    """Check an adapter: legal calls, declarations, determinism, reset, speed. Exit 2 with what to fix."""
    seconds = values.seconds(time, "--time", longest_s=3600.0)
    limit_s = values.call_limit(call_limit)
    checked, words = _check(target, values.choice(device, "--device", ("cpu", "cuda")), seconds, limit_s)
    code = 2 if checked.problems else 0
    result = {
        "target": target,
        "exit_code": code,
        "problems": [{"problem": problem, "remedy": remedy} for problem, remedy in checked.problems],
        "notes": list(checked.notes),
        "output": words,
    }
    emit(result, as_json=json_, text="\n".join(_lines(target, checked, words)))
    return code


def _check(target: str, device: str, seconds: float, limit_s: float) -> tuple[messages.Checked, str]:
    process = child.start(target, device)
    try:
        problem = child.try_to_make(process, limit_s)
        if problem.startswith(MADE_WRONG):
            return messages.Checked(problems=((problem, MUST_RETURN),)), process.last_words()
        if problem:
            raise UsageError(problem)
        try:
            with told(target) as progress:
                command = messages.CheckTarget(limit_s=limit_s, seconds=seconds, progress=progress)
                reply = child.ask(process, command, seconds + 20 * limit_s + 60)
        except child.Ended as how:
            raise UsageError(f"{target}: {how}. Its last output: {process.last_words()[-300:] or 'none'}") from None
        if not isinstance(reply, messages.Checked):
            raise UsageError(getattr(reply, "message", None) or f"unexpected answer {reply}")
        return reply, process.last_words()
    finally:
        process.stop()


def _lines(target: str, checked: messages.Checked, words: str) -> list[str]:
    lines = list(checked.notes)
    for problem, remedy in checked.problems:
        lines += [f"ADAPTER: {problem}", f"    fix: {remedy}"]
    if words:
        lines.append(f"it prints (harmless; pagefault does not read it): {words[-400:]}")
    verdict = "the adapter is sound"
    if any(note.startswith(f"{CRASH}:") for note in checked.notes):
        verdict = f"nothing wrong was seen in the adapter; what it drives breaks {CRASH}, a finding"
    if checked.problems:
        verdict = f"{len(checked.problems)} problem(s): mend the adapter first"
    return [*lines, f"{target}: {verdict}"]
