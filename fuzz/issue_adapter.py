"""A case as a bug report for any target: its steps as plain calls of the adapter, what was expected and what was seen."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from fuzz.as_test import as_python, as_test
from fuzz.story import breaches_before
from properties.blocks import operations as ops
from properties.case import Case
from properties.contract import CLAUSES, clause
from properties.report import steps_in_words
from properties.targets import BUILTIN

_REPORT = """**{title}: "{clause}" does not hold**

Steps, with block and slot numbers as reported (slot = block * block size + offset):

{steps}

Expected: {clause}

Seen: {message}

{words}

```python
{code}
```

Versions: {versions}
"""


def report_text(case: Case, title: str, words: str, code: Sequence[str], versions: Sequence[str]) -> str:
    """The text of a report around its script."""
    first = "".join(
        f"\n\nBefore that, at step {breach.step} ({CLAUSES[breach.property].text}): {breach.message}"
        for breach in breaches_before(case)[:1]
    )
    return _REPORT.format(
        title=title,
        clause=clause(case.property).text,
        steps="\n".join(steps_in_words(case.operations, outcomes=case.outcomes)),
        message=case.message + first,
        words=words,
        code="\n".join(code),
        versions=", ".join(versions) or "not recorded",
    )


def adapter_issue(case: Case, target: str) -> str:
    """The text of a report whose script calls the adapter `target`."""
    versions = [f"{name} {version}" for name, version in case.versions.items()]
    steps = {"blocks": _blocks_steps, "engine": _engine_steps}.get(case.level)
    if steps is None:  # tensors: the referee's own batches and pools are part of the steps
        words = f"Reproducer, a pytest file (needs pagefault, and the adapter {target}):"
        return report_text(case, case.target, words, as_test(case, target).rstrip().splitlines(), versions)
    words = (
        f"Reproducer: plain calls of the adapter {target}, which calls the project. Each step prints what came of it."
    )
    code = [*_opening(case, target), "", *steps(case.operations)]
    return report_text(case, case.target, words, code, versions)


# ---- the script ----------------------------------------------------------------------------------------------------

_HELPERS = '''

@contextlib.contextmanager
def step(words):
    """Say what is done; then what it raised, if anything, and which slots the sequences have."""
    print(words)
    try:
        yield
    except Exception as error:
        print(f"    raised {{type(error).__name__}}: {{error}}")
    for name in {names}:
        try:
            print(f"    slots of {{name}}: {{list(target.slots(name))}}")
        except Exception:
            pass  # it is not live
    for look in ("free_blocks", "cached_blocks"):
        if hasattr(target, look):
            print(f"    {{look}}: {{sorted(getattr(target, look)())}}")

'''


def _opening(case: Case, target: str) -> list[str]:
    lines = ["import contextlib", *_import(target)]
    lines.append(f"from {type(case.geometry).__module__} import {type(case.geometry).__name__}")
    names = sorted({name for op in case.operations for field in ("name", "child") if (name := getattr(op, field, ""))})
    lines += _HELPERS.format(names=names).rstrip().splitlines()
    return [*lines, "", "", "target = make()", f"config = {as_python(case.geometry)}", "target.open(config)"]


def _import(target: str) -> Iterator[str]:
    """Lines after which `make()` gives a fresh adapter."""
    where, _, attribute = (BUILTIN[target].where if target in BUILTIN else target).rpartition(":")
    if not where or not all(part.isidentifier() for part in attribute.split(".")):
        yield from ("from properties.targets import load", "", f"make = load({target!r}).make")
        return
    if where.endswith(".py"):
        yield from ("import sys", "", f"sys.path.insert(0, {str(Path(where).parent)!r})")
        where = Path(where).stem
    first, dot, rest = attribute.partition(".")
    yield f"from {where} import {first}" + ("" if dot else " as make")
    if dot:
        yield f"make = {first}.{rest}"


Call = Callable[[Any], str]


def _salt(op: Any) -> str:
    return f", salt={op.salt!r}" if getattr(op, "salt", None) is not None else ""


_BLOCKS_CALLS: dict[str, Call] = {
    "admit": lambda op: f"print('    cached tokens:', target.admit({op.name!r}, {list(op.tokens)}{_salt(op)}))",
    "append": lambda op: f"target.append({op.name!r}, {list(op.tokens)})",
    "free": lambda op: f"target.free({op.name!r})",
    "free_again": lambda op: f"target.free({op.name!r})",
    "fork": lambda op: f"target.fork({op.name!r}, {op.child!r})",
    "truncate": lambda op: f"target.truncate({op.name!r}, {op.length})",
    "swap_out": lambda op: f"target.swap_out({op.name!r})",
    "swap_in": lambda op: f"target.swap_in({op.name!r})",
    "lookup": lambda op: f"print('    cached tokens:', target.lookup({list(op.tokens)}{_salt(op)}))",
    "allocate": lambda op: f"print('    cached tokens:', target.allocate({op.name!r}, {list(op.tokens)}{_salt(op)}))",
    "computed": lambda op: f"target.computed({op.name!r}, {op.upto})",
    "preempt": lambda op: f"getattr(target, 'preempt', target.free)({op.name!r})",
}


_FILL = (
    "    kept = len(target.capabilities.reserved_blocks) + target.capabilities.watermark_blocks",
    "    room = (config.num_blocks - kept) * config.block_size",
    "    target.admit('all', list(range(1000, 1000 + room)))  # the whole pool, by tokens that were never seen",
    "    target.free('all')",
)


def _call(calls: dict[str, Call], op: Any) -> str:
    """The call of an operation; one that has none here is left to the reader, and said so when the script runs."""
    return calls[op.kind](op) if op.kind in calls else f"print('    to be done by hand:', {str(op)!r})"


def _blocks_steps(operations: Sequence[Any]) -> Iterator[str]:
    """One `with step(...)` for each operation; composed ones as the calls that they are made of."""
    held: dict[str, tuple[int, ...]] = {}
    live: list[str] = []
    for number, op in enumerate(operations, 1):
        yield f"with step({_words(number, op)!r}):"
        if isinstance(op, ops.Drain):
            yield from (f"    target.free({name!r})" for name in live)
            yield from _FILL
        elif isinstance(op, ops.Resume):
            yield f"    print('    cached tokens:', target.admit({op.name!r}, {list(held.get(op.name, ()))}))"
        else:
            yield f"    {_call(_BLOCKS_CALLS, op)}"
        _follow(op, held, live)


def _follow(op: Any, held: dict[str, tuple[int, ...]], live: list[str]) -> None:
    """Keep the tokens of each sequence, for `resume`, and who is live, for `drain`."""
    name = getattr(op, "name", "")
    if isinstance(op, ops.Admit | ops.Allocate):
        held[name] = tuple(op.tokens)
    elif isinstance(op, ops.Append):
        held[name] = held.get(name, ()) + tuple(op.tokens)
    elif isinstance(op, ops.Truncate):
        held[name] = held.get(name, ())[: op.length]
    elif isinstance(op, ops.Fork):
        held[op.child] = held.get(name, ())
    if isinstance(op, ops.Admit | ops.Allocate | ops.Resume | ops.Fork):
        live.append(op.child if isinstance(op, ops.Fork) else name)
    elif isinstance(op, ops.Free | ops.Preempt) and name in live:
        live.remove(name)
    elif isinstance(op, ops.Drain):
        live.clear()


def _words(number: int, op: Any) -> str:
    return f"{number}  {steps_in_words([op])[0].split(maxsplit=1)[1]}"


_ENGINE_HELPERS = '''\
replies, done, flying = {}, {}, []


def submit(name, tokens, reply, **salt):
    replies[name], done[name] = reply, 0
    target.submit(name, tokens, len(reply), **salt)


def fork(parent, child, reply):
    replies[child], done[child] = reply, 0
    target.fork(parent, child, len(reply))


def launch():
    flying.append(target.step())
    print("    rows (name, start, stop, samples):", [tuple(row) for row in flying[-1].rows])


def finish(index=0):
    """The model's part: the next token of its reply for each row that samples."""
    step = flying.pop(index)
    tokens = []
    for row in step.rows:
        if row.samples:
            tokens.append(replies[row.name][min(done[row.name], len(replies[row.name]) - 1)])
            done[row.name] += 1
    target.finish(step, tokens)


def finish_all():
    while flying:
        finish()

'''

_ENGINE_CALLS: dict[str, Call] = {
    "submit": lambda op: f"submit({op.name!r}, {list(op.tokens)}, {list(op.reply)}{_salt(op)})",
    "fork_request": lambda op: f"fork({op.name!r}, {op.child!r}, {list(op.reply)})",
    "resubmit": lambda op: f"target.submit({op.name!r}, [0], 1)",
    "step": lambda op: "launch()" if op.hold else "launch(); finish_all()",
    "finish": lambda op: f"finish({op.index or ''})",
    "cancel": lambda op: f"target.cancel({op.name!r})",
    "idle": lambda op: (
        "finish_all()\n    for _ in range(1000):\n        if not target.live():\n            break\n"
        "        launch(); finish_all()\n    print('    live:', list(target.live()))"
    ),
}


def _engine_steps(operations: Sequence[Any]) -> Iterator[str]:
    yield from _ENGINE_HELPERS.splitlines()
    for number, op in enumerate(operations, 1):
        yield f"with step({_words(number, op)!r}):"
        yield f"    {_call(_ENGINE_CALLS, op)}"
