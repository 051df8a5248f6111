"""Levels at instants, against counting by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pystachio.trace.timeline import Span, Timeline

SPANS = st.lists(st.tuples(st.floats(-5, 15), st.floats(0, 10)).map(lambda pair: (pair[0], pair[0] + pair[1])))


@given(spans=SPANS)
def test_counts_and_sums_equal_counting_by_hand(spans: list[Span]) -> None:
    timeline = Timeline(0, 10, instants=37)
    weights = [float(index + 1) for index in range(len(spans))]
    counted, summed = timeline.count(spans), timeline.sum(spans, weights)
    latest = timeline.latest_end(spans)
    for position, instant in enumerate(timeline.instants.tolist()):
        covering = [index for index, (started, ended) in enumerate(spans) if started <= instant < ended]
        assert counted[position] == len(covering)
        assert summed[position] == pytest.approx(sum(weights[index] for index in covering))
        assert latest[position] == max([instant, *(ended for started, ended in spans if started <= instant)])


def test_instants_lie_in_the_middle_of_equal_slices() -> None:
    timeline = Timeline(2, 4, instants=4)
    assert timeline.instants.tolist() == [2.25, 2.75, 3.25, 3.75]
    assert timeline.share(timeline.count([(2, 3)])) == 0.5
