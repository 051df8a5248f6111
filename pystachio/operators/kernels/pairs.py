"""Pairs of rows, in slices of bounded size."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from pystachio.operators.kernels import primitives
from pystachio.operators.kernels.hash_table import row_dtype


@dataclass(frozen=True, slots=True, eq=False)
class Pairs:
    """Positions (int32 or int64) of the two rows of each pair; `probe` None: every row of that side once, in order."""

    probe: torch.Tensor | None
    build: torch.Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Matches:
    """Row i matches `counts[i]` rows, from `starts[i]` in `order`."""

    starts: torch.Tensor
    counts: torch.Tensor
    order: torch.Tensor | None

    def pairs(self, limit: int) -> Iterator[Pairs]:
        """All matching pairs, ordered by row, at most `limit` at a time."""
        ends = torch.cumsum(self.counts, 0, dtype=torch.int64)
        total = int(ends[-1]) if ends.shape[0] else 0
        if total == 0:
            return
        cuts = range(0, total, limit)
        firsts = torch.arange(0, total, limit, device=ends.device)
        edges = torch.stack((firsts, (firsts + limit).clamp_(max=total) - 1))
        first_rows, last_rows = torch.searchsorted(ends, edges, right=True).tolist()
        for cut, first_row, last_row in zip(cuts, first_rows, last_rows, strict=True):
            yield self._slice(ends, cut, min(cut + limit, total), first_row, last_row + 1)

    def unflagged(self, flags: torch.Tensor) -> Matches:
        """Each distinct range once, without those whose first row has its flag (uint8, per matching row) set."""
        rows = torch.nonzero(self.counts).squeeze(1)
        starts, counts = self.starts.index_select(0, rows), self.counts.index_select(0, rows)
        first = starts if self.order is None else self.order.index_select(0, starts)
        fresh = torch.nonzero(flags.index_select(0, first) == 0).squeeze(1)
        starts, counts = starts.index_select(0, fresh), counts.index_select(0, fresh)
        distinct = torch.unique(starts.to(torch.int64) << 32 | counts.to(torch.int64))
        return Matches(distinct >> 32, distinct & 0xFFFFFFFF, self.order)

    def _slice(self, ends: torch.Tensor, first: int, last: int, first_row: int, stop_row: int) -> Pairs:
        """Pairs number [first, last), which belong to rows [first_row, stop_row)."""
        row_ends = ends[first_row:stop_row].clamp(max=last)
        row_begins = (ends[first_row:stop_row] - self.counts[first_row:stop_row]).clamp(min=first)
        lengths = row_ends - row_begins
        rows = torch.arange(first_row, stop_row, dtype=row_dtype(stop_row), device=ends.device)
        skipped = row_begins - (ends[first_row:stop_row] - self.counts[first_row:stop_row])
        shifts = self.starts[first_row:stop_row] + skipped - (row_begins - first)
        repeat = primitives(ends.device).repeat
        positions = torch.arange(last - first, device=ends.device) + repeat(shifts, lengths)
        found = positions if self.order is None else self.order.index_select(0, positions)
        return Pairs(repeat(rows, lengths), found)


def all_pairs(probe_rows: int, build_rows: int, limit: int, device: torch.device) -> Iterator[Pairs]:
    """Every row with every row, ordered by probe row, at most `limit` pairs at a time."""
    if build_rows == 1 and probe_rows:
        yield Pairs(None, torch.zeros(probe_rows, dtype=torch.int64, device=device))
        return
    total = probe_rows * build_rows
    for start in range(0, total, limit):
        numbers = torch.arange(start, min(start + limit, total), device=device)
        probe = torch.div(numbers, build_rows, rounding_mode="floor")
        yield Pairs(probe, numbers - probe * build_rows)
