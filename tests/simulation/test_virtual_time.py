"""What is due next happens next, and the hash says whether two runs were the same."""

from __future__ import annotations

import pytest

from pystachio.io_scheduler.simulation.virtual_time import Kind, VirtualTime


def nothing() -> None:
    pass


def test_events_happen_in_the_order_of_their_time_and_then_of_their_making() -> None:
    time = VirtualTime()
    seen: list[tuple[str, float]] = []
    for when, name in ((2.0, "late"), (1.0, "first"), (1.0, "second"), (0.5, "early")):
        time.at(when, Kind.DEVICE, 0, lambda name: seen.append((name, time.now)), name)
    time.run(10.0, nothing)
    assert seen == [("early", 0.5), ("first", 1.0), ("second", 1.0), ("late", 2.0)]
    assert time.now == 10.0
    assert time.events == 4
    assert time.is_over


def test_what_is_due_after_the_end_waits() -> None:
    time = VirtualTime()
    seen: list[int] = []
    time.at(1.0, Kind.DEVICE, 0, seen.append, 1)
    time.at(3.0, Kind.DEVICE, 0, seen.append, 3)
    time.run(2.0, nothing)
    assert (seen, time.now, time.is_over) == ([1], 2.0, False)
    time.run(4.0, nothing)
    assert seen == [1, 3]


def test_whoever_stops_it_stops_it_at_once() -> None:
    time = VirtualTime()
    seen: list[int] = []

    def stop(_: None) -> None:
        time.stopped = True

    time.at(1.0, Kind.DEVICE, 0, stop, None)
    time.at(2.0, Kind.DEVICE, 0, seen.append, 2)
    time.run(5.0, nothing)
    assert (seen, time.now) == ([], 1.0)


def test_only_background_is_no_work() -> None:
    time = VirtualTime()
    idle: list[float] = []
    for kind, when in ((Kind.WAKE, 1.0), (Kind.DEVICE, 2.0), (Kind.CENTRE, 3.0), (Kind.FAULT, 4.0)):
        time.at(when, kind, 0, lambda _: None, None)
    time.run(9.0, lambda: idle.append(time.now))
    assert idle == [2.0, 3.0, 4.0]


def hash_of(*events: tuple[float, Kind, int]) -> str:
    time = VirtualTime()
    for when, kind, subject in events:
        time.at(when, kind, subject, lambda _: None, None)
    time.run(100.0, nothing)
    return time.digest()


def test_the_hash_tells_runs_apart() -> None:
    events = ((1.0, Kind.DEVICE, 1), (2.0, Kind.WIRE, 2))
    assert hash_of(*events) == hash_of(*events)
    assert len({hash_of(*events), hash_of(*events[:1]), hash_of(*events, (3.0, Kind.WAKE, 0))}) == 3


@pytest.mark.parametrize(
    "other",
    [((1.5, Kind.DEVICE, 1),), ((1.0, Kind.WIRE, 1),), ((1.0, Kind.DEVICE, 2),)],
    ids=["time", "kind", "subject"],
)
def test_the_hash_is_of_time_kind_and_subject(other: tuple[tuple[float, Kind, int], ...]) -> None:
    assert hash_of((1.0, Kind.DEVICE, 1)) != hash_of(*other)


def test_the_hash_does_not_depend_on_when_somebody_looks() -> None:
    time, watched = VirtualTime(), VirtualTime()
    for each in (time, watched):
        for number in range(10_000):
            each.at(float(number), Kind.DEVICE, number, lambda _: None, None)
    time.run(20_000.0, nothing)
    for until in range(0, 20_001, 777):
        watched.run(float(until), nothing)
        watched.digest()
    watched.run(20_000.0, nothing)
    assert time.digest() == watched.digest()
