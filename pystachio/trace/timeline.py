"""How many of something there were at each of many instants: what a verdict counts with.

A plan's time is cut into equal slices and looked at in the middle of each. That costs the same however many records
there are of it, and every share of the plan's time is known to a slice.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

Levels = npt.NDArray[np.float64]
"""A number for each instant."""

Span = tuple[float, float]

INSTANTS = 4096


class Timeline:
    """The instants between two times."""

    def __init__(self, started: float, ended: float, instants: int = INSTANTS) -> None:
        self.slice_seconds = (ended - started) / instants
        middles = np.arange(instants, dtype=np.float64) + 0.5
        self.instants: Levels = np.asarray(started + self.slice_seconds * middles, dtype=np.float64)

    def none(self) -> Levels:
        return np.zeros(len(self.instants))

    def count(self, spans: Iterable[Span]) -> Levels:
        """How many of the spans cover each instant."""
        listed = list(spans)
        return self.sum(listed, [1.0] * len(listed))

    def sum(self, spans: Sequence[Span], weights: Sequence[float]) -> Levels:
        """The weights of the spans that cover each instant, added up."""
        if not spans:
            return self.none()
        edges = np.asarray(spans, dtype=float)
        amounts = np.asarray(weights, dtype=float)
        return self._reached(edges[:, 0], amounts) - self._reached(edges[:, 1], amounts)

    def latest_end(self, spans: Sequence[Span]) -> Levels:
        """When the last of the spans that have begun ends; the instant itself where all of them are over."""
        if not spans:
            return self.instants.copy()
        edges = np.asarray(sorted(spans), dtype=float)
        latest = np.maximum.accumulate(edges[:, 1])
        begun = np.searchsorted(edges[:, 0], self.instants, side="right")
        ends = np.where(begun > 0, latest[begun - 1], -np.inf)
        return np.maximum(ends, self.instants)

    def share(self, levels: Levels) -> float:
        """The part of the time for which a level was above zero."""
        return float(np.mean(levels > 0))

    def _reached(self, times: Levels, amounts: Levels) -> Levels:
        """The amounts whose time has come, added up, at each instant."""
        order = np.argsort(times, kind="stable")
        totals = np.concatenate(([0.0], np.cumsum(amounts[order])))
        reached: Levels = totals[np.searchsorted(times[order], self.instants, side="right")]
        return reached
