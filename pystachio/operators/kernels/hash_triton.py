"""The hash table of `hash_rounds`, filled and searched by Triton's kernels: one launch instead of rounds, after each of
which the host waits to hear who is left.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from pystachio.operators.kernels.hash_rounds import RoundsNumbering, RoundsTable, number_groups


class Launchers(Protocol):
    """What of `triton_launch` is needed."""

    def insert_keys(self, keys: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]: ...

    def find_keys(self, table: RoundsTable, keys: torch.Tensor) -> torch.Tensor: ...


@dataclass(frozen=True, slots=True, eq=False)
class TritonTable:
    """See `numbering.HashTable`."""

    slots: RoundsTable
    launchers: Launchers

    @property
    def nbytes(self) -> int:
        return self.slots.nbytes

    def lookup(self, keys: torch.Tensor) -> torch.Tensor:
        """See `numbering.HashTable`."""
        return self.launchers.find_keys(self.slots, keys)


@dataclass(frozen=True, slots=True, eq=False)
class TritonNumbering:
    """See `numbering.Numbering`."""

    inserted: RoundsNumbering
    launchers: Launchers

    @property
    def numbers(self) -> torch.Tensor:
        return self.inserted.numbers

    @property
    def first(self) -> torch.Tensor:
        return self.inserted.first

    def table(self) -> TritonTable:
        return TritonTable(self.inserted.table(), self.launchers)


def number_keys(launchers: Launchers, keys: torch.Tensor) -> TritonNumbering:
    """The distinct ones of `keys` (int64 [rows])."""
    occupants, winners = launchers.insert_keys(keys)
    numbers, first = number_groups(winners)
    return TritonNumbering(RoundsNumbering(keys, occupants, numbers, first), launchers)
