"""Whether partial batches have groups in common, as far as that is simple to see: where not, nothing need be merged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from pystachio.operators.batch import Batch
from pystachio.operators.column import Column, DictionaryColumn, FixedColumn
from pystachio.operators.kernels.ascending import ascend

_GLANCE: Final = 64
"""Rows that say of most batches that they are in no order."""
_FEW_ROWS: Final = 1 << 10
"""Batches of fewer each are better merged."""
_MOST_SPREAD: Final = 16
_MOST_RANGE: Final = 1 << 23
"""Of keys so far apart, for each row or in all, it is not asked whether they are different."""


def has_no_group_twice(keys: Sequence[Column], rows: int) -> bool:
    """Whether that is simple to see: they are in order, as is what programs fold (`operators.fusion.groups`), by the
    first keys already."""
    if rows <= 1:
        return True
    known: list[np.ndarray[Any, Any]] = []
    for key in keys:
        values = _numbers(key)
        if values is None:
            break
        known.append(values)
    return bool(known) and ascend([each[:_GLANCE] for each in known]) and ascend(known)


def share_no_group(batches: Sequence[Batch], width: int) -> bool:
    """Whether it is simple to see that no group of the `width` keys is in two of the batches, or twice in one: the
    first keys are integers that are all different, as where workers went through a table in the order of its key."""
    firsts = [batch.columns[0] for batch in batches if batch.length]
    if width == 0 or not firsts or not all(isinstance(key, FixedColumn) for key in firsts):
        return False
    known = [values for key in firsts if (values := _numbers(key)) is not None]
    if len(known) < len(firsts) or not all(ascend([values[:_GLANCE]]) for values in known):
        return False
    low, high = min(int(values[0]) for values in known), max(int(values[-1]) for values in known)
    rows = sum(map(len, known))
    if rows < _FEW_ROWS * (len(known) - 1):
        return False
    if high - low >= min(_MOST_SPREAD * rows, _MOST_RANGE) or not all(ascend([values]) for values in known):
        return False
    seen = np.zeros(high - low + 1, dtype=np.bool_)
    for values in known:
        seen[np.subtract(values, low, dtype=np.int64)] = True
    return int(np.count_nonzero(seen)) == rows


def _numbers(key: Column) -> np.ndarray[Any, Any] | None:
    """Integers that are equal where the key is, in the order of its rows."""
    match key:
        case FixedColumn(values=tensor, validity=None) | DictionaryColumn(codes=tensor, validity=None):
            return None if tensor.device.type != "cpu" or tensor.dtype.is_floating_point else tensor.numpy()
        case _:
            return None
