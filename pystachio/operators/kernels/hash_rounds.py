"""A vectorised open-addressing hash table over int64 keys: linear probing in rounds of gather, compare, compact.

Every round moves all unresolved rows one slot on; at a load of at most one half few rows need a second round. Keys are
always compared, so equal hashes never merge different keys. Insertion lets the rows of a round race for their slot
(one scatter, the device picks the winner) and then looks who won, after the lock-free scheme of Alcantara et al.,
"Real-time parallel hashing on the GPU" (2009).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch

from pystachio.operators.kernels.numbering import capacity_for, row_dtype, row_numbers

# Odd multipliers of the murmur3 finaliser (Appleby), as signed 64-bit integers.
FIRST_MULTIPLIER: Final = 0xFF51AFD7ED558CCD - (1 << 64)
SECOND_MULTIPLIER: Final = 0xC4CEB9FE1A85EC53 - (1 << 64)

_FEW: Final = 512
_RUN: Final = 16


@dataclass(frozen=True, slots=True, eq=False)
class RoundsTable:
    """`keys` (int64) and `values` (1 + the number of the key; int32 or int64) have one slot per entry, a power of two;
    an empty slot holds `empty`, which is no key of the table, and 0.
    """

    keys: torch.Tensor
    values: torch.Tensor
    empty: int

    @property
    def nbytes(self) -> int:
        return int(self.keys.nbytes + self.values.nbytes)

    def lookup(self, keys: torch.Tensor) -> torch.Tensor:
        """See `numbering.HashTable`."""
        slots = first_slots(keys, self.keys.shape[0])
        stored = self.keys.index_select(0, slots)
        pending = _indices_of_true((stored != keys) & (stored != self.empty))
        wanted = keys.index_select(0, pending)
        moved = slots.index_select(0, pending)
        while pending.shape[0]:
            reached, resolved = self._ahead(moved, wanted) if pending.shape[0] <= _FEW else self._next(moved, wanted)
            slots.index_copy_(0, pending, reached)
            rest = _indices_of_true(~resolved)
            pending, wanted, moved = (part.index_select(0, rest) for part in (pending, wanted, reached))
        return self.values.index_select(0, slots)

    def _next(self, slots: torch.Tensor, wanted: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The slots behind `slots`, and where they end the search for the keys `wanted`."""
        reached = (slots + 1) & (self.keys.shape[0] - 1)
        stored = self.keys.index_select(0, reached)
        return reached, (stored == wanted) | (stored == self.empty)

    def _ahead(self, slots: torch.Tensor, wanted: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Like `_next` for a run of slots at once: what few rows cost is the number of rounds."""
        run = torch.arange(1, _RUN + 1, device=slots.device)
        candidates = (slots.unsqueeze(1) + run) & (self.keys.shape[0] - 1)
        stored = self.keys.index_select(0, candidates.view(-1)).view(candidates.shape)
        ends = (stored == wanted.unsqueeze(1)) | (stored == self.empty)
        resolved = ends.any(1)
        place = torch.where(resolved, ends.to(torch.int8).argmax(1), _RUN - 1)
        return candidates.gather(1, place.unsqueeze(1)).squeeze(1), resolved


def first_slots(keys: torch.Tensor, capacity: int) -> torch.Tensor:
    """The home slot (int64) of each int64 key in a table of `capacity` slots, a power of two."""
    mixed = keys ^ (keys >> 33)
    mixed *= FIRST_MULTIPLIER
    mixed ^= mixed >> 32
    mixed *= SECOND_MULTIPLIER
    mixed >>= 64 - (capacity.bit_length() - 1)
    mixed &= capacity - 1
    return mixed


@dataclass(frozen=True, slots=True, eq=False)
class RoundsNumbering:
    """See `numbering.Numbering`. `occupants` has one entry per slot: 1 + the position of the row that holds it, 0 where
    it is free."""

    keys: torch.Tensor
    occupants: torch.Tensor
    numbers: torch.Tensor
    first: torch.Tensor

    def table(self) -> RoundsTable:
        empty = _absent_key(self.keys)
        keys = torch.cat((self.keys.new_full((1,), empty), self.keys)).index_select(0, self.occupants)
        values = torch.cat((self.numbers.new_zeros(1), self.numbers + 1)).index_select(0, self.occupants)
        return RoundsTable(keys, values, empty)


def number_keys(keys: torch.Tensor) -> RoundsNumbering:
    """The distinct ones of `keys` (int64 [rows])."""
    occupants, winners = _insert(keys)
    numbers, first = number_groups(winners)
    return RoundsNumbering(keys, occupants, numbers, first)


def _insert(keys: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The occupants of a new table's slots, and [rows] the same number for the row that represents each row's key."""
    rows = keys.shape[0]
    capacity = capacity_for(rows)
    stored = torch.cat((keys.new_zeros(1), keys))
    # Fresh zeroed memory costs next to nothing, hence 1-based occupants.
    occupants = torch.zeros(capacity, dtype=row_dtype(rows), device=keys.device)
    numbers = row_numbers(rows, occupants)
    slots = first_slots(keys, capacity)
    occupants.scatter_(0, slots, numbers)
    winners = occupants.index_select(0, slots)
    pending = _indices_of_true(stored.index_select(0, winners) != keys)
    while pending.shape[0]:
        moved = (slots.index_select(0, pending) + 1) & (capacity - 1)
        slots.index_copy_(0, pending, moved)
        free = _indices_of_true(occupants.index_select(0, moved) == 0)
        waiting = numbers.index_select(0, pending.index_select(0, free))
        occupants.scatter_(0, moved.index_select(0, free), waiting)
        found = occupants.index_select(0, moved)
        winners.index_copy_(0, pending, found)
        rest = _indices_of_true(stored.index_select(0, found) != keys.index_select(0, pending))
        pending = pending.index_select(0, rest)
    return occupants, winners


def number_groups(winners: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Group numbers [rows] in [0, groups) by 1 + the position of each row's representative; and those positions."""
    numbers = row_numbers(winners.shape[0], winners)
    first = _indices_of_true(winners == numbers)
    if first.shape[0] == winners.shape[0]:
        return winners - 1, first
    number_of = torch.zeros_like(winners)
    number_of.index_copy_(0, first, numbers[: first.shape[0]] - 1)
    return number_of.index_select(0, winners - 1), first


def _absent_key(keys: torch.Tensor) -> int:
    """An int64 that is not among `keys`."""
    if keys.shape[0] == 0:
        return 0
    low, high = torch.stack(torch.aminmax(keys)).tolist()
    if low > -(2**63):
        return -(2**63)
    if high < 2**63 - 1:
        return 2**63 - 1
    candidates = torch.arange(keys.shape[0] + 1, device=keys.device)
    taken = torch.zeros(keys.shape[0] + 1, dtype=torch.bool, device=keys.device)
    taken[keys[(keys >= 0) & (keys <= keys.shape[0])]] = True
    return int(candidates[~taken][0])


def _indices_of_true(mask: torch.Tensor) -> torch.Tensor:
    return torch.nonzero(mask).squeeze(1)
