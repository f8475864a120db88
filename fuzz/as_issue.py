"""A case as a bug report for the project concerned: straight calls on its own objects, nothing of pagefault in it.

A target whose project's calls are not known here gets a report with the calls of its adapter (`issue_adapter`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from fuzz.issue_adapter import adapter_issue, report_text
from fuzz.issue_nano import nano_script
from fuzz.whereabouts import check_level
from properties.blocks import operations as ops
from properties.case import Case
from properties.contract import UsageError


@dataclass
class Script:
    """Lines of a reproducer, and what each sequence is called in the project."""

    case: Case
    lines: list[str] = field(default_factory=list)
    lengths: dict[str, int] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)
    parked: dict[str, tuple[int, ...]] = field(default_factory=dict)
    tokens: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def say(self, line: str, comment: str = "") -> None:
        """A line of the script."""
        self.lines.append(f"{line}  # {comment}" if comment else line)


Renderer = Callable[[Script], None]


def issue_of(case: Case, target: str | None = None) -> str:
    """The text of a bug report. `target` is the case's with an absolute path, where it has one.

    Its script imports nothing but the project where the project's own calls are known here; else it calls the adapter.
    Raises `UsageError` for a case whose steps have no meaning.
    """
    check_level(case)
    base = case.target.partition(":")[0]  # nano-vllm:PATH
    if base not in _RENDERERS:
        return adapter_issue(case, target or case.target)
    script = Script(case)
    try:
        _RENDERERS[base](script)
    except (KeyError, ValueError) as error:
        raise UsageError(
            f"a step has no meaning ({error!r}: not a live sequence): was the file edited? `pagefault repro` says which step"
        ) from None
    own = [f"{name} {version}" for name, version in case.versions.items() if name != "pagefault"]
    words = "Reproducer (imports nothing but the project):"
    return report_text(case, _TITLES[base], words, script.lines, own)


_TITLES = {
    "torch-flex": "torch.nn.attention.experimental._paged_attention.PagedAttention",
    "mini-vllm": "mini_vllm.block_manager.BlockSpaceManager",
    "tokasaurus": "tokasaurus.manager.allocator.BlockAllocator",
    "nano-vllm": "nanovllm.engine.scheduler.Scheduler",
}


def _common(script: Script, op: Any) -> Any:
    """Turn the composed operations into plain ones: preempt is free, resume is admit with all tokens."""
    if isinstance(op, ops.Preempt):
        script.parked[op.name] = script.tokens[op.name]
        return ops.Free(op.name)
    if isinstance(op, ops.Resume):
        return ops.Admit(op.name, script.parked.pop(op.name))
    if isinstance(op, ops.Admit):
        script.tokens[op.name] = tuple(op.tokens)
    if isinstance(op, ops.Append):
        script.tokens[op.name] += tuple(op.tokens)
    return op


def _torch_flex(script: Script) -> None:
    geometry = script.case.geometry
    script.say("import torch")
    script.say("from torch.nn.attention.experimental._paged_attention import PagedAttention\n")
    sizes = f"n_pages={geometry.num_blocks}, page_size={geometry.block_size}, max_batch_size=4"
    script.say(f'paged = PagedAttention({sizes}, device="cpu")')
    for op in script.case.operations:
        _torch_flex_step(script, _common(script, op))
    script.say("\nfor row in range(4):")
    script.say("    owned = sorted(page for page in paged.page_table[row].tolist() if page >= 0)")
    script.say("    mapped = (paged.physical_to_logical[row] >= 0).nonzero().flatten().tolist()")
    script.say('    print(f"batch {row} owns pages {owned}; the map that attention reads has {mapped}")')
    script.say('    assert mapped == owned, f"batch {row} reads pages that it does not own"')


def _torch_flex_step(script: Script, op: Any) -> None:
    rows = script.rows
    if isinstance(op, ops.Admit):
        rows[op.name] = min(set(range(4)) - set(rows.values()))
        script.lengths[op.name] = len(op.tokens)
    elif isinstance(op, ops.Append):
        script.lengths[op.name] += len(op.tokens)
    if isinstance(op, ops.Admit | ops.Append):
        call = f"paged.reserve(torch.tensor([{rows[op.name]}]), torch.tensor([{script.lengths[op.name]}]))"
        script.say(call, f"sequence {op.name}: {script.lengths[op.name]} tokens")
    elif isinstance(op, ops.Free):
        script.say(f"paged.erase(torch.tensor([{rows.pop(op.name)}]))", f"sequence {op.name} ends")
    elif isinstance(op, ops.Drain):
        for name in list(rows):
            _torch_flex_step(script, ops.Free(name))


def _mini_vllm(script: Script) -> None:
    geometry = script.case.geometry
    script.say("from mini_vllm.block_manager import BlockAllocator, BlockSpaceManager\n")
    script.say(f'allocator = BlockAllocator({geometry.num_blocks}, {geometry.block_size}, device="cpu")')
    script.say("manager = BlockSpaceManager(allocator, prefix_cache=True)\n")
    script.say("def show():")
    script.say("    free = [block.block_num for block in allocator.free_blocks]")
    script.say("    cached = {block.block_num: block.ref_count for block in manager.cached_blocks.values()}")
    script.say('    print("  free", free, "cached block -> reference count", cached)\n')
    for op in script.case.operations:
        _mini_vllm_step(script, _common(script, op))


def _mini_vllm_step(script: Script, op: Any) -> None:
    if isinstance(op, ops.Admit):
        tokens = list(op.tokens)
        script.lengths[op.name] = len(tokens)
        script.say(f"print('can allocate {op.name}:', manager.can_allocate_request({tokens}))")
        script.say(f"manager.allocate_request({op.name!r}, {tokens})")
        script.say(f"print('table of {op.name}:', manager.get_block_table({op.name!r})); show()")
    elif isinstance(op, ops.Append):
        script.say(f"manager.append_slot({op.name!r}, {script.lengths[op.name]})", "before the next token is written")
        script.say(f"print('table of {op.name}:', manager.get_block_table({op.name!r})); show()")
        script.lengths[op.name] += len(op.tokens)
    elif isinstance(op, ops.Free | ops.FreeAgain):
        script.lengths.pop(op.name, None)
        script.say(f"manager.free({op.name!r}); show()")
    elif isinstance(op, ops.Drain):
        for name in list(script.lengths):
            _mini_vllm_step(script, ops.Free(name))
        fill = list(range(1000, 1000 + script.case.geometry.num_blocks * script.case.geometry.block_size))
        script.say(f"print('can allocate everything:', manager.can_allocate_request({fill}))")
        script.say(f"manager.allocate_request('all', {fill})")


def _tokasaurus(script: Script) -> None:
    geometry = script.case.geometry
    script.say("from tokasaurus.manager.allocator import BlockAllocator\n")
    script.say(f"allocator = BlockAllocator({geometry.num_blocks}, {geometry.block_size})")
    script.say("tables, tokens = {}, {}\n")
    for op in script.case.operations:
        _tokasaurus_step(script, _common(script, op))


def _tokasaurus_step(script: Script, op: Any) -> None:
    name = getattr(op, "name", "")
    if isinstance(op, ops.Admit):
        script.lengths[name] = len(op.tokens)
        script.say(f"tokens[{name!r}] = {list(op.tokens)}")
        script.say(f"tables[{name!r}], cached = allocator.allocate_with_prefix_match({name!r}, tokens[{name!r}])")
        script.say(f"print({name!r}, tables[{name!r}], 'cached tokens', cached)")
    elif isinstance(op, ops.Append):
        script.lengths[name] += len(op.tokens)
        length = script.lengths[name]
        script.say(f"tables[{name!r}] += allocator.allocate_up_to_length({name!r}, tables[{name!r}], {length})")
        script.say(f"tokens[{name!r}] += {list(op.tokens)}; print({name!r}, tables[{name!r}])")
    elif isinstance(op, ops.Free):
        script.lengths.pop(name, None)
        script.say(f"allocator.free_and_update({name!r}, tables.pop({name!r}), tokens.pop({name!r}))")
    elif isinstance(op, ops.Lookup):
        script.say(f"print('cached blocks of the prefix:', allocator.prefix_match({list(op.tokens)}))")
    elif isinstance(op, ops.Drain):
        for live in list(script.lengths):
            _tokasaurus_step(script, ops.Free(live))


def _nano_vllm(script: Script) -> None:
    script.lines = nano_script(script.case).rstrip().splitlines()


_RENDERERS: dict[str, Renderer] = {
    "torch-flex": _torch_flex,
    "mini-vllm": _mini_vllm,
    "tokasaurus": _tokasaurus,
    "nano-vllm": _nano_vllm,
}
