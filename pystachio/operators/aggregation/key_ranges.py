"""Partial batches by the ranges of their first key: input that is clustered by it needs no other parts.

Tables are mostly stored in some order, of time or of a number that counts up, and grouping by it puts nearly each group
into one batch. What merges then are the few batches whose ranges overlap, and the groups at which neighbours meet; or
nothing, where they overlap because workers took turns, and all first keys are different.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
import torch

from pystachio.operators.aggregation.different_groups import has_no_group_twice, share_no_group
from pystachio.operators.aggregation.parts import Part
from pystachio.operators.aggregation.plan import AggregatePlan
from pystachio.operators.batch import Batch
from pystachio.operators.column import FixedColumn
from pystachio.operators.kernels.ascending import never_falls
from pystachio.operators.kernels.selection import slice_batch

_FEW_ROWS: Final = 1 << 16
"""So many rows may be merged by one worker,"""
_MOST_SHARE: Final = 8
"""or one of so many parts of all."""

_SMALL_ROWS: Final = 1 << 13
"""Fewer rows are not worth a part of their own."""

_MOST_OVERLAPPING: Final = 4
"""Up to one of so many parts of the rows may overlap for merging them early to be in vain."""


@dataclass(frozen=True, slots=True)
class _Range:
    """Of a batch whose first key ascends. `is_strict`: so do the first ones together, and each group is there once."""

    low: int
    high: int
    rows: int
    is_strict: bool


class KeyRanges:
    """Of partial batches as they come: whoever asks gives all that there are. Those without rows have none."""

    def __init__(self, plan: AggregatePlan, device: torch.device) -> None:
        self._ranges: list[_Range | None] = []
        self._width = plan.group_width
        self._is_possible = self._is_known = plan.group_width > 0 and device.type == "cpu"

    def are_possible(self, batches: Sequence[Batch]) -> bool:
        """Whether the first batch says nothing against it: in no time, on the loop."""
        return self._is_known and (not batches or _values(batches[0]) is not None)

    def forget(self) -> None:
        """The batches are others now."""
        self._ranges, self._is_known = [], self._is_possible

    def merging_is_vain(self, batches: Sequence[Batch]) -> bool:
        """Whether nearly each group is in one batch only."""
        clusters = self._clusters(batches)
        overlapping = sum(self._rows(cluster) for cluster in clusters if not self._is_merged(cluster))
        return bool(clusters) and _MOST_OVERLAPPING * overlapping <= self._rows(range(len(self._ranges)))

    def parts(self, batches: Sequence[Batch]) -> list[Part] | None:
        """The batches as parts; None when one of them would be too large to be merged, or keys have no order.

        The groups at which ranges meet are a part of their own, the last one: it keeps the memory of all others.
        """
        clusters = self._clusters(batches)
        most = max(_FEW_ROWS, self._rows(range(len(self._ranges))) // _MOST_SHARE)
        if not clusters:
            return None
        if any(self._rows(each) > most for each in clusters if not self._is_merged(each)):
            apart = [batch for batch in batches if batch.length] if share_no_group(batches, self._width) else []
            return [Part([batch], is_merged=True) for batch in apart] or None
        clusters = self._with_small_ones_together(clusters)
        spans = [self._span(cluster) for cluster in clusters]
        met = {high for (_, high), (low, _) in pairwise(spans) if low == high}
        parts: list[Part] = []
        edges: list[Batch] = []
        for cluster, (low, high) in zip(clusters, spans, strict=True):
            inner: list[Batch] = []
            for number in cluster:
                batch = batches[number]
                start, stop = self._inside(number, batch, low if low in met else None, high if high in met else None)
                if start > 0 or stop < batch.length:
                    edges += [slice_batch(batch, *edge) for edge in ((0, start), (stop, batch.length))]
                    batch = slice_batch(batch, start, stop)
                if batch.length:
                    inner.append(batch)
            if inner:
                parts.append(Part(inner, is_merged=self._is_merged(cluster)))
        edges = [edge for edge in edges if edge.length]
        if sum(edge.length for edge in edges) > most:
            return None
        return [*parts, Part(edges)] if edges else parts

    def _look_at(self, batches: Sequence[Batch]) -> None:
        """At those that have come behind the ones that are known."""
        for batch in batches[len(self._ranges) :]:
            if not self._is_known:
                return
            if batch.length == 0:
                self._ranges.append(None)
                continue
            values = _values(batch)
            is_strict = values is not None and has_no_group_twice(batch.columns[: self._width], batch.length)
            if values is None or not (is_strict or never_falls(values)):
                self._is_known = False
            else:
                self._ranges.append(_Range(int(values[0]), int(values[-1]), batch.length, is_strict))

    def _clusters(self, batches: Sequence[Batch]) -> list[list[int]]:
        """The numbers of batches whose ranges overlap in more than their ends, by their keys; none for unknown ones."""
        self._look_at(batches)
        if not self._is_known:
            return []
        known = [(each.low, each.high, number) for number, each in enumerate(self._ranges) if each is not None]
        clusters: list[list[int]] = []
        highest = 0
        for low, high, number in sorted(known):
            if clusters and low < highest:
                clusters[-1].append(number)
                highest = max(highest, high)
            else:
                clusters.append([number])
                highest = high
        return clusters

    def _with_small_ones_together(self, clusters: Sequence[list[int]]) -> list[list[int]]:
        """Neighbours as one, up to so many rows that a part is worth its job and its batch."""
        together: list[list[int]] = []
        rows = 0
        for cluster in clusters:
            own = self._rows(cluster)
            if together and rows + own <= _SMALL_ROWS:
                together[-1] = [*together[-1], *cluster]
                rows += own
            else:
                together.append(cluster)
                rows = own
        return together

    def _inside(self, number: int, batch: Batch, low: int | None, high: int | None) -> tuple[int, int]:
        """The rows [start, stop) of the batch whose keys are above `low` and below `high`, between which all are."""
        known, values = self._ranges[number], _values(batch)
        assert known is not None
        assert values is not None
        start, stop = 0, len(values)
        # The batch's own ends, in its own dtype: another number may not fit, and would make numpy convert all values.
        if known.low == low:
            start = int(values.searchsorted(values[0], "right"))
        if known.high == high:
            stop = int(values.searchsorted(values[-1], "left"))
        return start, max(start, stop)

    def _span(self, cluster: Sequence[int]) -> tuple[int, int]:
        ranges = [known for number in cluster if (known := self._ranges[number]) is not None]
        return min(known.low for known in ranges), max(known.high for known in ranges)

    def _rows(self, numbers: Sequence[int]) -> int:
        return sum(known.rows for number in numbers if (known := self._ranges[number]) is not None)

    def _is_merged(self, cluster: Sequence[int]) -> bool:
        known = self._ranges[cluster[0]]
        return len(cluster) == 1 and known is not None and known.is_strict


def _values(batch: Batch) -> np.ndarray[Any, Any] | None:
    """Integers of the first key; None where it is something else, or has NULLs."""
    key = batch.columns[0]
    if not isinstance(key, FixedColumn) or key.validity is not None or key.values.dtype.is_floating_point:
        return None
    return key.values.numpy()
