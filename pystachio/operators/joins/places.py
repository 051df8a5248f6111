"""Where the columns of a pair of rows come from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from pystachio.operators.expressions import Expression, fields_of, shift_fields


class Source(Enum):
    """Where a column comes from."""

    PROBE = "probe"
    BUILD = "build"
    MARK = "mark"


@dataclass(frozen=True, slots=True)
class Place:
    """A column: of the streamed batch by its position, or of the stored build side by its place there."""

    source: Source
    position: int


@dataclass(frozen=True, slots=True)
class PairCondition:
    """What a pair of rows must satisfy, over the columns at `places`, in that order."""

    expression: Expression
    places: tuple[Place, ...]

    @staticmethod
    def of(expression: Expression, place: Callable[[int], Place]) -> PairCondition:
        """Field p of the expression is the column at `place(p)`."""
        read = sorted(fields_of(expression))
        return PairCondition(shift_fields(expression, read.index), tuple(map(place, read)))
