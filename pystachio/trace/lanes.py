"""Spans in time: put side by side into lanes in which none overlap, and found by what they overlap with."""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")
Span = tuple[float, float]


def lanes(items: Iterable[T], span: Callable[[T], Span]) -> list[list[T]]:
    """The items by their starts, each in the first lane that is free then: as few lanes as possible."""
    found: list[list[T]] = []
    busy: list[tuple[float, int]] = []
    free: list[int] = []
    for item in sorted(items, key=span):
        started, ended = span(item)
        while busy and busy[0][0] <= started:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if free:
            lane = heapq.heappop(free)
        else:
            lane = len(found)
            found.append([])
        found[lane].append(item)
        heapq.heappush(busy, (max(ended, started), lane))
    return found


class Overlaps(Generic[T]):
    """Finds those of many items that overlap with a span."""

    def __init__(self, items: Iterable[T], span: Callable[[T], Span]) -> None:
        self._items = sorted(items, key=span)
        self._span = span
        self._starts = [span(item)[0] for item in self._items]
        self._longest = max((ended - started for started, ended in map(span, self._items)), default=0.0)

    def with_span(self, started: float, ended: float) -> list[T]:
        """By their starts. None started longer before the span than the longest of them lasts."""
        first = bisect_left(self._starts, started - self._longest)
        last = bisect_left(self._starts, ended)
        return [item for item in self._items[first:last] if self._span(item)[1] > started]

    def with_any(self, spans: Sequence[Span]) -> list[T]:
        """By their starts, each once."""
        merged = _merged(spans)
        ends = [ended for _, ended in merged]
        found = []
        for item in self._items:
            started, ended = self._span(item)
            position = bisect_right(ends, started)
            if position < len(merged) and merged[position][0] < ended:
                found.append(item)
        return found


def _merged(spans: Sequence[Span]) -> list[Span]:
    """The same time in spans that are apart."""
    merged: list[Span] = []
    for started, ended in sorted(spans):
        if merged and started <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], ended)
        elif ended > started:
            merged.append((started, ended))
    return merged
