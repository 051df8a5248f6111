"""What people write into scenario files is checked where it is given."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import TypeGuard

from pystachio.errors import InvalidRequest, shown
from pystachio.io_scheduler.core.request import PriorityClass

_KINDS: Mapping[str, tuple[str, Callable[[object], bool]]] = {
    "int": ("a whole number", lambda value: isinstance(value, int) and _is_number(value)),
    "float": ("a number", lambda value: _is_number(value)),
    "bool": ("True or False", lambda value: isinstance(value, bool)),
    "str": ("a text", lambda value: isinstance(value, str)),
    "PriorityClass": ("a PriorityClass", lambda value: isinstance(value, PriorityClass)),
    "Sequence[str]": (
        "a list of texts",
        lambda value: _is_list(value) and all(isinstance(each, str) for each in value),
    ),
    "Sequence[Workload]": ("a list of workloads", lambda value: _is_list(value)),
    "Sequence[Fault]": ("a list of faults", lambda value: _is_list(value)),
}
"""By the declared type of a field what it must be."""


def require_kinds(record: object) -> None:
    """Raise InvalidRequest for the first field of one of our records that is not what it is declared as."""
    if not is_dataclass(record) or not type(record).__module__.startswith(f"{__package__}."):
        return
    for field in fields(record):
        kind, _, rest = str(field.type).partition(" | ")
        value = getattr(record, field.name)
        if kind not in _KINDS or (value is None and rest == "None"):
            continue
        what, holds = _KINDS[kind]
        if not holds(value):
            raise InvalidRequest(f"{type(record).__name__}.{field.name} is not {what}: {shown(value)}")


def require_positive(record: object, *names: str) -> None:
    _require(record, names, "must be positive", lambda value: value > 0)


def require_not_negative(record: object, *names: str) -> None:
    _require(record, names, "must not be negative", lambda value: value >= 0)


def _require(record: object, names: Sequence[str], what: str, holds: Callable[[float], bool]) -> None:
    for name in names:
        value = getattr(record, name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InvalidRequest(f"{type(record).__name__}.{name} is not a number: {shown(value)}")
        if value != value or not holds(value):
            raise InvalidRequest(f"{type(record).__name__}.{name} {what}: {shown(value)}")


def _is_number(value: object) -> bool:
    """A finite one that a float can be."""
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:
        return False


def _is_list(value: object) -> TypeGuard[Sequence[object]]:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)
