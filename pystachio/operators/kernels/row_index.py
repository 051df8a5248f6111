"""From the codes of keys to the rows that have them: what a join builds on one side and asks with the other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import torch

from pystachio.operators.kernels import direct, hash_table, primitives
from pystachio.operators.kernels.direct import DirectTable
from pystachio.operators.kernels.hash_table import HashTable
from pystachio.operators.kernels.keys import KeyCodes

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


@dataclass(frozen=True, slots=True, eq=False)
class Matches:
    """Row i matches `counts[i]` rows, from `starts[i]` in `order`."""

    starts: torch.Tensor
    counts: torch.Tensor
    order: torch.Tensor | None

    def pairs(self, limit: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """All matching pairs as (row, matching row), ordered by row, at most `limit` at a time."""
        ends = torch.cumsum(self.counts, 0, dtype=torch.int64)
        total = int(ends[-1]) if ends.shape[0] else 0
        if total == 0:
            return
        cuts = torch.arange(0, total, limit, device=ends.device)
        lasts = torch.cat((cuts[1:], cuts.new_full((1,), total)))
        first_rows = torch.searchsorted(ends, cuts, right=True).tolist()
        last_rows = torch.searchsorted(ends, lasts - 1, right=True).tolist()
        for cut, last, first_row, last_row in zip(cuts.tolist(), lasts.tolist(), first_rows, last_rows, strict=True):
            yield self._slice(ends, cut, last, first_row, last_row + 1)

    def _slice(
        self, ends: torch.Tensor, first: int, last: int, first_row: int, stop_row: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Pairs number [first, last), which belong to rows [first_row, stop_row)."""
        row_ends = ends[first_row:stop_row].clamp(max=last)
        row_begins = (ends[first_row:stop_row] - self.counts[first_row:stop_row]).clamp(min=first)
        lengths = row_ends - row_begins
        rows = torch.arange(first_row, stop_row, dtype=hash_table.row_dtype(stop_row), device=ends.device)
        skipped = row_begins - (ends[first_row:stop_row] - self.counts[first_row:stop_row])
        shifts = self.starts[first_row:stop_row] + skipped - (row_begins - first)
        positions = torch.arange(last - first, device=ends.device) + repeat(shifts, lengths)
        found = positions if self.order is None else self.order.index_select(0, positions)
        return repeat(rows, lengths), found


def repeat(values: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Each value as often as `counts` says."""
    if values.device.type == "cpu":
        return torch.from_numpy(values.numpy().repeat(counts.numpy()))
    return torch.repeat_interleave(values, counts)


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
        return UniqueIndex(insertion.table() if kept is None else insertion.table((kept + 1).to(insertion.winners.dtype)))
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
    if codes.exact or (codes.span is None and codes.absent is None):
        return codes.values, None
    present = codes.values != codes.span if codes.absent is None else ~codes.absent
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
