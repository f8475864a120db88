"""The templates of `new-target`: what they suggest is legal, and what their blanks ask for makes a sound adapter."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fuzz.commands.new_target import TEMPLATES
from properties.drive import drive
from properties.specs import spec_of
from properties.targets import load
from tests.fuzz.helpers import pagefault

PLAIN = {
    "store": """at = slot_mapping >= 0
        block, offset = slot_mapping[at] // pool.key_cache.shape[1], slot_mapping[at] % pool.key_cache.shape[1]
        pool.key_cache[block, offset], pool.value_cache[block, offset] = keys[at], values[at]""",
    "decode": "return self.prefill(pool, batch)",
    "prefill": """out, begin = torch.zeros_like(batch.q), 0
        for table, count, length in zip(batch.block_tables, batch.query_lens, batch.context_lens, strict=True):
            if length:
                blocks = torch.tensor(table[: -(-length // batch.block_size)], device=batch.q.device)
                ratio = batch.q.shape[1] // batch.num_kv_heads
                k, v = (
                    cache[blocks].flatten(0, 1)[:length].float().repeat_interleave(ratio, 1).transpose(0, 1)
                    for cache in (pool.key_cache, pool.value_cache)
                )
                q = batch.q[begin : begin + count].float().transpose(0, 1)
                seen = torch.ones(count, length, dtype=torch.bool, device=q.device).tril(length - count)
                weights = (batch.scale * q @ k.mT).masked_fill(~seen, -torch.inf).softmax(-1)
                out[begin : begin + count] = (weights @ v).transpose(0, 1).to(out.dtype)
            begin += count
        return Output(out)""",
}
"""Blank -> what a user may write there, in plain torch."""
KINDS = sorted(path.stem for path in TEMPLATES.glob("*.py") if not path.stem.startswith("_"))


def _fill(path: Path, answers: dict[str, str]) -> None:
    def answer(blank: re.Match[str]) -> str:
        return answers[blank[1]]

    text, count = re.subn(r'raise NotImplementedError\("(\w+): .*"\)', answer, path.read_text())
    assert count == len(answers)
    path.write_text(f"import torch\n{text}")


@pytest.mark.parametrize("kind", KINDS)
def test_every_suggested_capability_is_one(kind: str) -> None:
    text, count = re.subn(
        r"^        # (\w+=.*)$", r"        \1", (TEMPLATES / f"{kind}.py").read_text(), flags=re.MULTILINE
    )
    made: dict[str, type] = {"__name__": "mine"}  # type: ignore[dict-item]
    exec(compile(text, kind, "exec"), made)

    assert count
    assert made["Target"].level == kind


def test_the_attention_template_filled_in_is_a_sound_adapter_and_a_slip_in_it_is_found(tmp_path: Path) -> None:
    for name in ("mine.py", "slip.py"):
        written = pagefault("new-target", "attention", name, cwd=tmp_path)
        assert f"pagefault check-target {name}:Target" in written.out
    _fill(tmp_path / "mine.py", PLAIN)
    _fill(tmp_path / "slip.py", PLAIN | {"prefill": PLAIN["prefill"].replace("tril(length - count)", "tril()")})
    checked = pagefault("check-target", "mine.py:Target", "--time", "1s", cwd=tmp_path)
    broken = {}
    for name in ("mine.py", "slip.py"):
        target = load(f"{tmp_path / name}:Target")
        verdicts = [drive(spec_of("attention"), target.make, seed)[1] for seed in range(8)]
        assert not any(verdict.adapter for verdict in verdicts)
        broken[name] = {breach.property for verdict in verdicts for breach in verdict.breaches}

    assert checked.code == 0, checked.out
    assert broken["mine.py"] == set()
    assert "READ-1" in broken["slip.py"]
