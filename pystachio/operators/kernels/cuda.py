"""Inner loops on a CUDA device: Triton's where they are there and made for the case, else torch's (`portable`).

What torch did for want of Triton is counted with the operator.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Final

import torch

from pystachio.operators.kernels import hash_triton, portable, triton_library
from pystachio.operators.kernels.numbering import Numbering
from pystachio.operators.kernels.portable import all_true as all_true
from pystachio.operators.kernels.portable import any_true as any_true
from pystachio.operators.kernels.portable import arithmetic as arithmetic
from pystachio.operators.kernels.portable import compare as compare
from pystachio.operators.kernels.portable import group_extremes as group_extremes
from pystachio.operators.kernels.portable import minimum_and_maximum as minimum_and_maximum
from pystachio.operators.kernels.portable import number_codes as number_codes
from pystachio.operators.kernels.portable import number_words as number_words
from pystachio.operators.kernels.portable import offsets_within as offsets_within
from pystachio.operators.kernels.portable import pairs as pairs
from pystachio.operators.kernels.portable import ranges as ranges
from pystachio.operators.kernels.portable import ranges_of as ranges_of
from pystachio.runtime.metrics import count_in_job

WITHOUT_TRITON: Final = "inner loops by torch for want of Triton"
WITH_TRITON: Final = ("compact", "group_rows", "group_sums", "indices_of_true", "lookup_within", "number_keys")

_MOST_ROWS: Final = 1 << 30
_MOST_SLOTS: Final = 64
"""`triton_launch` says why."""


def indices_of_true(mask: torch.Tensor) -> torch.Tensor:
    """Positions of the true rows in order, int64."""
    found = _launchers(mask.device) if mask.shape[0] <= _MOST_ROWS else None
    return portable.indices_of_true(mask) if found is None else found.indices_of_true(mask)


def compact(mask: torch.Tensor, columns: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """The true rows of each column in order."""
    found = _launchers(mask.device) if mask.shape[0] <= _MOST_ROWS else None
    return portable.compact(mask, columns) if found is None else found.compact(mask, columns)


def group_sums(values: torch.Tensor, codes: torch.Tensor, slots: int, kept: torch.Tensor | None = None) -> torch.Tensor:
    """int64 [slots]: the sums, wrapping, of the integer `values` by their integer `codes` in [0, slots), of the rows
    that are `kept` (None: all)."""
    suits = slots <= _MOST_SLOTS and codes.shape[0] <= _MOST_ROWS
    found = _launchers(codes.device) if suits else None
    chosen = portable.group_sums if found is None else found.group_sums
    return chosen(values, codes, slots, kept)


def group_rows(codes: torch.Tensor, slots: int) -> tuple[torch.Tensor, torch.Tensor]:
    """int64 [slots], twice: how many rows have the code, and 1 + the position of one of them (0: none)."""
    suits = slots <= _MOST_SLOTS and codes.shape[0] <= _MOST_ROWS
    found = _launchers(codes.device) if suits else None
    return portable.group_rows(codes, slots) if found is None else found.group_rows(codes, slots)


def number_keys(keys: torch.Tensor) -> Numbering:
    """The distinct ones of `keys` (int64 [rows])."""
    found = _launchers(keys.device) if keys.shape[0] <= _MOST_ROWS else None
    return portable.number_keys(keys) if found is None else hash_triton.number_keys(found, keys)


def lookup_within(
    table: torch.Tensor, values: torch.Tensor, low: int, kept: torch.Tensor | None = None
) -> torch.Tensor:
    """`table[value - low]` where that is before the table's last entry and the row is `kept` (None: all), else that
    entry."""
    found = _launchers(values.device) if values.shape[0] <= _MOST_ROWS else None
    chosen = portable.lookup_within if found is None else found.lookup_within
    return chosen(table, values, low, kept)


def _launchers(device: torch.device) -> ModuleType | None:
    found = triton_library.launchers(device)
    if found is None:
        count_in_job(WITHOUT_TRITON, 1)
    return found
