"""Tensors on the host, made without letting go of the interpreter.

torch lets other threads have it for each operation, however small. Where one of them computes in Python it comes back
after up to a switch interval (`runtime.interpreter`): an allocation of 1 us took 30 us beside such a thread, and a copy
of a few rows 80. numpy keeps the interpreter for what is short.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import torch

from pystachio.operators.kernels.native import FEW_ROWS

NUMPY: Final[dict[torch.dtype, type[np.generic]]] = {
    torch.bool: np.bool_,
    torch.uint8: np.uint8,
    torch.int8: np.int8,
    torch.int16: np.int16,
    torch.int32: np.int32,
    torch.int64: np.int64,
    torch.float32: np.float32,
    torch.float64: np.float64,
}
"""What torch's dtypes are called there."""

Memory = Callable[[Sequence[int]], Sequence[memoryview]]
"""Gives memory of so many bytes each, aligned to pages. Raises ResourceExhausted."""

_SHORT_COPY: Final = 1 << 16
"""Rows that are copied or cleared in so little time, one after the other."""

# By numpy: torch would start threads for it, and each thread that asks for memory gets a heap (`runtime.allocator`).
_ONES: Final = torch.from_numpy(np.ones(1 << 20, np.int8))


def empty(rows: int, dtype: torch.dtype) -> torch.Tensor:
    """`torch.empty` of [rows]."""
    return torch.from_numpy(np.empty(rows, NUMPY[dtype]))


def zeros(rows: int, dtype: torch.dtype) -> torch.Tensor:
    """`torch.zeros` of [rows]."""
    return torch.zeros(rows, dtype=dtype) if rows > _SHORT_COPY else torch.from_numpy(np.zeros(rows, NUMPY[dtype]))


def ones(rows: int) -> torch.Tensor:
    """int8 [rows], of memory that all share: nobody writes to a column."""
    return _ONES[:rows] if rows <= len(_ONES) else torch.ones(rows, dtype=torch.int8)


def is_shared(values: torch.Tensor) -> bool:
    """Whether they are `ones` that take no memory of their own."""
    return values.device.type == "cpu" and values.untyped_storage().data_ptr() == _ONES.data_ptr()


def copied(values: torch.Tensor) -> torch.Tensor:
    """`values.clone()`, of values on the host."""
    return values.clone() if values.shape[0] > _SHORT_COPY else torch.from_numpy(values.numpy().copy())


def taken(values: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """`values.index_select(0, rows)`, on any device."""
    if _is_brief(values, rows.shape[0]):
        return torch.from_numpy(values.numpy().take(rows.numpy()))
    return values.index_select(0, rows)


def joined(parts: Sequence[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
    """`torch.cat` of [rows] each, as values of `dtype`; on any device."""
    if _is_brief(parts[0], sum(part.shape[0] for part in parts)):
        return torch.from_numpy(np.concatenate([part.numpy() for part in parts], dtype=NUMPY[dtype], casting="unsafe"))
    return torch.cat([part if part.dtype == dtype else part.to(dtype) for part in parts])


def as_dtype(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """`values.to(dtype)`, on any device."""
    if values.dtype == dtype:
        return values
    if _is_brief(values, values.shape[0]):
        return torch.from_numpy(values.numpy().astype(NUMPY[dtype]))
    return values.to(dtype)


def _is_brief(values: torch.Tensor, rows: int) -> bool:
    return rows <= FEW_ROWS and values.device.type == "cpu"
