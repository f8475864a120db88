"""Targets that pagefault knows by name, and how a stranger's is found.

A target is named by its built-in name, by `module:object`, by `path/to/file.py:object`, or by an entry point of the
group `pagefault.targets` (its distribution's choice of name). The object is a class or a function without arguments.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from properties.contract import AdapterError, Level, UsageError
from properties.targets.naming import file_meant, imported, names_no_object

GROUP = "pagefault.targets"
EXTRA = "pagefault[torch]"


class Unavailable(UsageError):
    """The target cannot run on this machine. The message says what is missing and the command that brings it."""


@dataclass(frozen=True)
class Target:
    """A target that was found: its name on the command line, its level, and what makes a fresh adapter."""

    name: str
    level: Level
    make: Callable[[], Any]


@dataclass(frozen=True)
class Builtin:
    """Where a built-in target lives. `summary` is one line for `pagefault targets`."""

    level: Level
    where: str
    summary: str


BUILTIN: dict[str, Builtin] = {
    "ours": Builtin("blocks", "properties.targets.ours:OurBlocks", "paged_impl's block manager"),
    "ours-engine": Builtin(
        "engine", "properties.targets.engine_ours:OurEngine", "paged_impl's scheduler and batch preparation"
    ),
    "ours-triton": Builtin(
        "attention", "properties.attention.targets.ours_triton:OurTriton", "paged_impl's Triton kernels"
    ),
    "ours-gather": Builtin(
        "attention", "properties.attention.targets.backends:OurGather", "paged_impl's plain torch attention"
    ),
    "plain-torch": Builtin(
        "attention", "properties.attention.targets.plain:PlainTorch", "the shortest complete attention target"
    ),
    "torch-flex-attention": Builtin(
        "attention",
        "properties.attention.targets.flex:TorchFlexAttention",
        "torch FlexAttention over pages, eager",
    ),
    "jax-pallas": Builtin(
        "attention",
        "properties.attention.targets.jax_pallas:JaxPallas",
        "JAX's Pallas paged attention, interpreted",
    ),
    "vllm-cpu": Builtin(
        "attention", "properties.attention.targets.vllm_cpu:VllmCpu", "vLLM's CPU attention kernels, in a child process"
    ),
    "flash-attn": Builtin("attention", "properties.attention.targets.backends:FlashAttn", "flash-attn 2, pages of 256"),
    "torch-varlen": Builtin(
        "attention", "properties.attention.targets.backends:TorchVarlen", "torch's varlen_attn with a block table"
    ),
    "cache-ours": Builtin("cache", "properties.targets.cache_ours:OurCache", "paged_impl's PagedKVCache, plain torch"),
    "cache-ours-triton": Builtin(
        "cache", "properties.targets.cache_ours:OurTritonCache", "paged_impl's PagedKVCache, Triton kernels"
    ),
    "cache-ours-flash": Builtin(
        "cache", "properties.targets.cache_ours:OurFlashCache", "paged_impl's PagedKVCache, flash-attn, pages of 256"
    ),
    "torch-flex": Builtin(
        "blocks",
        "properties.targets.torch_flex:TorchFlex",
        "torch FlexAttention's PagedAttention (experimental)",
    ),
    "mini-vllm": Builtin("blocks", "properties.targets.mini_vllm:MiniVllm", "mini-vllm 0.1.1 BlockSpaceManager"),
    "transformers": Builtin(
        "blocks",
        "properties.targets.hf_transformers:HfPagedCache",
        "transformers' continuous batching PagedAttentionCache",
    ),
    "vllm": Builtin("blocks", "properties.targets.vllm:Vllm", "vLLM's V1 KVCacheManager, full attention"),
    "tokasaurus": Builtin("blocks", "properties.targets.tokasaurus:Tokasaurus", "tokasaurus' BlockAllocator"),
    "lmdeploy": Builtin("blocks", "properties.targets.lmdeploy:LmDeploy", "lmdeploy's block manager and prefix trie"),
}

WITH_PATH: dict[str, Builtin] = {
    "nano-vllm": Builtin("engine", "properties.targets.nano_vllm:NanoVllm", "nano-vllm at any commit: nano-vllm:PATH"),
    "nano-vllm-manager": Builtin(
        "blocks", "properties.targets.nano_vllm:NanoVllmManager", "its block manager alone: nano-vllm-manager:PATH"
    ),
}
"""Built-in targets of which the user names the checkout: `name:PATH`."""


def builtin_error(name: str) -> str | None:
    """Why a built-in target cannot run here, with the remedy; None if it can."""
    try:
        load(name).make()
    except Unavailable as reason:
        return str(reason)
    return None


def load(name: str) -> Target:
    """The target of that name. Raises `UsageError` for an unknown one, `Unavailable` for one that cannot run here."""
    if name in BUILTIN:
        entry = BUILTIN[name]
        return Target(name, entry.level, _object(entry.where, name))
    base, _, path = name.partition(":")
    if base in WITH_PATH:
        return _with_path(name, WITH_PATH[base], path)
    plugins = {entry.name: entry for entry in entry_points(group=GROUP)}
    if name in plugins:
        return _target(name, imported(name, plugins[name].load))
    if ":" in name.removesuffix(":"):
        return _target(name, imported(name, partial(_object, name, name)))
    file = file_meant(name)
    if file is not None:
        raise names_no_object(name, file)
    if name.endswith((".py", ".py:")):
        raise UsageError(f"target {name!r}: no such file (looked for {Path(name.removesuffix(':')).resolve()})")
    near = ", ".join(get_close_matches(name, [*BUILTIN, *plugins], n=3)) or ", ".join([*BUILTIN, *plugins])
    raise UsageError(
        f"no target {name!r}; near it: {near}. A target of your own is given as module:object or path.py:object"
    )


def _with_path(name: str, entry: Builtin, path: str) -> Target:
    if not path:
        raise UsageError(f"target {name!r} needs the path of a checkout: {name.rstrip(':')}:PATH")
    make = _object(entry.where, name)
    try:
        make(path)  # a wrong path is the user's mistake, to be said now
    except AdapterError as error:
        raise UsageError(f"verdict ADAPTER for {name}: {error}") from error
    return Target(name, entry.level, partial(make, path))


def _target(name: str, found: Any) -> Target:
    if not callable(found):
        raise UsageError(f"target {name!r} is {type(found).__name__}, not a class or function that makes an adapter")
    level: Level = getattr(found, "level", None) or "blocks"
    if level not in ("blocks", "engine", "attention", "cache"):
        raise UsageError(f"target {name!r} has level {level!r}; use blocks, engine, attention or cache")
    return Target(name, level, found)


def _object(where: str, name: str) -> Any:
    module_name, _, attribute = where.rpartition(":")
    is_file = module_name.endswith(".py")
    try:
        module = _from_file(module_name) if is_file else _import(module_name, name)
    except ImportError as error:
        _refuse_namesake(name, error, Path(module_name).resolve().parent if is_file else Path.cwd())
        raise
    try:
        found = module
        for part in attribute.split("."):
            found = getattr(found, part)
    except AttributeError:
        own = [n for n, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__]
        near = get_close_matches(attribute, own, n=3) or [n for n in own if not n.startswith("_")]
        remedy = f"near it: {', '.join(near):.200}" if near else "it defines no class or function"
        raise UsageError(f"target {name!r}: {module_name} has no {attribute!r}; {remedy}") from None
    return found


def _refuse_namesake(name: str, error: ImportError, folder: Path) -> None:
    """Raises `UsageError` where the import that failed may have meant a module of the user's that is called as one of ours."""
    top = (error.name or "").partition(".")[0]
    ours = Path(__file__).parent.parent.parent
    theirs = [path for path in (folder / f"{top}.py", folder / top) if path.exists()]
    if top in ("properties", "fuzz", "paged_ref", "paged_impl") and theirs and folder != ours:
        raise UsageError(
            f"target {name!r} cannot be imported: {error}. {top!r} is a package of pagefault: give {theirs[0]} another name, "
            "or import it as a part of a package of your own"
        ) from error


def _import(module_name: str, name: str) -> Any:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)  # a console script does not look in the folder that it is started from
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if name in BUILTIN:  # a module of ours that cannot be imported without torch
            raise Unavailable(f"{name} needs {error.name}, which is not installed: pip install '{EXTRA}'") from error
        if not error.name or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the module is there, and imports one that is not
        raise UsageError(
            f"target {name!r}: cannot import {error.name!r}. Start in the folder that holds it, install it, or give a path"
        ) from error


def _from_file(path: str) -> Any:
    file = Path(path).resolve()
    if not file.is_file():
        raise UsageError(f"target {path!r}: no such file (looked for {file})")
    module_name = f"pagefault_target_{file.stem}_{abs(hash(str(file))):x}"
    if module_name in sys.modules:
        return sys.modules[module_name]
    spec = importlib.util.spec_from_file_location(module_name, file)
    if spec is None or spec.loader is None:
        raise UsageError(f"target {path!r}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    sys.path.insert(0, str(file.parent))
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[module_name]
        raise
    finally:
        sys.path.remove(str(file.parent))
    return module
