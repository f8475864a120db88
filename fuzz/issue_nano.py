"""A case of nano-vllm as a bug report: a script for its checkout, with nothing of pagefault in it."""

from __future__ import annotations

from typing import Any

from properties.case import Case
from properties.engine.operations import DriveToIdle, Finish, Launch, Submit

_SCRIPT = """# Run in a checkout of nano-vllm at the commit concerned. Needs numpy and xxhash, neither a GPU nor weights.
import inspect, sys, types

package = types.ModuleType("nanovllm")
package.__path__ = ["nanovllm"]  # without its __init__, which imports the model
sys.modules["nanovllm"] = package
sys.modules["transformers"] = types.SimpleNamespace(AutoConfig=object)
from nanovllm.engine.scheduler import Scheduler
from nanovllm.engine.sequence import Sequence
from nanovllm.sampling_params import SamplingParams

SIZE = Sequence.block_size = {block_size}
scheduler = Scheduler(types.SimpleNamespace(
    max_num_seqs={max_rows}, max_num_batched_tokens={budget}, max_model_len=10**6, eos=-1,
    kvcache_block_size=SIZE, num_kvcache_blocks={num_blocks}))
names, replies, pending = {{}}, {{}}, []
held = {{}}  # slot -> the tokens whose KV is in it: the last one and all before it


def submit(name, tokens, reply):
    seq = Sequence(tokens, SamplingParams(max_tokens=len(reply), ignore_eos=True))
    names[id(seq)], replies[name] = name, reply
    scheduler.add(seq)


def launch():
    seqs, is_prefill = scheduler.schedule()
    rows = []
    for seq in seqs:
        start = seq.num_cached_tokens if is_prefill else len(seq) - 1
        stop = start + seq.num_scheduled_tokens if hasattr(seq, "num_scheduled_tokens") else len(seq)
        rows.append((names[id(seq)], seq, start, stop))
    written = set()
    for name, seq, start, stop in rows:
        print(f"{{name}} computes positions [{{start}}, {{stop}}) with blocks {{seq.block_table}}")
        assert start < min(stop, len(seq)), f"{{name}} has no token left to compute"
        for p in range(start, stop):
            assert slot(seq, p) not in written, f"slot {{slot(seq, p)}} is written twice in this step"
            written.add(slot(seq, p))
            held[slot(seq, p)] = seq.token_ids[: p + 1]
    for name, seq, start, stop in rows:
        for p in range(stop):
            assert held.get(slot(seq, p)) == seq.token_ids[: p + 1], (
                f"{{name}} reads its position {{p}} in slot {{slot(seq, p)}}, which holds the KV of "
                f"{{held.get(slot(seq, p))}}, and not of {{seq.token_ids[: p + 1]}}")
    pending.append((rows, is_prefill))


def slot(seq, position):
    return seq.block_table[position // SIZE] * SIZE + position % SIZE


def finish():
    rows, is_prefill = pending.pop(0)
    tokens = [replies[name][min(seq.num_completion_tokens, len(replies[name]) - 1)] for name, seq, _, _ in rows]
    phase = [is_prefill] if "is_prefill" in inspect.signature(scheduler.postprocess).parameters else []
    scheduler.postprocess([seq for _, seq, _, _ in rows], tokens, *phase)


{steps}
"""


def nano_script(case: Case) -> str:
    """The reproducer of a case of `nano-vllm:PATH`."""
    geometry = case.geometry
    return _SCRIPT.format(
        block_size=geometry.block_size,
        max_rows=geometry.max_rows,
        budget=geometry.max_tokens_per_step,
        num_blocks=geometry.num_blocks,
        steps="\n".join(_step(operation) for operation in case.operations),
    )


def _step(operation: Any) -> str:
    if isinstance(operation, Submit):
        return f"submit({operation.name!r}, {list(operation.tokens)}, {list(operation.reply)})"
    if isinstance(operation, Launch):
        return "launch()" if operation.hold else "launch(); finish()"
    if isinstance(operation, Finish):
        return "finish()"
    if isinstance(operation, DriveToIdle):
        return "while scheduler.waiting or scheduler.running:\n    launch(); finish()"
    return f"# {operation}"
