"""What is told where a fork does not have the interface that an adapter of ours was written for.

That is neither a fault of the fork nor of the user: the verdict ADAPTER, with the method to override.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

from properties.blame import last_lines, said
from properties.contract import AdapterError, PagefaultError
from properties.targets import standins
from properties.targets.standins import OVERRIDE, StandInError

P = ParamSpec("P")
R = TypeVar("R")
Self = TypeVar("Self")


class InterfaceDiffers(AdapterError):
    """A fork's class or method takes, has or returns something else than those of nano-vllm."""

    def __init__(self, adapter: type, method: str, error: BaseException) -> None:
        super().__init__(
            f"{method}: the interface of this fork differs from nano-vllm's: {said(error)} ({last_lines(error)})",
            _override(adapter, method),
        )


def fits(method: Callable[Concatenate[Self, P], R]) -> Callable[Concatenate[Self, P], R]:
    """A method of an adapter that asks a fork. Raises `InterfaceDiffers` where its own line cannot ask so."""

    @functools.wraps(method)
    def ask(self: Self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return method(self, *args, **kwargs)
        except StandInError as error:
            remedy = _override(type(self), method.__name__) if error.remedy == OVERRIDE else error.remedy
            raise StandInError(f"{method.__name__}: {error.problem} ({last_lines(error)})", remedy) from error
        except (AttributeError, TypeError, ValueError) as error:
            if isinstance(error, PagefaultError) or not _cannot_be_asked(self, method, error):
                raise
            raise InterfaceDiffers(type(self), method.__name__, error) from error

    return ask


def opens(method: Callable[Concatenate[Self, P], R]) -> Callable[Concatenate[Self, P], R]:
    """A method that makes the fork's objects. Raises `InterfaceDiffers` for whatever fails there: nothing was tested yet."""

    @functools.wraps(method)
    def make(self: Self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return method(self, *args, **kwargs)
        except PagefaultError:
            raise
        except Exception as error:
            raise InterfaceDiffers(type(self), method.__name__, error) from error

    return make


def _cannot_be_asked(adapter: object, method: Callable[..., Any], error: BaseException) -> bool:
    """Whether a line of the adapter or of a stand-in failed, or one of the fork that asks our half-made runner for more."""
    runner = getattr(adapter, "runner", None)
    if runner is not None and isinstance(error, AttributeError) and error.obj is runner:
        return True
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_code.co_filename in (method.__code__.co_filename, standins.__file__)


def _override(adapter: type, method: str) -> str:
    bases = (cls.__name__ for cls in reversed(adapter.__mro__) if hasattr(cls, "level"))
    sizes = ", or declare in its capabilities which block_sizes are accepted" if method == "open" else ""
    return f"subclass {next(bases, adapter.__name__)} and override {method}{sizes} (docs/engines.md, 'A fork that differs')"
