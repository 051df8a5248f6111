"""What a hash table makes of keys: a number for each distinct one, and a table that finds it."""

from __future__ import annotations

from typing import Protocol

import torch


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
    """Slots that keep the load of a hash table at or below one half, and leave room for a block of 64 more rows."""
    return 1 << (2 * (rows + 64) - 1).bit_length()
