"""What the compiled library does with floats of a host: order, round, and fold them for variances."""

from __future__ import annotations

import numpy as np
import torch

from pystachio.operators.kernels import native
from pystachio.operators.kernels.host_memory import empty


def ordered_floats(values: torch.Tensor) -> torch.Tensor | None:
    """int64 that order as the floats (float32 or float64 [rows]) do: -0.0 equals 0.0, NaN is above everything. None
    without the library."""
    library = native.library(len(values))
    if library is None:
        return None
    values = values.contiguous()
    words = empty(len(values), torch.int64)
    status = library.pystachio_order_floats(values.data_ptr(), values.itemsize, len(values), words.data_ptr())
    assert status == native.Status.OK, "floats of four or eight bytes"
    return words


def group_moments(
    values: torch.Tensor, counted: torch.Tensor | None, codes: torch.Tensor | None, slots: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None:
    """float64 [slots] each, of the float64 `values` by their integer `codes` in [0, slots) (None: all have 0): how many
    are `counted` (int8, None: all), their mean, and the sum of the squares of what they are off it. None without the
    library."""
    rows = len(values)
    library = native.library(rows)
    if library is None:
        return None
    values, counts, means, squares = values.contiguous(), *(empty(slots, torch.float64) for _ in range(3))
    counted = None if counted is None else counted.contiguous()
    codes = None if codes is None else codes.contiguous()
    status = library.pystachio_group_moments(
        values.data_ptr(),
        None if counted is None else counted.data_ptr(),
        None if codes is None else codes.data_ptr(),
        0 if codes is None else codes.itemsize,
        rows,
        slots,
        *(found.data_ptr() for found in (counts, means, squares)),
    )
    if status == native.Status.NO_MEMORY:
        return None
    assert status == native.Status.OK, "widths of integers"
    return counts, means, squares


def group_float_sums(
    values: torch.Tensor, counted: torch.Tensor | None, codes: torch.Tensor | None, slots: int
) -> torch.Tensor | None:
    """float64 [slots]: the sums of the float `values` by their integer `codes` in [0, slots) (None: all have 0), of the
    rows that are `counted` (bool, None: all). None without the library."""
    library = native.library(len(values))
    if library is None or values.itemsize < 4:
        return None
    values, sums = values.contiguous(), empty(slots, torch.float64)
    counted = None if counted is None else counted.contiguous()
    codes = None if codes is None else codes.contiguous()
    status = library.pystachio_group_float_sums(
        values.data_ptr(),
        values.itemsize,
        None if counted is None else counted.data_ptr(),
        None if codes is None else codes.data_ptr(),
        0 if codes is None else codes.itemsize,
        len(values),
        slots,
        sums.data_ptr(),
    )
    assert status == native.Status.OK, "widths of floats and integers"
    return sums


def whole_floats(values: torch.Tensor, valid: torch.Tensor | None) -> tuple[torch.Tensor, tuple[int, int]] | None:
    """The nearest integers (int64 [rows], halves to even) of floats, and the range of those that are `valid` (None: all
    are); None without the library, or where one of these does not fit."""
    rows = len(values)
    library = native.library(rows)
    if library is None:
        return None
    values, integers, range_ = values.contiguous(), empty(rows, torch.int64), np.empty(2, np.int64)
    valid = None if valid is None else valid.contiguous()
    status = library.pystachio_whole_floats(
        values.data_ptr(),
        values.itemsize,
        None if valid is None else valid.data_ptr(),
        rows,
        integers.data_ptr(),
        range_.ctypes.data,
    )
    return (integers, (int(range_[0]), int(range_[1]))) if status == native.Status.OK else None


def extreme_floats(
    values: torch.Tensor, valid: torch.Tensor | None, codes: torch.Tensor | None, slots: int, *, largest: bool
) -> torch.Tensor | None:
    """int64 [slots]: the lowest or highest of the `ordered_floats` of each of the integer `codes` in [0, slots) (None:
    all rows have 0), of the rows that are `valid` (None: all are); anything where there is none. None without the
    library."""
    library = native.library(len(values))
    if library is None or values.itemsize < 4:
        return None
    values, best = values.contiguous(), empty(slots, torch.int64)
    valid = None if valid is None else valid.contiguous()
    codes = None if codes is None else codes.contiguous()
    status = library.pystachio_float_extremes(
        values.data_ptr(),
        values.itemsize,
        None if valid is None else valid.data_ptr(),
        None if codes is None else codes.data_ptr(),
        0 if codes is None else codes.itemsize,
        len(values),
        slots,
        largest,
        best.data_ptr(),
    )
    assert status == native.Status.OK, "widths of floats and integers"
    return best
