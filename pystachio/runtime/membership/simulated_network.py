"""Connections of simulated nodes in virtual time: latency, cuts in one direction or both, loss, and heartbeats.

As with TCP, what a connection carries waits while its way is cut, and whoever closes it tells the other, if that
arrives. A node's own loop counts the beats it has not heard, as `io_scheduler.network.liveness` does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from random import Random

BEAT_SECONDS = 0.5
DEAD_BEATS = 8
HANDSHAKE_SECONDS = 5.0

Way = tuple[str, str]
"""From one node to another."""


class Agenda:
    """What happens when; at equal times in the order in which it was entered."""

    def __init__(self) -> None:
        self.now = 0.0
        self._entries: list[tuple[float, int, Callable[[], None]]] = []
        self._entered = 0

    def at(self, time: float, happen: Callable[[], None]) -> None:
        self._entered += 1
        heappush(self._entries, (max(time, self.now), self._entered, happen))

    def after(self, seconds: float, happen: Callable[[], None]) -> None:
        self.at(self.now + seconds, happen)

    def run_until(self, time: float) -> None:
        while self._entries and self._entries[0][0] <= time:
            self.now, _, happen = heappop(self._entries)
            happen()
        self.now = time


@dataclass(slots=True, eq=False)
class Connection:
    """Between two starts of two nodes. `silent` counts beats by the end that hears nothing, `open` has the ends that
    have not closed it, `waiting` what is held up by a cut, by its way.
    """

    ends: tuple[str, str]
    open: set[str]
    silent: dict[str, int]
    waiting: dict[Way, list[Callable[[], None]]] = field(default_factory=dict)

    def other(self, end: str) -> str:
        return self.ends[1] if end == self.ends[0] else self.ends[0]


@dataclass(slots=True, kw_only=True)
class Weather:
    """How bad the network is. A message beyond the heartbeats is lost with probability `loss`, which no TCP does, and
    late by up to `jitter_seconds`, so that messages overtake each other.
    """

    latency_seconds: float = 0.001
    jitter_seconds: float = 0.0
    loss: float = 0.0


class SimulatedNetwork:
    """Carries what is sent over connections; `cuts` has the ways on which nothing goes."""

    def __init__(self, agenda: Agenda, chance: Random) -> None:
        self.agenda = agenda
        self.weather = Weather()
        self.cuts: set[Way] = set()
        self._chance = chance
        self._held: list[Connection] = []

    def send(self, connection: Connection, sender: str, deliver: Callable[[], None], *, sheltered: bool) -> None:
        """Have `deliver` called at the other end. Heartbeats and closings are `sheltered` from the weather."""
        weather = self.weather
        if not sheltered and self._chance.random() < weather.loss:
            return
        way = (sender, connection.other(sender))
        if way in self.cuts:
            if not connection.waiting:
                self._held.append(connection)
            connection.waiting.setdefault(way, []).append(deliver)
            return
        delay = weather.latency_seconds + (0.0 if sheltered else self._chance.random() * weather.jitter_seconds)
        self.agenda.after(delay, deliver)

    def heal(self, ways: set[Way]) -> None:
        """What was held up arrives now, late and at once."""
        self.cuts -= ways
        for connection in self._held:
            for way in sorted(connection.waiting.keys() - self.cuts):
                for deliver in connection.waiting.pop(way):
                    self.agenda.after(self.weather.latency_seconds, deliver)
        self._held = [connection for connection in self._held if connection.waiting]

    def reaches(self, one: str, other: str) -> bool:
        """In both directions: a handshake needs them."""
        return (one, other) not in self.cuts and (other, one) not in self.cuts
