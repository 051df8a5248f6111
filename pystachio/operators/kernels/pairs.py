"""Pairs of rows, in slices of bounded size."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from pystachio.operators.kernels import primitives


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
        pairs = primitives(self.starts.device).pairs
        for probe, build in pairs(self.starts, self.counts, self.order, limit):
            yield Pairs(probe, build)

    def unflagged(self, flags: torch.Tensor) -> Matches:
        """Each distinct range once, without those whose first row has its flag (uint8, per matching row) set."""
        rows = torch.nonzero(self.counts).squeeze(1)
        starts, counts = self.starts.index_select(0, rows), self.counts.index_select(0, rows)
        first = starts if self.order is None else self.order.index_select(0, starts)
        fresh = torch.nonzero(flags.index_select(0, first) == 0).squeeze(1)
        starts, counts = starts.index_select(0, fresh), counts.index_select(0, fresh)
        distinct = torch.unique(starts.to(torch.int64) << 32 | counts.to(torch.int64))
        return Matches(distinct >> 32, distinct & 0xFFFFFFFF, self.order)


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
