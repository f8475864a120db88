"""What a case was found with: versions of pagefault, Python and the distribution under test."""

from __future__ import annotations

import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from properties.ledger import is_ours

DISTRIBUTIONS = {
    "torch-flex": "torch",
    "torch-flex-attention": "torch",
    "torch-varlen": "torch",
    "plain-torch": "torch",
    "flash-attn": "flash-attn",
    "jax-pallas": "jax",
    "mini-vllm": "mini-vllm",
    "transformers": "transformers",
    "tokasaurus": "tokasaurus",
    "lmdeploy": "lmdeploy",
}
"""Which distribution a built-in target tests; an adapter of somebody else's may say so in `distribution`."""


BESIDE = " (beside it)"
"""How a library is noted that the target uses and does not test."""


def installed(distribution: str) -> str | None:
    """The installed version; None where it is not installed."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def distribution_of(target: str, adapter: Any = None) -> str | None:
    """The distribution that a target tests, where it is known."""
    if is_ours(target):
        return "pagefault"
    return DISTRIBUTIONS.get(target) or getattr(adapter, "distribution", None)


def versions_of(target: str, adapter: Any = None) -> dict[str, str]:
    """Versions to note in a case."""
    names = ["pagefault", *filter(None, [distribution_of(target, adapter)])]
    found = {name: installed(name) or "not installed" for name in names}
    used = [name for name in ("torch", "triton") if name in sys.modules and name not in found]
    beside = {f"{name}{BESIDE}": installed(name) or "not installed" for name in used}
    return {"python": platform.python_version(), **found, **beside}


def version_under_test(target: str, versions: dict[str, str]) -> str:
    """The version of the implementation itself, without the local part ("2.13.0", not "2.13.0+cpu")."""
    named = [v for key, v in versions.items() if key not in ("python", "pagefault") and not key.endswith(BESIDE)]
    return (named or [versions.get("pagefault", "")])[0].partition("+")[0]
