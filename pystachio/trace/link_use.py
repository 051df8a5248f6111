"""How a link behaved while a plan used it: how much it moved, for whom, and whether it could have moved more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pystachio.io_scheduler.core.request import Link, PriorityClass
from pystachio.io_scheduler.history import ChunkRecord
from pystachio.trace.timeline import Levels, Span, Timeline

_FEWEST_CHUNKS = 8
"""Fewer tell nothing about a device."""
_SLOWEST_CHUNKS = 0.02
"""So many are left out: a device that stalls now and then says nothing about its rate in these moments."""
_FULL = 0.6
"""Of the most bytes that were inside (but for the tenth of chunks that met most): so many are a full device."""
_LEAST_VARIATION = 0.01
"""Of the bytes inside, relative: below it their effect cannot be seen."""


@dataclass(frozen=True, slots=True, eq=False)
class LinkUse:
    """Levels over the plan's time: `waiting` counts the plan's chunks in the queue, the rest are bytes in the device.

    `ahead` are those of plans of a higher class, `beside` those of others of the same or a lower one. `others` are both
    by plan. `rate` is bytes per second while the device had any.

    `saturation` is by how much longer a chunk stays in the full device when more is inside, in proportion, at most:
    1 where all share what the device can deliver, 0 where more would cost nothing. None where nothing ever waited.
    """

    link: Link
    waiting: Levels
    own: Levels
    ahead: Levels
    beside: Levels
    others: dict[tuple[str, PriorityClass], Levels]
    rate: float
    busy_share: float
    saturation: float | None

    @property
    def inside(self) -> Levels:
        return self.own + self.ahead + self.beside

    @property
    def is_held_back(self) -> bool:
        """Transfers waited although the device could have moved more: with twice as much inside at least a third more
        (at 0.5 a chunk would stay 1.4 times as long)."""
        return self.saturation is not None and self.saturation < 0.5


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
    queued = timeline.count((chunk.submitted_at, chunk.started_at) for chunk in chunks) > 0
    return LinkUse(
        link=link,
        waiting=timeline.count((chunk.submitted_at, chunk.started_at) for chunk in own),
        own=_bytes_inside(timeline, own),
        ahead=sum(ahead, timeline.none()),
        beside=sum(beside, timeline.none()),
        others=others,
        rate=float(delivered[inside > 0].mean()) if (inside > 0).any() else 0.0,
        busy_share=timeline.share(inside),
        saturation=_saturation([chunk for chunk in chunks if not chunk.failed]) if queued.any() else None,
    )


def _saturation(chunks: Sequence[ChunkRecord]) -> float | None:
    """The elasticity of a chunk's stay in the device over what is inside, itself included.

    A saturated device serves what is inside one after the other, in effect: twice as much, twice the stay. In one that
    is not, a chunk takes its own time whatever else is inside. The slope of the stay, both in logarithms, tells these
    apart whatever latency and rate are. Over the bytes it is taken from chunks that met a full device: before, latency
    hides behind the queue (and from all where each was alone: there is none). Over the number of chunks it is taken
    from all: a device that serves one at a time takes as long for a short one. The steeper counts.
    """
    inside = _inside_before(chunks, [chunk.length for chunk in chunks])
    seconds = np.maximum(np.asarray([_seconds(chunk) for chunk in chunks]), 1e-9)
    if len(chunks) < _FEWEST_CHUNKS:
        return None
    usual = seconds <= np.quantile(seconds, 1 - _SLOWEST_CHUNKS)
    number = _inside_before(chunks, [1] * len(chunks))
    alone = np.quantile(number, 0.9) <= 1
    full = usual & (alone | (inside >= _FULL * np.quantile(inside, 0.9)))
    slopes = (_upper_slope(inside[full], seconds[full]), _upper_slope(number[usual], seconds[usual]))
    return max((slope for slope in slopes if slope is not None), default=None)


def _upper_slope(amounts: Levels, stays: Levels) -> float | None:
    """At most the slope of log stays over log amounts; None where it cannot be seen.

    That is the estimate and two standard errors: a window must not be called too small because of noise.
    """
    if len(stays) < _FEWEST_CHUNKS:
        return None
    spread, levels = np.log(amounts) - np.log(amounts).mean(), np.log(stays)
    variation = float(spread @ spread)
    if variation < _LEAST_VARIATION**2 * len(stays):
        return None
    slope = float(spread @ levels) / variation
    residual = levels - levels.mean() - slope * spread
    error = np.sqrt(float(residual @ residual) / (len(stays) - 2) / variation)
    return max(0.0, slope + 2 * float(error))


def _inside_before(chunks: Sequence[ChunkRecord], amounts: Sequence[int]) -> Levels:
    """For each chunk, what was inside the device when it had started, by the chunks' amounts."""
    started = np.asarray([chunk.started_at for chunk in chunks])
    ended = np.asarray([chunk.ended_at for chunk in chunks])
    sizes = np.asarray(amounts, dtype=float)
    by_start, by_end = np.argsort(started, kind="stable"), np.argsort(ended, kind="stable")
    entered = np.empty(len(chunks))
    entered[by_start] = np.cumsum(sizes[by_start])
    left = np.concatenate(([0.0], np.cumsum(sizes[by_end])))
    inside: Levels = entered - left[np.searchsorted(ended[by_end], started, side="right")]
    return np.asarray(np.maximum(inside, sizes))


def _bytes_inside(timeline: Timeline, chunks: Sequence[ChunkRecord]) -> Levels:
    return timeline.sum([_stay(chunk) for chunk in chunks], [chunk.length for chunk in chunks])


def _stay(chunk: ChunkRecord) -> Span:
    return chunk.started_at, chunk.ended_at


def _seconds(chunk: ChunkRecord) -> float:
    return chunk.ended_at - chunk.started_at
