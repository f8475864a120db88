"""A case as a pytest file of its own: it fails while the fault is there, and needs pagefault and the target only."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from properties.case import Case
from properties.contract import clause
from properties.report import steps_in_words

_TEMPLATE = '''"""{property} does not hold for {shown}: {clause}.

{steps}

{message}

Run it with pytest, from any folder. It fails while the fault is there. Written by `pagefault show --as-test`.
"""

try:
    from {module} import {names}
    from properties.stand_alone import check_trace
except ImportError as error:
    raise ImportError(
        f"{{error}}. This file needs pagefault, and its `properties` instead of a properties.py or folder of that name "
        "beside this file: move the file, or run pytest --import-mode=importlib"
    ) from error

{where}TARGET = {target!r}
GEOMETRY = {geometry}
OPERATIONS = [
{operations}
]


def test_{function}() -> None:
    check_trace({property!r}, target=TARGET, level={level!r}, geometry=GEOMETRY, operations=OPERATIONS)
'''


_WHERE = "# A file of this machine. For other machines name it as it is imported there: package.module:Class\n"


def as_test(case: Case, target: str) -> str:
    """The text of a pytest file. `target` is the case's with an absolute path, where it has one."""
    names = sorted(set().union(*(_names_in(part) for part in (case.geometry, *case.operations))))
    return _TEMPLATE.format(
        property=case.property,
        shown=_safe(case.target),
        where=_WHERE if target.rpartition(":")[0].endswith(".py") else "",
        target=target,
        clause=clause(case.property).text,
        steps=_safe("\n".join(steps_in_words(case.operations, outcomes=case.outcomes))),
        message=_safe(case.message),
        module=type(case.geometry).__module__,
        names=", ".join(names),
        geometry=as_python(case.geometry),
        operations="\n".join(f"    {as_python(operation)}," for operation in case.operations),
        level=case.level,
        function=case.property.lower().replace("-", "_"),
    )


def _names_in(value: Any) -> set[str]:
    """The class names that the Python text of a value needs, those of structs inside structs included."""
    if isinstance(value, tuple | list):
        return set().union(*(_names_in(item) for item in value)) if value else set()
    if not isinstance(value, msgspec.Struct):
        return set()
    names = {type(value).__name__}
    return names.union(*(_names_in(getattr(value, field)) for field in value.__struct_fields__))


def as_python(struct: Any) -> str:
    """A struct as the call that makes it, without what is left at its default.

    >>> from properties.blocks.operations import Admit
    >>> as_python(Admit("A", (0, 1)))
    "Admit(name='A', tokens=(0, 1))"
    """
    defaults = dict(_defaults(type(struct)))
    values = [(name, getattr(struct, name)) for name in struct.__struct_fields__]
    given = [f"{name}={value!r}" for name, value in values if name not in defaults or defaults[name] != value]
    return f"{type(struct).__name__}({', '.join(given)})"


def _defaults(kind: type[msgspec.Struct]) -> Iterable[tuple[str, Any]]:
    return ((field.name, field.default) for field in msgspec.structs.fields(kind) if not field.required)


def _safe(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"""', "'''")
