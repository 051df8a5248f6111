"""How a link behaved while a plan used it: how much it moved, for whom, and whether it could have moved more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pystachio.io_scheduler.history import ChunkRecord
from pystachio.io_scheduler.request import Link, PriorityClass
from pystachio.trace.timeline import Levels, Span, Timeline

_FEWEST_CHUNKS = 8
"""Fewer tell nothing about a device."""
_LEAST_VARIATION = 0.05
"""Of a quantity, relative to its mean: below it its effect cannot be told from the constant part."""
_SLOWEST_CHUNKS = 0.02
"""So many are left out: a device that stalls now and then says nothing about its rate in these moments."""


@dataclass(frozen=True, slots=True, eq=False)
class LinkUse:
    """Levels over the plan's time: `waiting` counts the plan's chunks in the queue, the rest are bytes in the device.

    `ahead` are those of plans of a higher class, `beside` those of others of the same or a lower one. `others` are both
    by plan. `rate` is bytes per second while the device had any. `utilisation` is what it delivered while transfers
    waited, over what its service times say that it can deliver; None where they do not tell.
    """

    link: Link
    waiting: Levels
    own: Levels
    ahead: Levels
    beside: Levels
    others: dict[tuple[str, PriorityClass], Levels]
    rate: float
    busy_share: float
    utilisation: float | None

    @property
    def inside(self) -> Levels:
        return self.own + self.ahead + self.beside

    @property
    def is_held_back(self) -> bool:
        """Transfers waited although the device could have moved much more.

        Half of what is missing at 0.7 could be an error of measurement, and still a window half as large again would
        let the device deliver more.
        """
        return self.utilisation is not None and self.utilisation < 0.7


def link_use(
    link: Link, chunks: Sequence[ChunkRecord], timeline: Timeline, plan_id: str, priority: PriorityClass
) -> LinkUse:
    """What the records of all plans' chunks on `link` say for the plan."""
    own = [chunk for chunk in chunks if chunk.plan_id == plan_id]
    groups: dict[tuple[str, PriorityClass], list[ChunkRecord]] = {}
    for chunk in chunks:
        if chunk.plan_id != plan_id:
            groups.setdefault((chunk.plan_id, chunk.priority), []).append(chunk)
    others = {who: _bytes_inside(timeline, theirs) for who, theirs in groups.items()}
    ahead = [levels for (_, theirs), levels in others.items() if theirs < priority]
    beside = [levels for (_, theirs), levels in others.items() if theirs >= priority]
    inside = timeline.count(_stay(chunk) for chunk in chunks)
    delivered = timeline.sum(
        [_stay(chunk) for chunk in chunks], [chunk.length / max(_seconds(chunk), 1e-9) for chunk in chunks]
    )
    limited = (timeline.count((chunk.submitted_at, chunk.started_at) for chunk in chunks) > 0) & (inside > 0)
    capability = _capability([chunk for chunk in chunks if not chunk.failed])
    return LinkUse(
        link=link,
        waiting=timeline.count((chunk.submitted_at, chunk.started_at) for chunk in own),
        own=_bytes_inside(timeline, own),
        ahead=sum(ahead, timeline.none()),
        beside=sum(beside, timeline.none()),
        others=others,
        rate=float(delivered[inside > 0].mean()) if (inside > 0).any() else 0.0,
        busy_share=timeline.share(inside),
        utilisation=float(delivered[limited].mean()) / capability if capability and limited.any() else None,
    )


def _capability(chunks: Sequence[ChunkRecord]) -> float | None:
    """Bytes per second that the device would deliver with more inside, by how long chunks take.

    A chunk takes a constant, plus time for its bytes, plus time for the bytes that are inside before it. Where a device
    is saturated, bytes inside cost what bytes of its own cost; where it is not, they cost nothing. The dearer of both
    is the device's price for a byte. Of its estimate the upper bound (two standard errors) is taken: a window must not
    be called too small because of noise.
    """
    if len(chunks) < _FEWEST_CHUNKS:
        return None
    lengths = np.asarray([chunk.length for chunk in chunks], dtype=float)
    seconds = np.asarray([_seconds(chunk) for chunk in chunks])
    before = _inside_before(chunks)
    usual = seconds <= np.quantile(seconds, 1 - _SLOWEST_CHUNKS)
    slopes = [
        _upper_slope(columns, seconds[usual])
        for columns in ([lengths[usual], before[usual]], [before[usual], lengths[usual]])
    ]
    known = [slope for slope in slopes if slope is not None]
    dearest = max(known, default=0.0)
    return 1 / dearest if dearest > 0 else None


def _upper_slope(columns: list[npt.NDArray[np.float64]], seconds: npt.NDArray[np.float64]) -> float | None:
    """The effect of the first column on `seconds` beside the other's, at most; None where it does not vary."""
    first, other = columns
    scale = max(float(first.mean()), float(other.mean()), 1.0)
    if first.std() < _LEAST_VARIATION * scale:
        return None
    kept = [first] if other.std() < _LEAST_VARIATION * scale else [first, other]
    design = np.column_stack([np.ones(len(seconds)), *(column / scale for column in kept)])
    solution, *_ = np.linalg.lstsq(design, seconds, rcond=None)
    residual = seconds - design @ solution
    variance = float(residual @ residual) / max(1, len(seconds) - design.shape[1])
    error = float(np.sqrt(variance * np.linalg.pinv(design.T @ design)[1, 1]))
    return max(0.0, (float(solution[1]) + 2 * error) / scale)


def _inside_before(chunks: Sequence[ChunkRecord]) -> npt.NDArray[np.float64]:
    """For each chunk, the bytes inside the device when it started."""
    started = np.asarray([chunk.started_at for chunk in chunks])
    ended = np.asarray([chunk.ended_at for chunk in chunks])
    lengths = np.asarray([chunk.length for chunk in chunks], dtype=float)
    by_start, by_end = np.argsort(started, kind="stable"), np.argsort(ended, kind="stable")
    entered = np.empty(len(chunks))
    entered[by_start] = np.concatenate(([0.0], np.cumsum(lengths[by_start])[:-1]))
    left = np.concatenate(([0.0], np.cumsum(lengths[by_end])))
    before: npt.NDArray[np.float64] = entered - left[np.searchsorted(ended[by_end], started, side="right")]
    return np.maximum(before, 0.0)


def _bytes_inside(timeline: Timeline, chunks: Sequence[ChunkRecord]) -> Levels:
    return timeline.sum([_stay(chunk) for chunk in chunks], [chunk.length for chunk in chunks])


def _stay(chunk: ChunkRecord) -> Span:
    return chunk.started_at, chunk.ended_at


def _seconds(chunk: ChunkRecord) -> float:
    return chunk.ended_at - chunk.started_at
