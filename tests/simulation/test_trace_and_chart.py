"""The files that a simulation leaves: a trace for Perfetto, a picture."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import pytest

from pystachio.errors import Unsupported
from pystachio.io_scheduler.core.policy import POLICIES
from pystachio.io_scheduler.simulation import chart, load_scenario
from pystachio.io_scheduler.simulation.comparison import Comparison, compare
from pystachio.io_scheduler.simulation.trace import Trace

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:matplotlib.*")


@pytest.fixture(scope="module")
def collected() -> tuple[Trace, list[Comparison]]:
    scenario = replace(load_scenario("storage_bound"), seconds=0.5, warm_up_seconds=0.0)
    trace = Trace()
    return trace, compare(scenario, [POLICIES["pystachio"], POLICIES["fifo"]], trace=trace)


def written(trace: Trace, comparison: Comparison) -> list[dict[str, Any]]:
    sink = io.BytesIO()
    trace.write(sink, comparison.outcome.links)
    events = json.loads(sink.getvalue())["traceEvents"]
    assert isinstance(events, list)
    return events


def test_the_trace_shows_every_chunk_on_its_link(collected: tuple[Trace, list[Comparison]]) -> None:
    trace, comparisons = collected
    events = written(trace, comparisons[0])
    chunks = [event for event in events if event["ph"] == "X" and event["pid"] > 0]
    # Chunks whose bytes had not begun to pass when the time was over are not in it.
    assert comparisons[0].outcome.chunks - 40 <= len(chunks) <= comparisons[0].outcome.chunks
    assert {event["cat"] for event in chunks} == {"batch", "interactive"}
    names = {event["args"]["name"] for event in events if event["ph"] == "M"}
    assert {"plans", "node 0", "node 3", "disk 0 read"} <= names


def test_chunks_of_one_link_do_not_overlap(collected: tuple[Trace, list[Comparison]]) -> None:
    trace, comparisons = collected
    lanes: dict[tuple[int, int], float] = {}
    for event in written(trace, comparisons[0]):
        if event["ph"] == "X":
            lane = (event["pid"], event["tid"])
            assert event["ts"] >= lanes.get(lane, 0.0), "viewers drop what overlaps"
            lanes[lane] = round(event["ts"] + event["dur"], 3)


def test_plans_have_lanes_too(collected: tuple[Trace, list[Comparison]]) -> None:
    trace, comparisons = collected
    plans = [event for event in written(trace, comparisons[0]) if event["ph"] == "X" and event["pid"] == 0]
    assert len(plans) == sum(each.plans_done for each in comparisons[0].outcome.classes)
    assert all(event["args"] == {"class": "interactive", "ended": "done"} for event in plans)


def test_counters_are_percentages(collected: tuple[Trace, list[Comparison]]) -> None:
    trace, comparisons = collected
    counters = [event["args"]["busy"] for event in written(trace, comparisons[0]) if event["ph"] == "C"]
    assert counters
    assert all(0.0 <= value <= 100.0 for value in counters)


def test_a_full_trace_says_how_much_it_left_out() -> None:
    trace = Trace(capacity=100)
    scenario = replace(load_scenario("storage_bound"), seconds=0.1, warm_up_seconds=0.0)
    (comparison,) = compare(scenario, [POLICIES["pystachio"]], trace=trace)
    assert trace.dropped > 500
    assert sum(event["ph"] == "X" for event in written(trace, comparison)) <= 200


@pytest.mark.skipif(find_spec("matplotlib") is None, reason="matplotlib is not installed")
@pytest.mark.parametrize("name", ["storage_bound", "slow_disk", "all_to_all", "inheritance"])
def test_the_chart_is_a_picture(name: str) -> None:
    scenario = load_scenario(name)
    if scenario.seconds is not None:
        scenario = replace(scenario, seconds=0.8, warm_up_seconds=0.0)
    else:
        scenario = replace(scenario, hardware=replace(scenario.hardware, nodes=4))
    sink = io.BytesIO()
    chart.draw(scenario.title, compare(scenario, [POLICIES["pystachio"], POLICIES["fifo"]]), sink)
    assert sink.getvalue().startswith(b"\x89PNG")
    assert len(sink.getvalue()) > 20_000


def test_without_matplotlib_there_is_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chart, "find_spec", lambda name: None)
    with pytest.raises(Unsupported, match="matplotlib") as caught:
        chart.draw("title", [], io.BytesIO())
    assert caught.value.hint == "pip install matplotlib"
