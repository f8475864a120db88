"""nano-vllm at any commit, from a checkout that the user names: `nano-vllm:PATH` (GeeeekExplorer/nano-vllm, MIT).

Its own scheduler, block manager and batch preparation run; stood in for is only what needs a GPU or a model. Several
checkouts can be under test in one process: the modules of each are its own.
"""

from __future__ import annotations

import importlib
import sys
from functools import lru_cache
from pathlib import Path
from types import ModuleType

from properties.contract import UsageError
from properties.targets import Unavailable
from properties.targets.sequences import HOST_TORCH, Family, SequenceEngine, SequenceManager
from properties.targets.support import stubs

PACKAGE = "nanovllm"
STOOD_IN = ("torch", "torch.distributed", "triton", "flash_attn", "transformers", "safetensors", "tqdm")
"""Of torch only index arrays are needed, and `HOST_TORCH` gives them; the engine level must not import torch."""
STOOD_IN_OWN = ("models.qwen3", "layers.sampler", "utils.loader")
"""The package's own modules that are nothing but model code."""


class NanoVllm(SequenceEngine):
    """Scheduler, manager and `prepare_prefill` / `prepare_decode` of the checkout at `path`."""

    def __init__(self, path: str) -> None:
        super().__init__(load_family(path))


class NanoVllmManager(SequenceManager):
    """Only the block manager of the checkout at `path`, as a blocks target."""

    def __init__(self, path: str) -> None:
        super().__init__(load_family(path))


@lru_cache(maxsize=16)
def load_family(path: str, package: str = PACKAGE) -> Family:
    """The engine classes of a checkout. Raises `UsageError` where there is none, `Unavailable` where a module is missing."""
    root = Path(path).expanduser().resolve()
    if not (root / package / "engine" / "scheduler.py").is_file():
        raise UsageError(
            f"{path!r} is no checkout of nano-vllm: it has no {package}/engine/scheduler.py. "
            f"git clone https://github.com/GeeeekExplorer/nano-vllm PATH, then -t nano-vllm:PATH"
        )
    for name in ("numpy", "xxhash"):
        try:
            importlib.import_module(name)
        except ModuleNotFoundError:
            raise Unavailable(f"nano-vllm's block manager needs {name}: pip install {name}") from None
    return _import_family(root, package)


def _forget(package: str) -> dict[str, ModuleType]:
    """Take a package and all below it out of `sys.modules`; returns what was there."""
    return {name: sys.modules.pop(name) for name in list(sys.modules) if name.split(".")[0] == package}


def _import_family(root: Path, package: str) -> Family:
    outer = ModuleType(package)
    outer.__path__ = [str(root / package)]  # its __init__ would import the whole engine
    hidden = _forget(package)
    sys.modules[package] = outer
    try:
        for name in STOOD_IN_OWN:
            importlib.import_module(f"{package}.{name.split('.')[0]}")
        with stubs(*STOOD_IN, *(f"{package}.{name}" for name in STOOD_IN_OWN)):
            modules = {
                name: importlib.import_module(f"{package}.{name}")
                for name in ("sampling_params", "engine.sequence", "engine.block_manager", "engine.scheduler")
            }
            runner = importlib.import_module(f"{package}.engine.model_runner")
    except ImportError as error:
        raise Unavailable(f"{root} cannot be imported: {error}. Is it a commit of nano-vllm with an engine?") from error
    finally:
        _forget(package)
        sys.modules.update(hidden)
    runner.__dict__["torch"] = HOST_TORCH
    return Family(
        sequence=modules["engine.sequence"].Sequence,
        sampling_params=modules["sampling_params"].SamplingParams,
        block_manager=modules["engine.block_manager"].BlockManager,
        scheduler=modules["engine.scheduler"].Scheduler,
        runner=runner.ModelRunner,
        get_context=runner.__dict__["get_context"],
    )
