"""Virtual time: what is due next happens next, and a running hash says whether two runs were the same."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from enum import IntEnum
from hashlib import blake2b
from heapq import heappop, heappush
from itertools import count
from typing import Any

HASH_BYTES = 8
_HASHED_AT_ONCE = 12_288


class Kind(IntEnum):
    """What happens. Up to BACKGROUND it happens whether or not anybody still has work."""

    WAKE = 0
    CENTRE = 1
    FAULT = 2
    BACKGROUND = 2
    DEVICE = 3
    WIRE = 4
    CONTROL = 5
    CONSUMER = 6
    ARRIVAL = 7


class VirtualTime:
    """A queue of what is due. Equal times are served in the order in which they were asked for."""

    def __init__(self) -> None:
        self.now = 0.0
        self.events = 0
        self.work = 0
        """How many events beyond the background are due; without one, nothing ends by itself."""
        self.interference = 0
        """How many messages of the central service, and faults and their ends, are due."""
        self.stopped = False
        self._due: list[tuple[float, int, int, int, Callable[[Any], None], Any]] = []
        self._sequence = count()
        self._hash = blake2b(digest_size=HASH_BYTES)
        self._unhashed = array("d")

    def at(self, when: float, kind: int, subject: int, act: Callable[[Any], None], argument: Any) -> None:
        """Call `act(argument)` at `when`; `kind` and `subject` (who it happens to) go into the hash."""
        if kind > Kind.BACKGROUND:
            self.work += 1
        elif kind != Kind.WAKE:
            self.interference += 1
        heappush(self._due, (when, next(self._sequence), kind, subject, act, argument))

    def run(self, until: float, when_nothing_works: Callable[[], None]) -> None:
        """Go on until `until`, until somebody sets `stopped`, or until nothing is due any more.

        `when_nothing_works` is called after each event that leaves only background events, or none.
        """
        due, unhashed, background = self._due, self._unhashed, int(Kind.BACKGROUND)
        while due and not self.stopped:
            if due[0][0] > until:
                break
            now, _, kind, subject, act, argument = heappop(due)
            self.now = now
            self.events += 1
            unhashed.extend((now, kind, subject))
            if kind > background:
                self.work -= 1
            elif kind:
                self.interference -= 1
            act(argument)
            if not self.work:
                when_nothing_works()
            if len(unhashed) > _HASHED_AT_ONCE:
                self._flush()
        if not self.stopped and until > self.now and until != float("inf"):
            self.now = until

    @property
    def is_over(self) -> bool:
        """Nothing is due any more."""
        return not self._due

    def digest(self) -> str:
        """The hash of all that has happened so far."""
        self._flush()
        return self._hash.hexdigest()

    def _flush(self) -> None:
        self._hash.update(self._unhashed)
        del self._unhashed[:]
