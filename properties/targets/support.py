"""For authors of adapters: what keeps one near thirty lines.

`require` says in one line what is missing and how to get it, `load_file` runs one file of an installed distribution
without importing its package, `stubs` stands in for modules that are not here while something is imported, and
`TableTarget` derives slots from a block table.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from types import ModuleType
from typing import Any

from properties.blocks.operations import Geometry
from properties.protocol import Capabilities, slots_from_table
from properties.targets import Unavailable
from properties.targets.standins import StandInError


class TableTarget:
    """Base of an adapter whose implementation has block tables: `slots` follows from `table`.

    The subclass sets `self.block_size` in `open`, and offers `table(name)`.
    """

    level = "blocks"
    capabilities = Capabilities()
    block_size: int

    def table(self, name: str) -> Sequence[int]:
        """Physical block of each logical block of a live sequence, first to last."""
        raise NotImplementedError

    def slots(self, name: str) -> Sequence[int]:
        """The physical slot of each position that the table covers."""
        return slots_from_table(self.table(name), self.block_size)

    def open(self, config: Geometry) -> None:
        """A fresh system."""
        raise NotImplementedError


def require(name: str, version: str | None, command: str) -> None:
    """Raise `Unavailable` unless the distribution is installed, in that version if one is given.

    `version` "5.24.0" accepts "5.24.0" and local builds of it ("5.24.0+cpu"). `command` is what installs it.
    """
    try:
        found = distribution(name).version
    except PackageNotFoundError:
        raise Unavailable(f"{name} is not installed: {command}") from None
    if version is not None and found.partition("+")[0] != version:
        raise Unavailable(f"{name} {found} is installed, but the adapter is written for {version}: {command}")


def load_file(name: str, path: str, replace: Mapping[str, ModuleType] | None = None) -> ModuleType:
    """A new module from one file of an installed distribution; its package is not imported.

    `path` is relative to the installation, for example "mini_vllm/block_manager.py". `replace` are modules that the file
    finds under these names while it runs. The module is the caller's own: `sys.modules` is as it was afterwards, so that
    patching it changes nothing for others. Raises `Unavailable` where the distribution lacks the file.
    """
    file = Path(str(distribution(name).locate_file(path)))
    if not file.is_file():
        raise Unavailable(f"{name} {distribution(name).version} has no {path} (looked for {file})")
    module_name = f"_pagefault_{name}_{file.stem}".replace("-", "_").replace(".", "_")
    spec = importlib.util.spec_from_file_location(module_name, file)
    if spec is None or spec.loader is None:
        raise Unavailable(f"{file} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    with _installed({**(replace or {}), module_name: module}):
        spec.loader.exec_module(module)
    return module


@contextlib.contextmanager
def stubs(*names: str, forget: Sequence[str] = (), **attributes: Any) -> Iterator[None]:
    """Stand in for modules that are not here (a GPU kernel library, a server) while the block imports something.

    Every module below a stub is one too. Any attribute of a stub can be imported, called, subclassed or used as a decorator
    until the block ends; using one afterwards raises a `StandInError` that names it (the verdict ADAPTER), so that no result
    ever comes from a stub. `attributes` are given to every stub as they are. Afterwards the stubs are gone, and so is every
    module below the packages in `forget` that the block imported: a module that was built on a stub must not be found by
    somebody else.

    >>> with stubs("flash_attn"):
    ...     from flash_attn import flash_attn_varlen_func
    >>> flash_attn_varlen_func()  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    properties.targets.standins.StandInError: pagefault's flash_attn.flash_attn_varlen_func is a stub that stood in ...
    """
    importing = _Importing()
    modules: dict[str, ModuleType] = {}
    for name in names:
        parts = name.split(".")
        for end in range(1, len(parts) + 1):
            part = ".".join(parts[:end])
            if end == len(parts) or part not in sys.modules:
                modules.setdefault(part, _StubModule(part, importing, attributes))
    before = set(sys.modules)
    try:
        with _apart(names), _installed(modules), _found_below(names, importing, attributes):
            yield
    finally:
        importing.over = True
        for loaded in set(sys.modules) - before:
            if any(_is_below(loaded, root) for root in forget):
                del sys.modules[loaded]


@contextlib.contextmanager
def _apart(names: Sequence[str]) -> Iterator[None]:
    """Nothing below these names in `sys.modules`; afterwards what was there, and nothing else."""
    below = [loaded for loaded in sys.modules if any(_is_below(loaded, name) for name in names)]
    hidden = {loaded: sys.modules.pop(loaded) for loaded in below}
    try:
        yield
    finally:
        for loaded in [loaded for loaded in sys.modules if any(_is_below(loaded, name) for name in names)]:
            del sys.modules[loaded]
        sys.modules.update(hidden)


@contextlib.contextmanager
def _found_below(names: Sequence[str], importing: _Importing, attributes: Mapping[str, Any]) -> Iterator[None]:
    finder = _StubFinder(names, importing, attributes)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


@contextlib.contextmanager
def packages(name: str, *paths: str) -> Iterator[None]:
    """Packages of an installed distribution that can be imported from, without running their `__init__`.

    `paths` are dotted, parents first, for example ("lmdeploy", "lmdeploy.pytorch"). What the block imports from them
    stays usable; afterwards the packages, and every module below the first of them, are no longer found by others.
    """
    root = Path(str(distribution(name).locate_file("")))
    made = {}
    for path in paths:
        package = ModuleType(path)
        package.__path__ = [str(root.joinpath(*path.split(".")))]
        package.__spec__ = ModuleSpec(path, None, is_package=True)
        made[path] = package
    below = paths[0].partition(".")[0]
    before = {loaded: sys.modules.pop(loaded) for loaded in list(sys.modules) if _is_below(loaded, below)}
    try:
        with _installed(made):
            yield
    finally:
        for loaded in [loaded for loaded in sys.modules if _is_below(loaded, below)]:
            del sys.modules[loaded]
        sys.modules.update(before)


def _is_below(name: str, root: str) -> bool:
    return name == root or name.startswith(f"{root}.")


class _Importing:
    """Whether the import that a stub stands in for is over."""

    over = False


class _StubFinder(MetaPathFinder, Loader):
    """Finds a stub for each of some names, and for every module below them."""

    def __init__(self, names: Sequence[str], importing: _Importing, attributes: Mapping[str, Any]) -> None:
        self._names, self._importing, self._attributes = names, importing, attributes

    def find_spec(self, fullname: str, *_: Any) -> ModuleSpec | None:
        covered = any(_is_below(fullname, name) for name in self._names)
        return ModuleSpec(fullname, self, is_package=True) if covered else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _StubModule(spec.name, self._importing, self._attributes)

    def exec_module(self, module: ModuleType) -> None:
        """A stub has nothing to run."""


class _StubModule(ModuleType):
    """A module that has every attribute."""

    def __init__(self, name: str, importing: _Importing, attributes: Mapping[str, Any]) -> None:
        super().__init__(name)
        self.__path__: list[str] = []  # so that submodules can be asked for
        self.__spec__ = ModuleSpec(name, None, is_package=True)
        self.__dict__.update(attributes)
        self.__dict__["_importing"] = importing

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        return _Stub(f"{self.__name__}.{attribute}", self.__dict__["_importing"])


class _Stub:
    """Stands for anything: a class, a function, a decorator, a namespace. Dead once the import is over."""

    def __init__(self, name: str, importing: _Importing) -> None:
        self._name = name
        self._importing = importing

    def _alive(self) -> _Stub:
        if self._importing.over:
            raise StandInError(
                f"pagefault's {self._name} is a stub that stood in while something was imported; it cannot run"
            )
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._alive()
        decorated = len(args) == 1 and not kwargs and isinstance(args[0], Callable | type)  # type: ignore[arg-type]
        return args[0] if decorated and not isinstance(args[0], _Stub) else self

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        return _Stub(f"{self._name}.{attribute}", self._importing)

    def __bool__(self) -> bool:
        return bool(self._alive()._name)

    def __or__(self, other: object) -> _Stub:
        return self  # in annotations, whenever they are evaluated

    __ror__ = __or__

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        return ()


def _operator(answer: Any = None) -> Any:
    """An operator of a stub that gives `answer`, else the stub itself, while something is imported."""
    return lambda stub, *_: stub._alive() if answer is None else (stub._alive() and answer)


for _name in (
    "getitem",
    "add",
    "radd",
    "sub",
    "rsub",
    "mul",
    "rmul",
    "truediv",
    "rtruediv",
    "lt",
    "le",
    "gt",
    "ge",
    "enter",
):
    setattr(_Stub, f"__{_name}__", _operator())
for _name, _answer in {"len": 0, "int": 0, "index": 0, "float": 0.0, "iter": iter(()), "exit": False}.items():
    setattr(_Stub, f"__{_name}__", _operator(_answer))


@contextlib.contextmanager
def _installed(modules: Mapping[str, ModuleType]) -> Iterator[None]:
    """These modules in `sys.modules`, and as attributes of nothing; what was there comes back."""
    saved = {name: sys.modules.get(name) for name in modules}
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name, module in saved.items():
            if module is None:
                sys.modules.pop(name, None)
            else:
                sys.modules[name] = module


def module(name: str, **attributes: Any) -> ModuleType:
    """A module with exactly these attributes, for `load_file(replace=...)`."""
    made = ModuleType(name)
    made.__dict__.update(attributes)
    return made
