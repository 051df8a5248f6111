"""Integer columns in the narrowest dtype that their table needs, with bounds: half the work of everything that follows.

The dtype is chosen once per table from the footers, so that a column keeps it from batch to batch; the bounds are
measured on each batch, because a footer may lie and what follows relies on them.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import torch

from pystachio.operators.column import Bounds, FixedColumn

_DTYPES = (np.dtype(np.int8), np.dtype(np.int16), np.dtype(np.int32), np.dtype(np.int64))
_RANGES = tuple((dtype, int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)) for dtype in _DTYPES)


def narrowest_dtype(bounds: Bounds) -> np.dtype[np.signedinteger]:
    """The smallest signed integer dtype that holds both ends; int64 when none does."""
    for dtype, low, high in _RANGES:
        if low <= bounds[0] and bounds[1] <= high:
            return dtype
    return _DTYPES[-1]


def narrow(column: FixedColumn, wanted: Bounds | None) -> FixedColumn:
    """The column with measured bounds, in the narrowest dtype for them and for the range `wanted` of its whole table.

    `wanted` None: the dtype stays. Floats and booleans are returned as they are.
    """
    if column.values.dtype.is_floating_point or column.values.dtype == torch.bool or not len(column):
        return column
    values = column.values.numpy()
    bounds = int(values.min()), int(values.max())
    if wanted is not None:
        dtype = narrowest_dtype((min(bounds[0], wanted[0]), max(bounds[1], wanted[1])))
        if dtype.itemsize < values.dtype.itemsize:
            values = values.astype(dtype)
    return FixedColumn(column.type, torch.from_numpy(values), column.validity, bounds)


def small_decimals(array: pa.Array) -> FixedColumn:
    """A decimal128 array whose file stores 64 bits per value: the low limb is the value."""
    limbs = np.frombuffer(array.buffers()[1], np.int64)[2 * array.offset : 2 * (array.offset + len(array)) : 2]
    validity = None
    if array.null_count:
        validity = torch.from_numpy(array.is_valid().to_numpy(zero_copy_only=False))
    return FixedColumn(array.type, torch.from_numpy(np.ascontiguousarray(limbs)), validity)
