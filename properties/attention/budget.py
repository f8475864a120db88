"""How much an attention target is tried in `pytest properties`: its cases cost far more than those of bookkeeping."""

from collections.abc import Callable
from typing import Any

from hypothesis import settings
from msgspec.structs import replace

from properties.attention.generate import CASES_PER_TRACE
from properties.targets import Target, Unavailable

_NUM_SEEDS = {
    "cpu": {"pagefault-dev": 60, "pagefault-ci": 360, "pagefault-night": 10_000},
    "cuda": {"pagefault-dev": 300, "pagefault-ci": 5_600, "pagefault-night": 50_000},
}
"""Seeded traces. In CI, on a CPU: about 1,050 decodes, 230 prefills and 220 stores of our Triton kernels, interpreted, in
under three minutes. On a GPU: over 20,000 cases, whose cost is that of the oracle."""

_EXAMPLES = {"pagefault-dev": 10, "pagefault-ci": 20, "pagefault-night": 500}
"""Traces of the Hypothesis machine."""


def budget(profile_name: str, profile: settings, device: str = "cpu") -> tuple[settings, int]:
    """(Hypothesis settings, number of seeded traces) for an attention target under one of our profiles."""
    small = settings(profile, max_examples=_EXAMPLES[profile_name], stateful_step_count=CASES_PER_TRACE)
    return small, _NUM_SEEDS[device][profile_name]


def on_device(target: Target, device: str) -> Target:
    """The target restricted to one device, with its `capabilities_on_cuda` there if it has them.

    Its `make` raises `Unavailable` where it does not declare that device, or the device is not there.
    """

    def make(original: Callable[[], Any] = target.make) -> Any:
        adapter = original()
        declared = adapter.capabilities.devices
        if device not in declared:
            raise Unavailable(f"{target.name} runs on {', '.join(declared)}, not on {device}")
        if device == "cuda":
            import torch

            if not torch.cuda.is_available():
                raise Unavailable(
                    f"{target.name}: --device cuda needs a GPU, and torch {torch.__version__} sees none here"
                )
        on_this_device = getattr(adapter, f"capabilities_on_{device}", adapter.capabilities)
        adapter.capabilities = replace(on_this_device, devices=(device,))
        return adapter

    return Target(target.name, target.level, make)
