"""Lanes hold every item, and none of a lane overlap; overlaps equal those found by looking at each item."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from pystachio.trace.lanes import Overlaps, Span, lanes

SPANS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 6)).map(lambda pair: (pair[0], pair[0] + pair[1])))


def itself(span: Span) -> Span:
    return span


@given(spans=SPANS)
def test_lanes_are_apart_and_as_few_as_possible(spans: list[Span]) -> None:
    found = lanes(spans, itself)
    assert sorted(span for lane in found for span in lane) == sorted(spans)
    for lane in found:
        assert all(before[1] <= after[0] for before, after in pairwise(lane))
    most = max((sum(a <= at < b for a, b in spans) for at, _ in spans), default=0)
    empty = any(a == b for a, b in spans)
    assert len(found) == most or (empty and len(found) <= most + 1)


@given(spans=SPANS, windows=st.lists(st.tuples(st.integers(0, 30), st.integers(1, 6)).map(lambda p: (p[0], sum(p)))))
def test_overlaps(spans: list[Span], windows: list[Span]) -> None:
    items = Overlaps(spans, itself)

    def overlap(span: Span, window: Span) -> bool:
        return span[0] < window[1] and span[1] > window[0]

    for window in windows:
        assert items.with_span(*window) == sorted(span for span in spans if overlap(span, window))
    longer = [span for span in sorted(spans) if span[1] > span[0]]
    found = [span for span in items.with_any(windows) if span[1] > span[0]]
    assert found == [span for span in longer if any(overlap(span, window) for window in windows)]
