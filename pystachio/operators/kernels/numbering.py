"""What a hash table makes of keys: a number for each distinct one, and a table that finds it."""

from __future__ import annotations

import math
from typing import Final, Protocol

import torch

_BLOCK: Final = 64
_ROOMY_SLOTS: Final = 1 << 18
"""As in native/slots.h."""
_ROUNDS: Final = 8
_HARDLY_ANY: Final = 1e-3
"""Of the rows so small a share has been seen before: they are as good as different."""


class HashTable(Protocol):
    """Distinct int64 keys, numbered from 1."""

    @property
    def nbytes(self) -> int: ...

    def lookup(self, keys: torch.Tensor) -> torch.Tensor:
        """int32 or int64 [rows]: the number of each key (int64 [rows]), 0 where the table does not have it."""
        ...


class Numbering(Protocol):
    """`numbers` (int32 or int64 [rows], in [0, groups)) are equal where the keys are; `first` (int32 or int64 [groups])
    is the position of one row of each group, ascending."""

    @property
    def numbers(self) -> torch.Tensor: ...

    @property
    def first(self) -> torch.Tensor: ...

    def table(self) -> HashTable:
        """Finds 1 + the number of a key."""
        ...


def row_dtype(rows: int) -> torch.dtype:
    """The narrowest dtype that numbers rows from 1 and that index_select takes."""
    return torch.int32 if rows < 2**31 - 1 else torch.int64


def row_numbers(rows: int, like: torch.Tensor) -> torch.Tensor:
    """1 to `rows` in the dtype of `like`."""
    return torch.arange(1, rows + 1, dtype=like.dtype, device=like.device)


def capacity_for(rows: int) -> int:
    """Slots that keep the load of a hash table at or below one half (of one that fits the caches: a quarter), and leave
    room for a block of 64 more rows."""
    capacity = 1 << (4 * (rows + _BLOCK) - 1).bit_length()
    return capacity if capacity <= _ROOMY_SLOTS else max(2 * _ROOMY_SLOTS, 1 << (2 * (rows + _BLOCK) - 1).bit_length())


def expected_groups(groups: int, seen: int, rows: int) -> int:
    """About how many groups `rows` rows have, of which the first `seen` (at least one) have `groups`: as if all were
    as frequent. n rows meet G (1 - exp(-n / G)) of G groups; x = n / G is found by Newton's method."""
    if groups == seen:
        return rows
    share = groups / seen
    x = 1 / share
    for _ in range(_ROUNDS):
        falling = math.exp(-x)
        x -= (1 - falling - share * x) / (falling - share)
    most = rows * groups // seen
    return most if x * rows <= _HARDLY_ANY * seen else min(most, int(seen / x * -math.expm1(-x * rows / seen)))
