"""Which row groups a predicate cannot be true in, by the footer's statistics.

Everything here is conservative: statistics are inclusive limits that need not be tight (strings may be truncated) and
leave NaN out, so a shape that is not understood keeps the row group.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from pystachio.operators.expressions import Call, Cast, Expression, FieldReference, InList, Literal
from pystachio.operators.parquet.statistics import ChunkStatistics, IntegerRanges

StatisticsOf = Callable[[int], ChunkStatistics]
"""Statistics of the field at a position."""

_MIRRORED = {
    "lt": "gt",
    "lte": "gte",
    "gt": "lt",
    "gte": "lte",
    "equal": "equal",
    "is_not_distinct_from": "is_not_distinct_from",
}
_WILDCARDS = ("%", "_", "\\")


RangesOf = Callable[[int], IntegerRanges | None]
"""Ranges in all row groups of the field at a position; None where they are not all integers."""


class ListedValues:
    """The values of long IN lists in order, sorted once for all the row groups that they are compared with."""

    def __init__(self) -> None:
        self._sorted: dict[int, tuple[InList, list[Any] | None]] = {}

    def of(self, predicate: InList) -> list[Any] | None:
        """Without NULLs, which equal nothing; texts as bytes. None where they are not all comparable constants."""
        known = self._sorted.get(id(predicate))
        if known is None:
            # With the list itself, so that no other one takes its identity.
            known = self._sorted[id(predicate)] = predicate, _in_order(predicate)
        return known[1]


def _in_order(predicate: InList) -> list[Any] | None:
    values = []
    for option in predicate.options:
        if not isinstance(option, Literal) or (isinstance(option.value, float) and math.isnan(option.value)):
            return None
        if option.value is not None:
            values.append(option.value.encode() if isinstance(option.value, str) else option.value)
    if len({isinstance(value, bytes) for value in values}) > 1:
        return None
    values.sort()
    return values


def row_groups(
    predicate: Expression,
    ranges: RangesOf,
    statistics: Callable[[int, int], ChunkStatistics],
    rows: np.ndarray,
    listed: ListedValues | None = None,
) -> np.ndarray:
    """bool per row group of a file: `may_be_true`, where `statistics` takes the row group and the position.

    Integers are compared for all row groups at once. Whoever asks for several files hands over the same `listed`.
    """
    listed = ListedValues() if listed is None else listed
    match predicate:
        case Call(function="and", arguments=parts):
            matching: np.ndarray = np.all(
                [row_groups(part, ranges, statistics, rows, listed) for part in parts], axis=0
            )
            return matching
        case Call(function="or", arguments=parts):
            matching = np.any([row_groups(part, ranges, statistics, rows, listed) for part in parts], axis=0)
            return matching
        case Call(function=function, arguments=(left, right)) if function in _MIRRORED:
            if isinstance(left, Literal):
                function, left, right = _MIRRORED[function], right, left
            source = _source(left)
            if source is not None and isinstance(right, Literal) and type(right.value) is int:
                known = ranges(source[0])
                limit = source[1](1) if known is not None else 0
                if known is not None and known.can_be_multiplied(limit) and abs(right.value) < 2**63:
                    within = _in_ranges(function, known.low * limit, known.high * limit, right.value)
                    return np.asarray((known.nulls != rows) & (within | ~known.known))
    return np.fromiter(
        (
            may_be_true(predicate, lambda index, group=group: statistics(group, index), int(count), listed)  # type: ignore[misc]
            for group, count in enumerate(rows)
        ),
        dtype=np.bool_,
        count=len(rows),
    )


def _in_ranges(function: str, low: np.ndarray, high: np.ndarray, wanted: int) -> np.ndarray:
    match function:
        case "lt":
            return low < wanted
        case "lte":
            return low <= wanted
        case "gt":
            return high > wanted
        case "gte":
            return high >= wanted
        case _:
            return (low <= wanted) & (wanted <= high)


def may_be_true(predicate: Expression, statistics: StatisticsOf, rows: int, listed: ListedValues | None = None) -> bool:
    """False only when the predicate is true for none of the row group's `rows` rows."""
    listed = ListedValues() if listed is None else listed
    match predicate:
        case Literal(value=value):
            return value is not None and value is not False
        case Call(function="and", arguments=parts):
            return all(may_be_true(part, statistics, rows, listed) for part in parts)
        case Call(function="or", arguments=parts):
            return any(may_be_true(part, statistics, rows, listed) for part in parts)
        case Call(function="is_null", arguments=(FieldReference(index=index),)):
            return statistics(index).nulls != 0
        case Call(function="is_not_null", arguments=(FieldReference(index=index),)):
            return statistics(index).nulls != rows
        case Call(
            function="like" | "starts_with" as function, arguments=(FieldReference(index=index), Literal() as text)
        ):
            return _prefix_may_match(statistics(index), rows, _prefix(function, text.value))
        case Call(function=function, arguments=(left, right)) if function in _MIRRORED:
            return _comparison_may_be_true(function, left, right, statistics, rows)
        case InList(operand=operand, options=options):
            values = listed.of(predicate)
            if values is None:
                return any(_comparison_may_be_true("equal", operand, option, statistics, rows) for option in options)
            return _any_may_be_equal(operand, values, statistics, rows)
        case _:
            return True


def must_be_true(predicate: Expression, statistics: StatisticsOf, rows: int) -> bool:
    """True only when the predicate is true for all of the row group's `rows` rows."""
    match predicate:
        case Literal(value=value):
            return value is True
        case Call(function="and", arguments=parts):
            return all(must_be_true(part, statistics, rows) for part in parts)
        case Call(function="or", arguments=parts):
            return any(must_be_true(part, statistics, rows) for part in parts)
        case Call(function="is_null", arguments=(FieldReference(index=index),)):
            return statistics(index).nulls == rows
        case Call(function="is_not_null", arguments=(FieldReference(index=index),)):
            return statistics(index).nulls == 0
        case Call(function=function, arguments=(left, right)) if function in _MIRRORED or function == "not_equal":
            return _comparison_must_be_true(function, left, right, statistics)
        case _:
            return False


def _comparison_must_be_true(function: str, left: Expression, right: Expression, statistics: StatisticsOf) -> bool:
    if isinstance(left, Literal):
        function, left, right = _MIRRORED.get(function, function), right, left
    source = _source(left)
    if source is None or not isinstance(right, Literal) or right.value is None:
        return False
    known = statistics(source[0])
    wanted = right.value.encode() if isinstance(right.value, str) else right.value
    # Not for floats, whose NaN statistics leave out.
    if known.nulls != 0 or not isinstance(known.low, int | bytes) or not isinstance(wanted, int | bytes):
        return False
    low, high = source[1](known.low), source[1](known.high)
    if isinstance(low, bytes) is not isinstance(wanted, bytes):
        return False
    match function:
        case "lt":
            return bool(high < wanted)
        case "lte":
            return bool(high <= wanted)
        case "gt":
            return bool(low > wanted)
        case "gte":
            return bool(low >= wanted)
        case "not_equal":
            return bool(wanted < low or high < wanted)
        case _:
            return bool(low == wanted == high)


def _comparison_may_be_true(
    function: str, left: Expression, right: Expression, statistics: StatisticsOf, rows: int
) -> bool:
    if isinstance(left, Literal):
        function, left, right = _MIRRORED[function], right, left
    if not isinstance(right, Literal):
        return True
    if right.value is None:
        return function == "is_not_distinct_from"
    source = _source(left)
    if source is None:
        return True
    index, convert = source
    known = statistics(index)
    if known.nulls == rows:
        return False
    wanted = right.value.encode() if isinstance(right.value, str) else right.value
    if known.low is None or (isinstance(wanted, float) and math.isnan(wanted)):
        return True
    return _in_range(function, convert(known.low), convert(known.high), wanted, floating=isinstance(wanted, float))


def _any_may_be_equal(operand: Expression, values: list[Any], statistics: StatisticsOf, rows: int) -> bool:
    """`values` in order, without NULLs and NaNs."""
    source = _source(operand)
    if not values or source is None:
        return bool(values)
    index, convert = source
    known = statistics(index)
    if known.nulls == rows:
        return False
    if known.low is None or isinstance(known.low, bytes) is not isinstance(values[0], bytes):
        return True
    return bisect_left(values, convert(known.low)) < bisect_right(values, convert(known.high))


def _in_range(function: str, low: Any, high: Any, wanted: Any, *, floating: bool) -> bool:
    """`floating`: a NaN, which statistics leave out, is greater than every number."""
    if isinstance(low, bytes) is not isinstance(wanted, bytes):
        return True
    match function:
        case "lt":
            return bool(low < wanted)
        case "lte":
            return bool(low <= wanted)
        case "gt":
            return floating or bool(high > wanted)
        case "gte":
            return floating or bool(high >= wanted)
        case _:
            return bool(low <= wanted <= high)


def _source(expression: Expression) -> tuple[int, Callable[[Any], Any]] | None:
    """The field behind an expression that grows with it, and what the expression makes of the field's value."""
    match expression:
        case FieldReference(index=index):
            return index, _same
        case Cast(operand=FieldReference(index=index, type=source), type=target, null_on_failure=False):
            factor = _widening_factor(source, target)
            return None if factor is None else (index, lambda value: value * factor)
        case _:
            return None


def _same(value: Any) -> Any:
    return value


def _widening_factor(source: pa.DataType, target: pa.DataType) -> int | None:
    """What a lossless conversion multiplies the encoded value with; None for conversions that may lose or fail."""
    if pa.types.is_decimal(target):
        digits = target.scale - (source.scale if pa.types.is_decimal(source) else 0)
        if digits >= 0 and (pa.types.is_decimal(source) or pa.types.is_integer(source)):
            return int(10**digits)
    if pa.types.is_integer(source) and pa.types.is_integer(target) and source.bit_width <= target.bit_width:
        return 1
    if pa.types.is_float32(source) and pa.types.is_float64(target):
        return 1
    return None


def _prefix(function: str, text: Any) -> bytes:
    """The bytes that every match begins with."""
    if not isinstance(text, str):
        return b""
    if function == "starts_with":
        return text.encode()
    ends = [position for position in map(text.find, _WILDCARDS) if position >= 0]
    return text[: min(ends, default=len(text))].encode()


def _prefix_may_match(known: ChunkStatistics, rows: int, prefix: bytes) -> bool:
    if known.nulls == rows:
        return False
    if not isinstance(known.low, bytes) or not prefix:
        return True
    return bool(known.high >= prefix and known.low[: len(prefix)] <= prefix)
