"""Silence is counted in one's own beats."""

from __future__ import annotations

from pystachio.io_scheduler.network.liveness import Health, Liveness


def liveness() -> Liveness:
    return Liveness(beat_seconds=0.5, suspect_seconds=2.0, dead_seconds=4.0)


def test_a_silent_peer_becomes_suspect_and_then_lost() -> None:
    peer = liveness()
    assert [peer.note_beat() for _ in range(8)] == [Health.ALIVE] * 3 + [Health.SUSPECT] * 4 + [Health.LOST]


def test_any_word_makes_it_alive_again() -> None:
    peer = liveness()
    for _ in range(7):
        peer.note_beat()
    peer.note_heard()
    assert peer.health is Health.ALIVE
    assert peer.note_beat() is Health.ALIVE


def test_a_beat_as_long_as_the_patience_still_hears_once() -> None:
    peer = Liveness(beat_seconds=4.0, suspect_seconds=2.0, dead_seconds=4.0)
    assert peer.note_beat() is not Health.LOST
    assert peer.note_beat() is Health.LOST
