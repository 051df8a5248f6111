"""Partial states of aggregates: what a group is reduced to before all of its rows were seen.

A state is one or more columns. `lift` makes the states of single rows, `merge` folds the states of a group into one;
merging lifted rows is aggregating them, so partial and final aggregation are the same code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, assert_never

import pyarrow as pa
import torch

from pystachio.errors import InternalError
from pystachio.operators.column import Bounds, Column, FixedColumn, WideDecimalColumn
from pystachio.operators.functions.operands import unscaled
from pystachio.operators.kernels.exact_sums import exact_sums
from pystachio.operators.kernels.extremes import extreme, first
from pystachio.operators.kernels.grouping import Grouping
from pystachio.operators.kernels.host_memory import ones
from pystachio.operators.kernels.selection import plain, with_validity

_ONE_EACH: Final[Bounds] = (1, 1)
_ONE_OR_NONE: Final[Bounds] = (0, 1)


class StateKind(StrEnum):
    """What is folded. MOMENTS: count, mean and sum of squared deviations. FIRST: a value and whether there is one."""

    COUNT = "count"
    SUM = "sum"
    FLOAT_SUM = "float sum"
    MINIMUM = "minimum"
    MAXIMUM = "maximum"
    FIRST = "first"
    MOMENTS = "moments"


@dataclass(frozen=True, slots=True)
class State:
    """`kind` over the input's fields `arguments`, of the rows where the boolean field `filter` is true.

    `types` are those of the state's columns.
    """

    kind: StateKind
    arguments: tuple[int, ...]
    filter: int | None
    types: tuple[pa.DataType, ...]


def state_types(kind: StateKind, argument: pa.DataType | None) -> tuple[pa.DataType, ...]:
    """The columns of a state over an argument of that type."""
    match kind:
        case StateKind.COUNT:
            return (pa.int64(),)
        case StateKind.SUM:
            scale = argument.scale if argument is not None and pa.types.is_decimal(argument) else 0
            return (pa.decimal128(38, scale),)
        case StateKind.FLOAT_SUM:
            return (pa.float64(),)
        case StateKind.MINIMUM | StateKind.MAXIMUM:
            return (argument,)
        case StateKind.FIRST:
            return (argument, pa.bool_())
        case StateKind.MOMENTS:
            return (pa.int64(), pa.float64(), pa.float64())
        case _:
            assert_never(kind)


def lift(
    kind: StateKind, arguments: Sequence[Column], passing: torch.Tensor | None, rows: int, device: torch.device
) -> list[Column]:
    """The state columns of single rows; rows that are not `passing` (bool, None: all are) contribute nothing."""
    match kind:
        case StateKind.COUNT:
            counted = _conjunction([passing, *(column.validity for column in arguments)])
            if counted is None:
                each = ones(rows) if device.type == "cpu" else torch.ones(rows, dtype=torch.int8, device=device)
                return [FixedColumn(pa.int64(), each, None, _ONE_EACH)]
            return [FixedColumn(pa.int64(), counted.to(torch.int8), None, (0, 1))]
        case StateKind.SUM:
            return [_exact(arguments[0], _conjunction([passing, arguments[0].validity]))]
        case StateKind.MINIMUM | StateKind.MAXIMUM:
            return [with_validity(arguments[0], _conjunction([passing, arguments[0].validity]))]
        case StateKind.FLOAT_SUM:
            valid = _conjunction([passing, arguments[0].validity])
            return [FixedColumn(pa.float64(), floats_of(arguments[0]), valid)]
        case StateKind.FIRST:
            seen = torch.ones(rows, dtype=torch.bool, device=device) if passing is None else passing
            value = arguments[0]
            if passing is not None:
                # A group of this row alone has no value then, and is perhaps never merged with another.
                value = with_validity(value, _conjunction([passing, value.validity]))
            return [value, FixedColumn(pa.bool_(), seen)]
        case StateKind.MOMENTS:
            valid = _conjunction([passing, arguments[0].validity])
            values = floats_of(arguments[0])
            counts = torch.ones(rows, dtype=torch.int8, device=device) if valid is None else valid.to(torch.int8)
            values = values if valid is None else torch.where(valid, values, 0.0)
            zeros = torch.zeros(rows, dtype=torch.float64, device=device)
            return [
                FixedColumn(pa.int64(), counts, None, _ONE_EACH if valid is None else _ONE_OR_NONE),
                FixedColumn(pa.float64(), values),
                FixedColumn(pa.float64(), zeros),
            ]
        case _:
            assert_never(kind)


def merge(state: State, columns: Sequence[Column], grouping: Grouping) -> list[Column]:
    """The states of each group's rows as one state per group."""
    match state.kind:
        case StateKind.COUNT:
            return [FixedColumn(pa.int64(), _counts(columns[0], grouping))]
        case StateKind.SUM:
            return [exact_sums(columns[0], state.types[0], grouping)]
        case StateKind.FLOAT_SUM:
            return [_float_sums(columns[0], grouping)]
        case StateKind.MINIMUM | StateKind.MAXIMUM:
            return [extreme(columns[0], grouping, largest=state.kind is StateKind.MAXIMUM)]
        case StateKind.FIRST:
            seen = _values(columns[1])
            present = grouping.any_of(seen)
            flags = (
                torch.ones(grouping.groups, dtype=torch.bool, device=grouping.device) if present is None else present
            )
            return [first(columns[0], seen, grouping), FixedColumn(pa.bool_(), flags)]
        case StateKind.MOMENTS:
            return _merge_moments(columns, grouping)
        case _:
            assert_never(state.kind)


def floats_of(column: Column) -> torch.Tensor:
    """Numbers as float64, decimals unscaled; arbitrary under NULLs."""
    return unscaled(plain(column))


def _exact(column: Column, validity: torch.Tensor | None) -> Column:
    """Integers or decimals under the type of their sum."""
    (type_,) = state_types(StateKind.SUM, column.type)
    match plain(column):
        case FixedColumn(values=values, bounds=bounds):
            return FixedColumn(type_, values, validity, bounds)
        case WideDecimalColumn(high=high, low=low):
            return WideDecimalColumn(type_, high, low, validity)
        case _:
            raise InternalError(f"a sum of {column.type}")


def _counts(column: Column, grouping: Grouping) -> torch.Tensor:
    assert isinstance(column, FixedColumn)
    if column.bounds == _ONE_EACH:
        return grouping.row_counts
    return grouping.sums(column.values.to(torch.int64))


def _float_sums(column: Column, grouping: Grouping) -> FixedColumn:
    values = _values(column).to(torch.float64)
    return FixedColumn(pa.float64(), grouping.sums(values, column.validity), grouping.any_of(column.validity))


def _merge_moments(columns: Sequence[Column], grouping: Grouping) -> list[Column]:
    """Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances" (1979),
    for any number of parts: deviations from the common mean are summed in a second pass, then corrected."""
    assert isinstance(columns[0], FixedColumn)
    if columns[0].bounds in (_ONE_EACH, _ONE_OR_NONE):
        # Single values are off their mean by nothing.
        counted = None if columns[0].bounds == _ONE_EACH else columns[0].values.to(torch.int8)
        found = grouping.moments(_values(columns[1]), counted)
        if found is not None:
            return [
                FixedColumn(pa.int64(), found[0].to(torch.int64)),
                *(FixedColumn(pa.float64(), f) for f in found[1:]),
            ]
    counts = _values(columns[0]).to(torch.float64)
    means, squares = _values(columns[1]), _values(columns[2])
    total = grouping.sums(counts)
    divisor = total.clamp(min=1.0)
    mean = grouping.sums(counts * means) / divisor
    deviations = means - grouping.spread(mean)
    weighted = torch.where(counts > 0, counts * deviations, 0.0)
    drift = grouping.sums(weighted)
    squared = grouping.sums(torch.where(counts > 0, squares + weighted * deviations, 0.0)) - drift * drift / divisor
    return [
        FixedColumn(pa.int64(), total.to(torch.int64)),
        FixedColumn(pa.float64(), mean + drift / divisor),
        FixedColumn(pa.float64(), squared),
    ]


def _values(column: Column) -> torch.Tensor:
    assert isinstance(column, FixedColumn)
    return column.values


def _conjunction(masks: Sequence[torch.Tensor | None]) -> torch.Tensor | None:
    present = [mask for mask in masks if mask is not None]
    result: torch.Tensor | None = None
    for mask in present:
        result = mask if result is None else result & mask
    return result


def passing_rows(column: Column | None) -> torch.Tensor | None:
    """Where a FILTER's boolean column is true; None without a filter."""
    if column is None:
        return None
    values = _values(plain(column))
    return values if column.validity is None else values & column.validity
