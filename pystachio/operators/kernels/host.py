"""Inner loops in numpy and C, on views of CPU tensors: 2 to 10 times faster than torch's, with less dispatch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import torch

from pystachio.operators.column import Bounds
from pystachio.operators.kernels import native, portable

Scalar = bool | int | float

_COMPARE: Final[dict[str, Callable[..., Any]]] = {
    "equal": np.equal,
    "not_equal": np.not_equal,
    "lt": np.less,
    "lte": np.less_equal,
    "gt": np.greater,
    "gte": np.greater_equal,
}

_ARITHMETIC: Final[dict[str, Callable[..., Any]]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
}

_NUMPY: Final[dict[torch.dtype, type[np.generic]]] = {
    torch.int8: np.int8,
    torch.int16: np.int16,
    torch.int32: np.int32,
    torch.int64: np.int64,
    torch.float32: np.float32,
    torch.float64: np.float64,
}


def compare(function: str, left: torch.Tensor, right: torch.Tensor | Scalar) -> torch.Tensor:
    """`left function right` per row as bool, in IEEE order for floats. A scalar must fit the dtype of `left`."""
    other = right.numpy() if isinstance(right, torch.Tensor) else right
    return torch.from_numpy(_COMPARE[function](left.numpy(), other))


def arithmetic(
    function: str, left: torch.Tensor | Scalar, right: torch.Tensor | Scalar, dtype: torch.dtype
) -> torch.Tensor:
    """add, subtract or multiply in `dtype`, wrapping on overflow. At least one operand is a tensor."""
    kind = _NUMPY[dtype]
    first = left.numpy() if isinstance(left, torch.Tensor) else kind(left)
    second = right.numpy() if isinstance(right, torch.Tensor) else kind(right)
    with np.errstate(all="ignore"):
        return torch.from_numpy(_ARITHMETIC[function](first, second, dtype=kind))


def indices_of_true(mask: torch.Tensor) -> torch.Tensor:
    """Positions of the true rows in order, int64."""
    return torch.from_numpy(np.flatnonzero(mask.numpy()))


def minimum_and_maximum(values: torch.Tensor) -> Bounds:
    """Of a non-empty integer tensor."""
    view = values.numpy()
    return int(view.min()), int(view.max())


def all_true(mask: torch.Tensor) -> bool:
    return bool(mask.numpy().all())


def any_true(mask: torch.Tensor) -> bool:
    return bool(mask.numpy().any())


def offsets_within(values: torch.Tensor, low: int, span: int) -> torch.Tensor:
    """`values - low` where that is in [0, span), else `span`."""
    view = values.numpy()
    # Wrapping subtraction read as unsigned: everything outside the range is above it, on both sides.
    distance = np.subtract(view, view.dtype.type(low)).view(np.uint32 if values.dtype == torch.int32 else np.uint64)
    np.minimum(distance, distance.dtype.type(span), out=distance)
    return torch.from_numpy(distance.view(view.dtype))


def repeat(values: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Each value as often as `counts` says."""
    return torch.from_numpy(values.numpy().repeat(counts.numpy()))


def group_sums(values: torch.Tensor, codes: torch.Tensor, slots: int) -> torch.Tensor:
    """int64 [slots]: the sums, wrapping, of the integer `values` by their integer `codes` in [0, slots)."""
    library = native.library()
    if library is None:
        return portable.group_sums(values, codes, slots)
    values, codes, sums = values.contiguous(), codes.contiguous(), torch.zeros(slots, dtype=torch.int64)
    status = library.pystachio_group_sums(
        values.data_ptr(), values.itemsize, codes.data_ptr(), codes.itemsize, len(codes), slots, sums.data_ptr()
    )
    assert status == native.Status.OK, "widths of integers"
    return sums


def group_rows(codes: torch.Tensor, slots: int) -> tuple[torch.Tensor, torch.Tensor]:
    """int64 [slots], twice: how many rows have the code, and 1 + the position of one of them (0: none)."""
    library = native.library()
    if library is None:
        return portable.group_rows(codes, slots)
    codes, counts, last = codes.contiguous(), *torch.zeros(2, slots, dtype=torch.int64)
    status = library.pystachio_group_rows(
        codes.data_ptr(), codes.itemsize, len(codes), slots, counts.data_ptr(), last.data_ptr()
    )
    assert status == native.Status.OK, "widths of integers"
    return counts, last
