"""Value ranges of integer-like columns: what proves that a computation cannot overflow."""

from __future__ import annotations

import numpy as np
import torch

from pystachio.operators.column import Bounds, Column, DictionaryColumn, FixedColumn
from pystachio.operators.kernels import primitives
from pystachio.operators.kernels.arithmetic import INT64


def bounds_of(column: Column) -> Bounds | None:
    """A range that holds every valid value: the known one, else measured. None for floats, strings, wide decimals.

    A column without valid values has the range (0, 0).
    """
    if isinstance(column, FixedColumn) and column.bounds is not None:
        return column.bounds
    return measured_bounds(column)


def cheap_bounds(column: Column) -> Bounds | None:
    """Like `bounds_of` without reading values: the known range, else what the dtype can hold."""
    match column:
        case FixedColumn(bounds=(low, high)):
            return low, high
        case FixedColumn(values=values) if values.dtype == torch.bool:
            return 0, 1
        case FixedColumn(values=values) if not values.dtype.is_floating_point:
            limits = torch.iinfo(values.dtype)
            return limits.min, limits.max
        case DictionaryColumn(dictionary=dictionary):
            return cheap_bounds(dictionary.values)
        case _:
            return None


def measured_bounds(column: Column) -> Bounds | None:
    """The tight range of the valid values, read from all of them."""
    match column:
        case FixedColumn(values=values, validity=validity) if not values.dtype.is_floating_point:
            return _measure(values, validity)
        case DictionaryColumn(dictionary=dictionary):
            return bounds_of(dictionary.values)
        case _:
            return None


def with_measured_bounds(column: Column) -> Column:
    """The column with its bounds filled in where they were unknown, or said no more than that they fit int64."""
    if not isinstance(column, FixedColumn) or column.values.dtype.is_floating_point:
        return column
    if column.bounds is None or column.bounds == INT64:
        return FixedColumn(column.type, column.values, column.validity, measured_bounds(column))
    return column


def with_tight_bounds(column: Column) -> Column:
    """The column with the range of its own values: those that are known may be of a whole table."""
    if not isinstance(column, FixedColumn) or column.values.dtype.is_floating_point:
        return column
    return FixedColumn(column.type, column.values, column.validity, measured_bounds(column))


def _measure(values: torch.Tensor, validity: torch.Tensor | None) -> Bounds:
    if values.shape[0] == 0:
        return 0, 0
    if values.dtype == torch.bool:
        return 0, 1
    if validity is None:
        return primitives(values.device).minimum_and_maximum(values)
    if values.device.type == "cpu":
        # A value that is certainly inside the range takes the place of what lies under NULLs.
        kept = np.flatnonzero(validity.numpy()[:4096])
        if kept.size:
            filled = np.where(validity.numpy(), values.numpy(), values.numpy()[kept[0]])
            return int(filled.min()), int(filled.max())
    else:
        return _measure_valid(values, validity)
    selected = values[validity]
    if selected.shape[0] == 0:
        return 0, 0
    return primitives(values.device).minimum_and_maximum(selected)


def _measure_valid(values: torch.Tensor, validity: torch.Tensor) -> Bounds:
    """On a device, with one wait: what lies under NULLs is taken for the worst value on either side."""
    limits = torch.iinfo(values.dtype)
    smallest = torch.where(validity, values, limits.max).amin()
    largest = torch.where(validity, values, limits.min).amax()
    low, high = torch.stack((smallest, largest)).tolist()
    return (low, high) if low <= high else (0, 0)


def is_within(inner: Bounds, outer: Bounds) -> bool:
    return outer[0] <= inner[0] and inner[1] <= outer[1]
