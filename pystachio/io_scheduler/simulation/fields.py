"""Numbers that people write into scenario files are checked where they are given."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pystachio.errors import InvalidRequest


def require_positive(record: object, *names: str) -> None:
    _require(record, names, "must be positive", lambda value: value > 0)


def require_not_negative(record: object, *names: str) -> None:
    _require(record, names, "must not be negative", lambda value: value >= 0)


def _require(record: object, names: Sequence[str], what: str, holds: Callable[[float], bool]) -> None:
    for name in names:
        value = getattr(record, name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InvalidRequest(f"{type(record).__name__}.{name} is not a number: {value!r}")
        if value != value or not holds(value):
            raise InvalidRequest(f"{type(record).__name__}.{name} {what}: {value!r}")
