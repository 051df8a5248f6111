"""Refusals in the log: each once, and not as often as somebody knocks."""

from __future__ import annotations

import logging

import pytest

from pystachio.endpoint import Endpoint
from pystachio.errors import NodeLost, Unauthorized
from pystachio.server.refused_contacts import FailedContacts, RefusedArrivals

PLACE = Endpoint("::1", 7100)


class HandClock:
    def __init__(self) -> None:
        self.time = 1.0

    def now(self) -> float:
        return self.time


def test_a_refusal_is_logged_again_when_it_is_another_one_or_after_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    clock = HandClock()
    failed = FailedContacts(clock)
    with caplog.at_level(logging.WARNING, logger="pystachio"):
        failed.note_failed(PLACE, NodeLost("nobody answers"))
        assert not caplog.records
        for _ in range(50):
            clock.time += 1.0
            failed.note_failed(PLACE, Unauthorized("another secret"))
        assert len(caplog.records) == 1
        assert getattr(caplog.records[0], "address") == "[::1]:7100"  # noqa: B009 - logging's records have any names
        clock.time += 60.0
        failed.note_failed(PLACE, Unauthorized("another secret"))
        failed.note_failed(PLACE, Unauthorized("another reason"))
        assert len(caplog.records) == 3
    assert isinstance(failed.errors[PLACE], Unauthorized)
    failed.note_connected(PLACE)
    assert not failed.errors


def test_failures_at_many_places_are_not_all_kept() -> None:
    failed = FailedContacts(HandClock())
    for port in range(5000):
        failed.note_failed(Endpoint("host", port), NodeLost("nobody answers"))
    assert len(failed.errors) <= 1024
    assert Endpoint("host", 4999) in failed.errors


def test_whoever_knocks_again_and_again_fills_no_log(caplog: pytest.LogCaptureFixture) -> None:
    clock = HandClock()
    arrivals = RefusedArrivals(clock)
    with caplog.at_level(logging.WARNING, logger="pystachio"):
        for _ in range(1100):
            clock.time += 1 / 128
            arrivals.note("1.2.3.4:5", Unauthorized("another secret"))
        arrivals.note("1.2.3.4:5", NodeLost("a node closed the connection"))
    assert len(caplog.records) == 2
    assert [getattr(record, "others_before") for record in caplog.records] == [0, 639]  # noqa: B009
