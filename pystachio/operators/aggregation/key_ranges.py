"""Partial batches by the ranges of their first key: input that is clustered by it needs no other parts.

Tables are mostly stored in some order, of time or of a number that counts up, and grouping by it puts nearly each group
into one batch. What merges then are the few batches whose ranges overlap, and the groups at which neighbours meet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
import torch

from pystachio.operators.aggregation.parts import Part
from pystachio.operators.aggregation.plan import AggregatePlan
from pystachio.operators.batch import Batch
from pystachio.operators.column import FixedColumn
from pystachio.operators.kernels.ascending import ascend, never_falls
from pystachio.operators.kernels.selection import slice_batch

_FEW_ROWS: Final = 1 << 16
_MOST_SHARE: Final = 8
"""So many rows, or one of so many parts of all, may be merged by one worker."""

_MOST_OVERLAPPING: Final = 4
"""Up to one of so many parts of the rows may overlap for merging them early to be in vain."""


@dataclass(frozen=True, slots=True)
class _Range:
    """Of a batch whose first key ascends. `is_strict`: it has no value twice."""

    low: int
    high: int
    rows: int
    is_strict: bool


class KeyRanges:
    """Of partial batches as they come. Those without rows have none."""

    def __init__(self, plan: AggregatePlan, device: torch.device) -> None:
        self._ranges: list[_Range | None] = []
        self._is_known = plan.group_width > 0 and device.type == "cpu"

    def look_at(self, batches: Sequence[Batch]) -> None:
        """At those that have come behind the ones looked at before: `batches` are all."""
        for batch in batches[len(self._ranges) :]:
            if not self._is_known:
                return
            values = _values(batch)
            if values is None:
                self._is_known = False
                return
            if len(values) == 0:
                self._ranges.append(None)
                continue
            is_strict = ascend([values])
            self._is_known = is_strict or never_falls(values)
            if self._is_known:
                self._ranges.append(_Range(int(values[0]), int(values[-1]), len(values), is_strict))

    def forget(self) -> None:
        """The batches are others now."""
        self._is_known = False

    def merging_is_vain(self) -> bool:
        """Whether nearly each group is in one batch only."""
        clusters = self._clusters()
        overlapping = sum(self._rows(cluster) for cluster in clusters if not self._is_merged(cluster))
        return bool(clusters) and _MOST_OVERLAPPING * overlapping <= self._rows(range(len(self._ranges)))

    def parts(self, batches: Sequence[Batch]) -> list[Part] | None:
        """The batches that were looked at as parts; None when one of them would be too large, or keys have no order.

        The groups at which ranges meet are a part of their own, the last one: it keeps the memory of all others.
        """
        clusters = self._clusters()
        most = max(_FEW_ROWS, self._rows(range(len(self._ranges))) // _MOST_SHARE)
        if not clusters or any(self._rows(each) > most for each in clusters if not self._is_merged(each)):
            return None
        spans = [self._span(cluster) for cluster in clusters]
        met = {high for (_, high), (low, _) in pairwise(spans) if low == high}
        parts: list[Part] = []
        edges: list[Batch] = []
        for cluster, (low, high) in zip(clusters, spans, strict=True):
            inner: list[Batch] = []
            for batch in (batches[number] for number in cluster):
                start, stop = _inside(batch, low if low in met else None, high if high in met else None)
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

    def _clusters(self) -> list[list[int]]:
        """The numbers of batches whose ranges overlap in more than their ends, by their keys; none for unknown ones."""
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

    def _span(self, cluster: Sequence[int]) -> tuple[int, int]:
        ranges = [known for number in cluster if (known := self._ranges[number]) is not None]
        return min(known.low for known in ranges), max(known.high for known in ranges)

    def _rows(self, numbers: Sequence[int]) -> int:
        return sum(known.rows for number in numbers if (known := self._ranges[number]) is not None)

    def _is_merged(self, cluster: Sequence[int]) -> bool:
        known = self._ranges[cluster[0]]
        return len(cluster) == 1 and known is not None and known.is_strict


def _inside(batch: Batch, low: int | None, high: int | None) -> tuple[int, int]:
    """The rows [start, stop) whose keys are above `low` and below `high`, in so far as they are given."""
    values = _values(batch)
    assert values is not None
    # A number of another dtype would make numpy convert all values.
    start = 0 if low is None else int(values.searchsorted(values.dtype.type(low), "right"))
    stop = len(values) if high is None else int(values.searchsorted(values.dtype.type(high), "left"))
    return start, max(start, stop)


def _values(batch: Batch) -> np.ndarray[Any, Any] | None:
    """Integers of the first key; None where it is something else, or has NULLs."""
    key = batch.columns[0]
    if not isinstance(key, FixedColumn) or key.validity is not None or key.values.dtype.is_floating_point:
        return None
    return key.values.numpy()
