"""What became of attempts to connect, in either direction, for the log and for who waits to join."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

from pystachio.endpoint import Endpoint
from pystachio.errors import InvalidRequest, NodeLost, PystachioError
from pystachio.runtime.clock import Clock
from pystachio.runtime.logging import get_logger

REPEAT_SECONDS = 60.0
"""The same refusal at the same place is logged again after so long."""
ARRIVAL_SECONDS = 5.0
"""Whoever knocks again and again fills no log: so long is nothing said after a line, but counted."""
_KEPT = 1024


class FailedContacts:
    """Nodes that this one has tried to connect to, and has not been connected with since."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._errors: dict[Endpoint, PystachioError] = {}
        self._logged: dict[Endpoint, tuple[str, float]] = {}

    @property
    def errors(self) -> Mapping[Endpoint, PystachioError]:
        """By place what the last attempt failed with: InvalidRequest (Unauthorized is one) when the node there refuses
        this one, NodeLost when nobody answers."""
        return self._errors

    def note_failed(self, place: Endpoint, error: PystachioError) -> None:
        self._errors.pop(place, None)
        self._errors[place] = error
        while len(self._errors) > _KEPT:
            oldest = next(iter(self._errors))
            del self._errors[oldest]
            self._logged.pop(oldest, None)
        if isinstance(error, InvalidRequest):
            self._log(place, error)

    def note_connected(self, place: Endpoint) -> None:
        self._errors.pop(place, None)
        self._logged.pop(place, None)

    def _log(self, place: Endpoint, error: PystachioError) -> None:
        now = self._clock.now()
        text, at = self._logged.get(place, ("", 0.0))
        if text != error.message or now - at >= REPEAT_SECONDS:
            self._logged[place] = (error.message, now)
            get_logger().warning("a node refuses to be connected with this one", address=str(place), reason=str(error))


class RefusedArrivals:
    """Those who came and were refused: nodes without the secret or with a name that is taken, clients without a
    token."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._silent_until = -inf
        self._unsaid = 0

    def note(self, address: str, error: PystachioError) -> None:
        if isinstance(error, NodeLost):
            return  # it has gone by itself, as whoever only looks whether somebody listens here
        now = self._clock.now()
        if now < self._silent_until:
            self._unsaid += 1
            return
        self._silent_until = now + ARRIVAL_SECONDS
        unsaid, self._unsaid = self._unsaid, 0
        get_logger().warning("a connection was refused", address=address, reason=error.message, others_before=unsaid)
