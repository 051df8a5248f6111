"""Values that nobody changes, as the type checker sees to (not in tests, which it does not read).

A frozen dataclass looks at run time, too, and so takes four times as long to make (0.6 us with six fields): too long
for what is made some hundred times in a query of a few milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform, overload

T = TypeVar("T")


@overload
def record(cls: type[T], /) -> type[T]: ...


@overload
def record(*, eq: bool = True) -> Callable[[type[T]], type[T]]: ...


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def record(cls: type[T] | None = None, /, *, eq: bool = True) -> type[T] | Callable[[type[T]], type[T]]:
    """The class as a dataclass with slots, whose fields only the type checker freezes. A value equals others with equal
    fields, and has their hash; without `eq` itself only."""

    def made(plain: type[T]) -> type[T]:
        return dataclass(slots=True, eq=eq, unsafe_hash=eq)(plain)

    return made if cls is None else made(cls)
