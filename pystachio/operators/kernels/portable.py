"""Inner loops in torch: run on every device and say what the faster twins in `host` must do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch

from pystachio.operators.column import Bounds

Scalar = bool | int | float

_COMPARE: Final[dict[str, Callable[..., torch.Tensor]]] = {
    "equal": torch.eq,
    "not_equal": torch.ne,
    "lt": torch.lt,
    "lte": torch.le,
    "gt": torch.gt,
    "gte": torch.ge,
}

_ARITHMETIC: Final[dict[str, Callable[..., torch.Tensor]]] = {
    "add": torch.add,
    "subtract": torch.sub,
    "multiply": torch.mul,
}


def compare(function: str, left: torch.Tensor, right: torch.Tensor | Scalar) -> torch.Tensor:
    """`left function right` per row as bool, in IEEE order for floats. A scalar must fit the dtype of `left`."""
    return _COMPARE[function](left, right)


def arithmetic(
    function: str, left: torch.Tensor | Scalar, right: torch.Tensor | Scalar, dtype: torch.dtype
) -> torch.Tensor:
    """add, subtract or multiply in `dtype`, wrapping on overflow. At least one operand is a tensor."""
    if isinstance(left, torch.Tensor):
        left = left.to(dtype)
    if isinstance(right, torch.Tensor):
        right = right.to(dtype)
    if not isinstance(left, torch.Tensor):
        assert isinstance(right, torch.Tensor)
        left = torch.full((), left, dtype=dtype, device=right.device)
    return _ARITHMETIC[function](left, right)


def indices_of_true(mask: torch.Tensor) -> torch.Tensor:
    """Positions of the true rows in order, int64."""
    return torch.nonzero(mask).squeeze(1)


def minimum_and_maximum(values: torch.Tensor) -> Bounds:
    """Of a non-empty integer tensor."""
    low, high = torch.stack(torch.aminmax(values)).tolist()
    return low, high


def all_true(mask: torch.Tensor) -> bool:
    return bool(mask.all())


def any_true(mask: torch.Tensor) -> bool:
    return bool(mask.any())


def offsets_within(values: torch.Tensor, low: int, span: int) -> torch.Tensor:
    """`values - low` where that is in [0, span), else `span`. All of `values` (int32 or int64), `low` and `low + span`
    fit the dtype, which is kept."""
    inside = (values >= low) & (values <= low + span - 1)
    return torch.where(inside, values - low, span)


def repeat(values: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Each value as often as `counts` says."""
    return torch.repeat_interleave(values, counts)


def group_sums(values: torch.Tensor, codes: torch.Tensor, slots: int) -> torch.Tensor:
    """int64 [slots]: the sums, wrapping, of the integer `values` by their integer `codes` in [0, slots)."""
    total = torch.zeros(slots, dtype=torch.int64, device=values.device)
    return total.scatter_add_(0, codes.to(torch.int64), values.to(torch.int64))


def group_rows(codes: torch.Tensor, slots: int) -> tuple[torch.Tensor, torch.Tensor]:
    """int64 [slots], twice: how many rows have the code, and 1 + the position of one of them (0: none)."""
    ids = codes.to(torch.int64)
    holders = torch.zeros(slots, dtype=torch.int64, device=codes.device)
    numbers = torch.arange(1, len(ids) + 1, device=codes.device)
    return torch.bincount(ids, minlength=slots), holders.scatter_(0, ids, numbers)
