"""nano-vllm at any commit, from a checkout that the user names: `nano-vllm:PATH` (GeeeekExplorer/nano-vllm, MIT).

Its own scheduler, block manager and batch preparation run; stood in for is only what needs a GPU or a model. Several
checkouts can be under test in one process: the modules of each are its own.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

from properties.blame import said
from properties.contract import UsageError
from properties.targets import Unavailable
from properties.targets.sequences import HOST_TORCH, Family, SequenceEngine, SequenceManager
from properties.targets.support import stubs

PACKAGE = "nanovllm"
STOOD_IN = (
    *(
        "torch",
        "torch_npu",
        "triton",
        "flash_attn",
        "flashinfer",
        "flash_mla",
        "aiter",
        "xformers",
        "tilelang",
        "cutlass",
    ),
    *("transformers", "safetensors", "tokenizers", "huggingface_hub", "accelerate", "gguf", "PIL", "torchvision"),
    *("pynvml", "nvtx", "tqdm", "ray", "zmq", "fastapi", "uvicorn", "pydantic", "wandb"),
)
"""Of torch only index arrays are needed, and `HOST_TORCH` gives them; the engine level must not import torch. The others are
kernels, models, their files, and servers."""
STOOD_IN_OWN = ("models", "layers", "utils.loader")
"""The package's own modules that are nothing but model code."""
_MANAGER = ("sampling_params", "engine.sequence", "engine.block_manager")
_ENGINE = ("engine.scheduler", "engine.model_runner")


class NanoVllm(SequenceEngine):
    """Scheduler, manager and `prepare_prefill` / `prepare_decode` of the checkout at `path`."""

    def __init__(self, path: str) -> None:
        super().__init__(load_family(path))


class NanoVllmManager(SequenceManager):
    """Only the block manager of the checkout at `path`, as a blocks target."""

    def __init__(self, path: str) -> None:
        super().__init__(load_family(path, engine=False))


@lru_cache(maxsize=16)
def load_family(path: str, package: str = PACKAGE, *, engine: bool = True) -> Family:
    """The engine classes of a checkout; without `engine` only those that its block manager needs.

    Raises `UsageError` where there is no such package, `Unavailable` where it cannot be imported.
    """
    root = Path(path).expanduser().resolve()
    if not (root / package / "engine" / "block_manager.py").is_file():
        raise UsageError(
            f"{path!r} is no checkout of nano-vllm: no package {package} with engine/block_manager.py is in it. {_found(root)}"
        )
    for name in ("numpy", "xxhash"):
        try:
            importlib.import_module(name)
        except ModuleNotFoundError:
            raise Unavailable(f"nano-vllm's block manager needs {name}: pip install {name}") from None
    with _apart(root, package):
        return _family(root, package, engine)


def _found(root: Path) -> str:
    """What is there instead, with the remedy."""
    if not root.is_dir():
        return "There is no such folder: git clone https://github.com/GeeeekExplorer/nano-vllm PATH, then -t nano-vllm:PATH"
    found = [
        str(file.relative_to(root)) for file in root.glob("*/**/block_manager.py") if "site-packages" not in file.parts
    ]
    found = found or [
        f"{folder.name}/" for folder in root.iterdir() if folder.is_dir() and not folder.name.startswith(".")
    ]
    return (
        f"Found was {', '.join(sorted(found)) or 'nothing':.200}. An engine in a package of another name or layout needs an "
        "adapter of a few lines, which says where its classes are (docs/engines.md, 'A fork that differs')"
    )


def _forget(package: str) -> dict[str, ModuleType]:
    """Take a package and all below it out of `sys.modules`; returns what was there."""
    return {name: sys.modules.pop(name) for name in list(sys.modules) if name.split(".")[0] == package}


@contextlib.contextmanager
def _apart(root: Path, package: str) -> Iterator[None]:
    """The package can be imported from, without its `__init__`, which would import the model; then it is gone again."""
    outer = ModuleType(package)
    outer.__path__ = [str(root / package)]
    hidden = _forget(package)
    sys.modules[package] = outer
    try:
        yield
    except ModuleNotFoundError as error:
        raise Unavailable(
            f"{root} cannot be imported: {error}. pip install it, if it is no part of the checkout"
        ) from error
    except Exception as error:
        remedy = "If its classes are elsewhere, say where in an adapter (docs/engines.md, 'A fork that differs')"
        raise Unavailable(f"{root} cannot be imported: {said(error)}. {remedy}") from error
    finally:
        _forget(package)
        sys.modules.update(hidden)


def _family(root: Path, package: str, engine: bool) -> Family:
    modules = _imported(root, package, (*_MANAGER, *(_ENGINE if engine else ())))
    scheduler, runner = modules.get("engine.scheduler"), modules.get("engine.model_runner")
    return Family(
        sequence=modules["engine.sequence"].Sequence,
        sampling_params=modules["sampling_params"].SamplingParams,
        block_manager=modules["engine.block_manager"].BlockManager,
        scheduler=scheduler and scheduler.Scheduler,
        runner=runner and runner.ModelRunner,
        get_context=getattr(runner, "get_context", None),
        config=getattr(modules.get("config"), "Config", None),
    )


def _imported(root: Path, package: str, names: tuple[str, ...]) -> dict[str, Any]:
    """The modules of the package of those names, and its `config`, if there is one."""
    with stubs(*STOOD_IN):
        if (root / package / "utils").is_dir():
            importlib.import_module(f"{package}.utils")  # or it would be a stub, as the parent of one
        with stubs(*(f"{package}.{name}" for name in STOOD_IN_OWN)):
            if (root / package / "config.py").is_file():
                names = (*names, "config")
            modules = {name: importlib.import_module(f"{package}.{name}") for name in names}
        torch = sys.modules["torch"]
        for name, module in sys.modules.items():
            if name.startswith(f"{package}.") and vars(module).get("torch") is torch:
                vars(module)["torch"] = HOST_TORCH
    return modules
