"""What stands in for a machine that is not here: index arrays and a configuration, without torch and without a model.

What a stand-in lacks is never the target's fault: it raises a `StandInError`, which is the verdict ADAPTER.
"""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any, NoReturn

from properties.contract import AdapterError

UNSET = -1_000_003
"""What `empty` holds: whoever reads it without having written it is to be seen."""
OVERRIDE = "override the method that needs it in a subclass of the adapter (docs/engines.md, 'A fork that differs')"


class StandInError(AdapterError):
    """Something that pagefault put in the place of a missing module was used for more than it can do."""

    def __init__(self, problem: str, remedy: str = OVERRIDE) -> None:
        super().__init__(problem, remedy)


class StandInLacks(StandInError, AttributeError):
    """A stand-in lacks an attribute. An `AttributeError` too, so that `hasattr` and `getattr` with a default hold."""


def _lacks(what: str, attribute: str, remedy: str = OVERRIDE) -> NoReturn:
    if attribute.startswith("__"):
        raise AttributeError(attribute)  # Python's own questions, as those of `copy`
    raise StandInLacks(f"pagefault stands in for {what} without {attribute}", remedy)


class HostTensor(list[Any]):
    """A list that answers what batch preparation asks of a tensor; of more dimensions, a list of such lists."""

    def _itself(self, *_: Any, **__: Any) -> HostTensor:
        return self

    cuda = cpu = to = pin_memory = contiguous = int = long = detach = _itself

    def clone(self) -> HostTensor:
        return HostTensor(entry.clone() if isinstance(entry, HostTensor) else entry for entry in self)

    def tolist(self) -> list[Any]:
        return [entry.tolist() if isinstance(entry, HostTensor) else entry for entry in self]

    def numel(self) -> Any:
        return sum(entry.numel() if isinstance(entry, HostTensor) else 1 for entry in self)

    def fill_(self, value: Any) -> HostTensor:
        for index, entry in enumerate(self):
            self[index] = entry.fill_(value) if isinstance(entry, HostTensor) else value
        return self

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, tuple):
            return self._row(key)[key[1:] if len(key) > 2 else key[1]]
        found = super().__getitem__(key)
        return _View(found) if isinstance(key, slice) else found

    def __setitem__(self, key: Any, value: Any) -> None:
        if isinstance(key, tuple):
            self._row(key)[key[1:] if len(key) > 2 else key[1]] = value
        elif isinstance(key, slice):
            self._fill(key, value)
        elif isinstance(self[key], HostTensor):
            self[key][:] = value
        else:
            super().__setitem__(key, value)

    def _row(self, key: tuple[Any, ...]) -> Any:
        if len(key) < 2 or not hasattr(key[0], "__index__"):
            raise StandInError(f"pagefault stands in for a tensor without the index {key!r:.60}")
        return super().__getitem__(key[0])

    def _fill(self, key: slice, value: Any) -> None:
        """As in torch a slice keeps its length: one value goes everywhere, any other number of them is an error."""
        place = range(*key.indices(len(self)))
        values = list(value) if hasattr(value, "__len__") else [value]
        values = values * len(place) if len(values) == 1 else values
        if len(values) != len(place) and any(isinstance(self[index], HostTensor) for index in place):
            raise StandInError("pagefault stands in for a tensor without rows that are spread over several")
        if len(values) != len(place):
            raise RuntimeError(f"{len(values)} values are given to {len(place)} entries of a tensor")
        for index, entry in zip(place, values, strict=True):
            self[index] = entry

    def __getattr__(self, attribute: str) -> NoReturn:
        _lacks("a tensor", attribute)


class _View(HostTensor):
    """A part of a tensor: to be read. In torch what is written to it would be in the tensor, here it would be lost."""

    def __setitem__(self, key: Any, value: Any) -> None:
        if not isinstance(key, tuple):
            raise StandInError(
                "pagefault stands in for a tensor without parts that are written: give the tensor the index"
            )
        super().__setitem__(key, value)


def _no_arithmetic(name: str) -> Any:
    def refuse(self: HostTensor, *_: Any) -> NoReturn:
        raise StandInError(f"pagefault stands in for a tensor without {name}: it is a list of numbers")

    return refuse


_BOTH_WAYS = ("add", "sub", "mul", "floordiv", "truediv", "mod", "pow", "and", "or")
_ONE_WAY = ("neg", "lt", "le", "gt", "ge", "int", "float")
for _name in (*_ONE_WAY, *(f"{side}{name}" for name in _BOTH_WAYS for side in ("", "r", "i"))):
    setattr(HostTensor, f"__{_name}__", _no_arithmetic(f"__{_name}__"))


class HostName:
    """A dtype or a device: told apart from others, and nothing more is known of it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> NoReturn:
        _lacks(vars(self).get("_name", "a name"), attribute)


class HostTorch:
    """What `prepare_prefill` and `prepare_decode` use of torch. Everything else is a `StandInLacks`."""

    Tensor = HostTensor

    @staticmethod
    def device(*_: Any, **__: Any) -> HostName:
        """Any device is the host."""
        return HOST

    @staticmethod
    def tensor(data: Any, *_: Any, **__: Any) -> HostTensor:
        if not hasattr(data, "__iter__"):
            raise StandInError(f"pagefault stands in for torch without a tensor of no dimension ({data!r:.40})")
        return HostTensor(HostTorch.tensor(entry) if isinstance(entry, list | tuple) else entry for entry in data)

    as_tensor = tensor

    @staticmethod
    def from_numpy(array: Any) -> HostTensor:
        return HostTorch.tensor(array.tolist())

    @staticmethod
    def arange(*bounds: Any, **_: Any) -> HostTensor:
        return HostTensor(range(*bounds))

    @staticmethod
    def full(size: Any, value: Any, **_: Any) -> HostTensor:
        first, *rest = [size] if hasattr(size, "__index__") else size
        return HostTensor(HostTorch.full(rest, value) if rest else value for _ in range(first))

    @staticmethod
    def empty(*size: Any, **_: Any) -> HostTensor:
        return HostTorch.full(_size(size), UNSET)

    @staticmethod
    def zeros(*size: Any, **_: Any) -> HostTensor:
        return HostTorch.full(_size(size), 0)

    @staticmethod
    def ones(*size: Any, **_: Any) -> HostTensor:
        return HostTorch.full(_size(size), 1)

    def __getattr__(self, attribute: str) -> NoReturn:
        _lacks("torch", attribute)


for _name in (
    "bool",
    "int8",
    "uint8",
    "int16",
    "int32",
    "int",
    "int64",
    "long",
    "float16",
    "bfloat16",
    "float32",
    "float",
):
    setattr(HostTorch, _name, HostName(f"torch.{_name}"))


def _size(size: tuple[Any, ...]) -> Any:
    """`zeros(2, 3)` and `zeros((2, 3))` are the same."""
    return size if hasattr(size[0], "__index__") else size[0]


HOST = HostName("a device")
HOST_TORCH = HostTorch()


class HostConfig(SimpleNamespace):
    """A configuration with the fields that are known; any other is a `StandInLacks`."""

    def __getattr__(self, attribute: str) -> NoReturn:
        remedy = "subclass SequenceEngine and override config, which gives the fields (docs/engines.md, 'A fork that differs')"
        _lacks("the configuration", attribute, remedy)


def defaults(config_class: Any) -> dict[str, Any]:
    """The default values of a configuration class: of a dataclass its fields that have one, else nothing."""
    if not dataclasses.is_dataclass(config_class):
        return {}
    found = {}
    for field in dataclasses.fields(config_class):
        if field.default is not dataclasses.MISSING:
            found[field.name] = field.default
        elif field.default_factory is not dataclasses.MISSING:
            found[field.name] = field.default_factory()
    return found
