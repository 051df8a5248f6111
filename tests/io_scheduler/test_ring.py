"""The last records of a kind: how many, in which order, and out of the collector's sight."""

from __future__ import annotations

import gc
import threading
from collections import deque
from enum import StrEnum
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pystachio.io_scheduler.core.request import CreditPool, Link, PathTaken, PriorityClass
from pystachio.io_scheduler.history import History
from pystachio.io_scheduler.ring import BLOCK_RECORDS, Ring
from pystachio.runtime.tracing import JobRecord, Tracing, WaitReason, WaitRecord


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Record(NamedTuple):
    number: int
    colour: Colour | None
    text: str


def record(number: int) -> Record:
    return Record(number, (Colour.RED, Colour.BLUE, None)[number % 3], str(number))


@given(capacity=st.integers(0, 2000), count=st.integers(0, 3000))
def test_the_last_ones_are_kept_in_order(capacity: int, count: int) -> None:
    ring = Ring(Record._make, capacity, (1,))
    oracle = deque(map(record, range(count)), maxlen=capacity)
    for number in range(count):
        ring.append(record(number))
    kept = list(ring)
    assert kept == list(oracle)[len(oracle) - len(kept) :]
    assert all(type(each) is Record for each in kept)
    assert len(kept) <= capacity
    assert len(kept) >= min(count, capacity - 2 * max(1, capacity // 16))
    assert ring.forgetting is None or ring.forgetting == kept[0]
    assert (ring.forgetting is not None) >= (count > capacity > 0), "what is lost is not kept quiet"


@given(
    late=st.lists(st.floats(0.0, 1.0), max_size=600), capacity=st.sampled_from([16, 100, 5000]), since=st.floats(0, 70)
)
def test_those_since_a_moment(late: list[float], capacity: int, since: float) -> None:
    """Ten records a second; some were late to be recorded."""
    ring = Ring(Record._make, capacity, (1,))
    moments = [number / 10 - seconds for number, seconds in enumerate(late)]
    for number in range(len(late)):
        ring.append(record(number))
    found = list(ring.since(since, lambda each: moments[each.number]))
    assert found == [each for each in ring if moments[each.number] >= since]


def test_threads_lose_nothing() -> None:
    ring = Ring(Record._make, 1 << 20, (1,))

    def append(start: int) -> None:
        for number in range(start, start + 5000):
            ring.append(record(number))

    threads = [threading.Thread(target=append, args=(start,)) for start in (0, 5000, 10_000)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        list(ring)
    assert sorted(ring) == [record(number) for number in range(15_000)]


def tracked_rows(kept: object) -> int:
    """How many of the tuples below an object the collector knows."""
    found, pending = 0, [kept]
    while pending:
        for each in gc.get_referents(pending.pop()):
            if type(each) in (tuple, list, deque, Ring) or isinstance(each, dict):
                found += type(each) is tuple and gc.is_tracked(each)
                pending.append(each)
    return found


@pytest.mark.parametrize("what", ["history", "tracing"])
def test_the_collector_leaves_full_blocks_alone(what: str) -> None:
    """Also what real records hold: links, pools, members of enumerations."""
    history, tracing = History(), Tracing()
    link, pool = Link("disk", "259:0"), CreditPool("host", 1)
    for number in range(3 * BLOCK_RECORDS):
        moment = float(number)
        origin = history.origin(number, f"p{number}", "scan", PriorityClass.BATCH, link, moment)
        history.chunk(origin, 0, 1, moment, moment, PathTaken.DIRECT, False)
        history.transfer(origin, "/a", 1, moment, moment, None, pool, None)
        history.consumed(number, moment)
        tracing.job(JobRecord("p", "scan", "worker-1", None, moment, moment))
        tracing.wait(WaitRecord("p", "scan", WaitReason.IO, "", 0, moment, moment))
    for _ in range(3):  # a block may be looked at before its rows, and they before what is in them
        gc.collect()
    rings = [ring for ring in vars(history if what == "history" else tracing).values() if isinstance(ring, Ring)]
    blocks = [ring._blocks for ring in rings if ring._blocks]
    assert len(blocks) >= 2
    assert sum(map(tracked_rows, blocks)) == 0
