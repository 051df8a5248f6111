"""The share of rows a predicate keeps when no sample can tell: textbook guesses over column profiles."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pystachio.operators.expressions import (
    Call,
    Cast,
    Expression,
    FieldReference,
    InList,
    Literal,
)
from pystachio.planner.profiles import ColumnProfile

_UNKNOWN = 0.3
_COMPARISON = 1 / 3
_COMPARISON_OF_COMPUTED = 0.1
"""A column of unknown range is nearly always an aggregate's result, and HAVING keeps few groups."""

_TEXT_MATCH = 0.1
_EQUALITY = 0.1
_FLOOR = 1e-6


def selectivity(predicate: Expression, columns: Sequence[ColumnProfile]) -> float:
    """In (0, 1]."""
    return min(1.0, max(_FLOOR, _share(predicate, columns)))


def _share(predicate: Expression, columns: Sequence[ColumnProfile]) -> float:
    match predicate:
        case Literal(value=value):
            return 1.0 if value is True else 0.0
        case FieldReference():
            return 0.5
        case Call(function="and", arguments=parts):
            return math.prod(_share(part, columns) for part in parts)
        case Call(function="or", arguments=parts):
            return 1.0 - math.prod(1.0 - _share(part, columns) for part in parts)
        case Call(function="not", arguments=(operand,)):
            return 1.0 - _share(operand, columns)
        case Call(function="is_null", arguments=(operand,)):
            return _nulls(operand, columns)
        case Call(function="is_not_null", arguments=(operand,)):
            return 1.0 - _nulls(operand, columns)
        case Call(function="equal" | "is_not_distinct_from", arguments=(left, right)):
            return _equality(left, right, columns)
        case Call(function="not_equal" | "is_distinct_from", arguments=(left, right)):
            return 1.0 - _equality(left, right, columns)
        case Call(function="lt" | "lte", arguments=(left, right)):
            return _below(left, right, columns)
        case Call(function="gt" | "gte", arguments=(left, right)):
            return _below(right, left, columns)
        case Call(function="like" | "ilike" | "starts_with" | "ends_with" | "contains"):
            return _TEXT_MATCH
        case InList(operand=operand, options=options):
            return min(1.0, sum(_equality(operand, option, columns) for option in options))
        case _:
            return _UNKNOWN


def _profile(expression: Expression, columns: Sequence[ColumnProfile]) -> ColumnProfile | None:
    match expression:
        case FieldReference(index=index):
            return columns[index]
        case Cast(operand=operand):
            return _profile(operand, columns)
        case _:
            return None


def _nulls(operand: Expression, columns: Sequence[ColumnProfile]) -> float:
    profile = _profile(operand, columns)
    return _EQUALITY if profile is None else profile.nulls


def _equality(left: Expression, right: Expression, columns: Sequence[ColumnProfile]) -> float:
    known = [profile.distinct for profile in (_profile(left, columns), _profile(right, columns)) if profile is not None]
    return 1.0 / max(known) if known else _EQUALITY


def _below(small: Expression, large: Expression, columns: Sequence[ColumnProfile]) -> float:
    """small < large, by linear interpolation between the bounds of a column where the other side is a constant."""
    compared = [columns[side.index] for side in (small, large) if isinstance(side, FieldReference)]
    if len(compared) == 1 and compared[0].bounds is None:
        return _COMPARISON_OF_COMPUTED
    match small, large:
        case FieldReference(index=index), Literal(value=int(value)):
            return _share_below(columns[index], value)
        case Literal(value=int(value)), FieldReference(index=index):
            return 1.0 - _share_below(columns[index], value)
        case _:
            return _COMPARISON


def _share_below(column: ColumnProfile, value: int) -> float:
    assert column.bounds is not None, "columns of unknown range are not interpolated"
    low, high = column.bounds
    return min(1.0, max(0.0, (value - low) / max(1, high - low)))
