"""What a chunk needs besides room on its own link: memory credit, a turn with its peer, room on a shared link.

A flow whose next chunk lacks one of them is parked there and does not stand in anybody's way; it returns to its queue
when there is room again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Protocol

from pystachio.io_scheduler.request import PriorityClass

AGEING_SECONDS = 5.0
"""Whoever has waited for so long is served before more urgent ones that came later."""

CREDIT_EIGHTHS = (8, 7, 6)
"""Of a pool's bytes that a class may use: batch plans whose consumers are slow must not hold all of it."""


class ParkedFlow(Protocol):
    """What a resource needs to know of a flow (`policy.Flow`)."""

    @property
    def urgency(self) -> PriorityClass: ...

    @property
    def needs(self) -> int:
        """Bytes that its next chunk needs of what it is parked on."""
        ...

    @property
    def parked_at(self) -> float: ...


class Resource(Protocol):
    """What flows take some of, and are parked on when there is not enough."""

    @property
    def waiters(self) -> Waiters: ...

    def has_room(self, flow: ParkedFlow, length: int) -> bool: ...


class Waiters:
    """The flows parked on one resource, by class and then by arrival; `patience` seconds are too long a wait."""

    __slots__ = ("_lanes", "_patience", "count", "reserved_for")

    def __init__(self, patience: float = AGEING_SECONDS) -> None:
        self._patience = patience
        self._lanes: tuple[deque[ParkedFlow], ...] = tuple(deque() for _ in PriorityClass)
        self.count = 0
        self.reserved_for: ParkedFlow | None = None
        """A flow that has waited so long that nobody else may take what is released."""

    def __iter__(self) -> Iterator[ParkedFlow]:
        for lane in self._lanes:
            yield from lane

    def add(self, flow: ParkedFlow) -> None:
        self._lanes[flow.urgency].append(flow)
        self.count += 1

    def remove(self, flow: ParkedFlow) -> None:
        for lane in self._lanes:
            if flow in lane:
                lane.remove(flow)
                self.count -= 1
                break
        if self.reserved_for is flow:
            self.reserved_for = None

    def let_pass(self, flow: ParkedFlow) -> bool:
        """Whether the flow may take of what is there: what is too little for a more urgent one is kept for it."""
        if self.reserved_for is not None:
            return self.reserved_for is flow
        return not any(self._lanes[: flow.urgency])

    def first(self, now: float) -> ParkedFlow | None:
        """Whose turn it is: somebody who has waited too long, else the most urgent."""
        found: ParkedFlow | None = None
        for lane in self._lanes:
            if not lane:
                continue
            flow = lane[0]
            if now - flow.parked_at > self._patience:
                self.reserved_for = flow
                return flow
            if found is None:
                found = flow
        return found


class Budget:
    """Bytes of which flows take some and give them back."""

    __slots__ = ("nbytes", "used", "waiters")

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.used = 0
        self.waiters = Waiters()

    def has_room(self, flow: ParkedFlow, length: int) -> bool:
        """A chunk larger than the whole budget fits when nothing else is there."""
        if self.waiters.reserved_for is not None and self.waiters.reserved_for is not flow:
            return False
        return not self.used or self.used + length <= self.nbytes

    def take(self, length: int) -> None:
        self.used += length

    def give(self, length: int) -> None:
        self.used -= length
        assert self.used >= 0, "more was given back than taken"


class PeerBudget(Budget):
    """The bytes under way between this node and one peer."""

    __slots__ = ()


class CreditBudget(Budget):
    """The memory of one stage. `lost` bytes of it are in the hands of devices that do not let go of them.

    Nothing is larger than what is left: such transfers are refused.
    """

    __slots__ = ("lost",)

    def __init__(self, nbytes: int) -> None:
        super().__init__(nbytes)
        self.lost = 0

    @property
    def left(self) -> int:
        """What there is at best."""
        return self.nbytes - self.lost

    def has_room(self, flow: ParkedFlow, length: int) -> bool:
        """A chunk of any class fits where nobody else has any."""
        if self.waiters.reserved_for is not None and self.waiters.reserved_for is not flow:
            return False
        left = self.nbytes - self.lost
        limit = left if self.used == self.lost else left * CREDIT_EIGHTHS[flow.urgency] // 8
        return self.used + length <= self.lost + limit or not self.used
