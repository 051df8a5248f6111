"""Comparisons of a computed value with constants as comparisons of what it is computed from.

Statistics of row groups, samples and programs know columns, not casts and years of them.
"""

from __future__ import annotations

import datetime
from typing import Final

import pyarrow as pa

from pystachio.operators.expressions import Call, Cast, Expression, FieldReference, InList, Literal
from pystachio.planner.rewrites.constants import floor, is_widening, represented

_COMPARISONS: Final = frozenset(
    ("equal", "not_equal", "lt", "lte", "gt", "gte", "is_distinct_from", "is_not_distinct_from")
)
# A comparison with what lies between two values, as one with the lower of them.
_BESIDE: Final = {"lt": "lte", "lte": "lte", "gt": "gt", "gte": "gt"}
# How a comparison with a year compares with its first day and with that of the next.
_YEARS: Final = {
    "equal": ("and", "gte", "lt"),
    "not_equal": ("or", "lt", "gte"),
    "lt": (None, "lt", None),
    "gte": (None, "gte", None),
    "lte": (None, None, "lt"),
    "gt": (None, None, "gte"),
}
_EPOCH: Final = datetime.date(1970, 1, 1)


def closer(node: Expression) -> Expression:
    """An equal comparison with less computed, or the same."""
    match node:
        case Call(function=function, arguments=(operand, Literal() as wanted)) if function in _COMPARISONS:
            while (narrow := _behind_cast(operand)) is not None:
                found = _rounded(function, wanted, narrow.type)
                if found is None:
                    break
                operand, (function, wanted) = narrow, found
            return _of_year(function, operand, wanted) or Call(function, (operand, wanted), node.type)
        case InList(operand=operand, options=options):
            while (narrow := _behind_cast(operand)) is not None:
                literals = tuple([represented(option, narrow.type) for option in options])
                if None in literals:
                    break
                operand, options = narrow, tuple([literal for literal in literals if literal is not None])
            return node if operand is node.operand else InList(operand, options, node.type)
        case _:
            return node


def _behind_cast(operand: Expression) -> Expression | None:
    """What is cast to a type that has all of its values."""
    match operand:
        case Cast(operand=narrow, type=type_, null_on_failure=False) if is_widening(narrow.type, type_):
            return narrow
        case _:
            return None


def _rounded(function: str, wanted: Literal, type_: pa.DataType) -> tuple[str, Literal] | None:
    """The comparison with a constant as one with a constant of a narrower type."""
    if wanted.value is None:
        return function, Literal(None, type_)
    found = floor(wanted, type_)
    if found is None:
        return None
    below, is_equal = found
    if is_equal:
        return function, below
    # Nothing of that type lies between.
    between = _BESIDE.get(function)
    return None if between is None else (between, below)


def _of_year(function: str, operand: Expression, wanted: Literal) -> Expression | None:
    """A comparison of a column's year as one of the column."""
    match operand, wanted.value:
        case Call(function="date_part", arguments=(Literal(value="year"), FieldReference() as column)), int(year):
            pass
        case _:
            return None
    if function not in _YEARS or not datetime.MINYEAR <= year < datetime.MAXYEAR:
        return None
    combined, of_first, of_next = _YEARS[function]
    parts = []
    for comparison, start in ((of_first, year), (of_next, year + 1)):
        if comparison is not None:
            day = Literal((datetime.date(start, 1, 1) - _EPOCH).days, pa.date32())
            beginning = represented(day, column.type)
            if beginning is None:
                return None
            parts.append(Call(comparison, (column, beginning), pa.bool_()))
    return parts[0] if combined is None else Call(combined, tuple(parts), pa.bool_())
