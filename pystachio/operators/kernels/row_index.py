"""From the codes of keys to the rows that have them: what a join builds on one side and asks with the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch

from pystachio.operators.kernels import direct, hash_table, primitives
from pystachio.operators.kernels.direct import DirectTable
from pystachio.operators.kernels.hash_table import HashTable
from pystachio.operators.kernels.keys import KeyCodes
from pystachio.operators.kernels.pairs import Matches

_DENSE_SLOTS_PER_ROW: Final = 4
"""Up to this many slots per row ranges are kept per code, else per distinct key."""


@dataclass(frozen=True, slots=True, eq=False)
class Members:
    """Which keys exist."""

    table: DirectTable | HashTable

    @property
    def nbytes(self) -> int:
        return self.table.nbytes

    def contains(self, codes: KeyCodes) -> torch.Tensor:
        """bool [rows]: True where the key exists."""
        found = _lookup(self.table, codes, 0)
        return found.view(torch.bool) if found.dtype == torch.uint8 else found != 0


@dataclass(frozen=True, slots=True, eq=False)
class UniqueIndex:
    """At most one row per key: `table` holds 1 + its position, 0 for no row."""

    table: DirectTable | HashTable

    @property
    def nbytes(self) -> int:
        return self.table.nbytes

    def find(self, codes: KeyCodes) -> torch.Tensor:
        """int32 or int64 [rows]: 1 + the position of the row with that key, 0 where there is none."""
        return _lookup(self.table, codes, 0)


@dataclass(frozen=True, slots=True, eq=False)
class RangeIndex:
    """Any number of rows per key, in compressed sparse rows.

    `groups` numbers the keys (None: the code is the number). The rows of key g are `order[offsets[g]:offsets[g + 1]]`,
    or that range itself when `order` is None; the last of `offsets` makes the range of an absent key empty.
    """

    groups: DirectTable | HashTable | None
    offsets: torch.Tensor
    order: torch.Tensor | None

    @property
    def nbytes(self) -> int:
        order = 0 if self.order is None else self.order.nbytes
        return int(self.offsets.nbytes + order) + (0 if self.groups is None else self.groups.nbytes)

    def find(self, codes: KeyCodes) -> Matches:
        """The matching rows of each row."""
        group = codes.values if self.groups is None else _lookup(self.groups, codes, self.offsets.shape[0] - 2)
        starts = self.offsets.index_select(0, group)
        return Matches(starts, self.offsets.index_select(0, group + 1) - starts, self.order)


RowIndex = UniqueIndex | RangeIndex


def index_members(codes: KeyCodes, *, allow_direct: bool) -> Members:
    """An index that only answers whether a key exists."""
    if allow_direct and codes.span is not None and direct.is_addressable(codes.span, codes.values.shape[0]):
        return Members(direct.members(codes.values, codes.span))
    values, _ = _present(codes)
    return Members(hash_table.insert(values.to(torch.int64)).table())


def index_rows(codes: KeyCodes, *, allow_direct: bool) -> RowIndex:
    """An index of the rows with these keys; rows that equal nothing (NULL keys) are left out."""
    values, kept = _present(codes)
    span = codes.span if allow_direct else None
    insertion: direct.DirectInsertion | hash_table.Insertion
    if span is not None and direct.is_addressable(span, values.shape[0]):
        insertion = direct.insert(values, span)
    else:
        span = None
        insertion = hash_table.insert(values.to(torch.int64))
    if hash_table.all_win(insertion.winners):
        return UniqueIndex(
            insertion.table() if kept is None else insertion.table((kept + 1).to(insertion.winners.dtype))
        )
    if span is not None and span <= _DENSE_SLOTS_PER_ROW * values.shape[0]:
        return _ranges(None, values, span, kept)
    groups, first = hash_table.number_groups(insertion.winners)
    return _ranges(insertion.table(groups, first.shape[0]), groups, first.shape[0], kept)


def _ranges(
    table: DirectTable | HashTable | None, groups: torch.Tensor, count: int, kept: torch.Tensor | None
) -> RangeIndex:
    rows = groups.shape[0]
    offsets = torch.zeros(count + 2, dtype=hash_table.row_dtype(rows), device=groups.device)
    offsets[1:-1] = torch.cumsum(torch.bincount(groups, minlength=count), 0)
    offsets[-1] = rows
    if bool((groups[1:] >= groups[:-1]).all()):
        order = kept
    else:
        order = torch.sort(groups, stable=True).indices
        order = order if kept is None else kept.index_select(0, order)
    return RangeIndex(table, offsets, None if order is None else order.to(hash_table.row_dtype(rows)))


def _present(codes: KeyCodes) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The codes of the rows that equal something, and the positions of those rows (None: all)."""
    if codes.exact:
        return codes.values, None
    if codes.span is not None:
        present = torch.ne(codes.values, codes.span)
    elif codes.absent is not None:
        present = ~codes.absent
    else:
        return codes.values, None
    kernels = primitives(present.device)
    if kernels.all_true(present):
        return codes.values, None
    kept = kernels.indices_of_true(present)
    return codes.values.index_select(0, kept), kept


def _lookup(table: DirectTable | HashTable, codes: KeyCodes, default: int) -> torch.Tensor:
    match table:
        case DirectTable():
            return table.lookup(codes.values)
        case HashTable():
            found = table.lookup(codes.values.to(torch.int64))
            return found if codes.absent is None else torch.where(codes.absent, default, found)
