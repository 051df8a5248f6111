"""Whose turn it is on a link.

Between lanes: first one that is behind its reservation, then strictly by urgency. Inside the interactive lane by
deadline; inside the others start-time fair queueing (Goyal, Vin, Cheng: "Start-time Fair Queueing", SIGCOMM 1996), in
bytes. A plan that was idle starts at the present virtual time: credit for idling would let it flood the link when it
returns.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, heapreplace

from pystachio.io_scheduler.core.flow import Flow, Line
from pystachio.io_scheduler.core.policy import (
    AGEING_SECONDS,
    ASSUMED_RATE,
    INTERACTIVE,
    LATEST_DUE_SECONDS,
    MOST_EARLY_SECONDS,
    MOST_LATE_SECONDS,
    RESERVATION_SECONDS,
    LaneIndex,
    Policy,
)
from pystachio.io_scheduler.core.resources import is_aged
from pystachio.io_scheduler.core.window import Window


@dataclass(slots=True, eq=False)
class Lane:
    """The backlogged flows, earliest first.

    `served_at` is when it was last served or began to wait; `ticket` tells the same by the order of events. It is level
    with its reservation when the link has served `level_at` bytes, and falls behind with each byte more.
    """

    index: int
    reservation: float
    virtual_time: float = 0.0
    flows: list[tuple[float, int, Flow]] = field(default_factory=list)
    served_at: float = 0.0
    ticket: int = 0
    level_at: float = 0.0


class Lanes:
    """The lanes of one link; `backlogged` flows wait for it, rather than for something else."""

    __slots__ = ("_is_fair", "_sequence", "_total", "_urgent_bytes", "_window", "all", "backlogged")

    def __init__(self, policy: Policy, window: Window, urgent_bytes: int) -> None:
        self.all = tuple(Lane(int(index), policy.reservations[index]) for index in LaneIndex)
        self.backlogged = 0
        self._is_fair = policy.fair
        self._window = window
        self._urgent_bytes = urgent_bytes
        self._sequence = 0
        self._total = 0

    def next(self, outstanding: int, now: float) -> Lane:
        """The first lane with work, unless one behind it is overdue; there must be one."""
        first: Lane | None = None
        window = self._window
        for lane in self.all:
            if lane.flows:
                if first is None:
                    first = lane
                elif lane.reservation and (
                    lane.reservation * (self._total - lane.level_at) >= window.chunk_bytes
                    or now - lane.served_at > AGEING_SECONDS
                ):
                    if first.index == INTERACTIVE and self._urgent_bytes:
                        # What is overdue waits for room; beyond the window is some for urgent transfers only.
                        return lane if window.has_room(outstanding, window.chunk_bytes, 0) else first
                    return lane
        assert first is not None
        return first

    def first(self) -> Lane | None:
        """The most urgent lane with work."""
        for lane in self.all:
            while lane.flows:
                flow = lane.flows[0][2]
                if flow.next_line() is not None:
                    return lane
                self.leave_first(lane, flow)
        return None

    def enter(self, flow: Flow, now: float) -> None:
        lane = flow.lane
        flow.backlogged = True
        self.backlogged += 1
        self._sequence += 1
        heappush(lane.flows, (self._starts_at(lane, flow, now), self._sequence, flow))

    def begin(self, lane: Lane, now: float) -> None:
        """Something waits in the lane again. It has no credit for the time without work."""
        if lane.served_at < now:
            lane.served_at = now
            self._settle(lane, min(self._balance(lane), 0.0))

    def note_passing(self, index: int, length: int, now: float) -> None:
        """A chunk of another link, from a line in the lane, has been let through."""
        self._pay(self.all[index], length, now)

    def leave_first(self, lane: Lane, flow: Flow) -> None:
        """The flow is the first of its lane."""
        heappop(lane.flows)
        flow.backlogged = False
        self.backlogged -= 1

    def leave(self, flows: Collection[Flow]) -> None:
        for lane in self.all:
            if any(entry[2] in flows for entry in lane.flows):
                lane.flows = [entry for entry in lane.flows if entry[2] not in flows]
                heapify(lane.flows)
        for flow in flows:
            if flow.backlogged:
                flow.backlogged = False
                self.backlogged -= 1

    def charge(self, lane: Lane, flow: Flow, length: int, now: float) -> None:
        """The first flow of the lane has been served; it stays if something waits in it."""
        self._pay(lane, length, now)
        flow.taken += length
        if self._is_fair and lane.index != INTERACTIVE:
            lane.virtual_time = flow.start
            flow.start += length / flow.plan.weight
        if flow.next_line() is None:
            self.leave_first(lane, flow)
            return
        self._sequence += 1
        heapreplace(lane.flows, (self._starts_at(lane, flow, now), self._sequence, flow))

    def reweigh(self, flow: Flow, before: float, now: float) -> None:
        """The weight of the flow's plan was another one `before`.

        The bytes by which the flow is ahead of its share stay the same: it has one chunk to wait for at most, not the
        many that a chunk counts for at a small weight.
        """
        lane = flow.lane
        if not self._is_fair or lane.index == INTERACTIVE:
            return
        ahead = flow.start - lane.virtual_time
        if ahead > 0.0:
            flow.start = lane.virtual_time + ahead * (before / flow.plan.weight)
            if flow.backlogged:
                self.leave((flow,))
                self.enter(flow, now)

    def reorder(self, flow: Flow, now: float) -> None:
        """Where order is by arrival: an earlier transfer may have come back to the flow."""
        lane, before = flow.lane, flow.start
        if not self._is_fair and self._starts_at(lane, flow, now) < before:
            lane.flows = [(each.start, sequence, each) for _, sequence, each in lane.flows]
            heapify(lane.flows)

    def somebody_aged(self, now: float) -> bool:
        return any(lane.flows and lane.reservation and now - lane.served_at > AGEING_SECONDS for lane in self.all)

    def _starts_at(self, lane: Lane, flow: Flow, now: float) -> float:
        if not self._is_fair:
            line = flow.next_line()
            if line is not None:
                flow.start = float(line.waiting[0][1])
        elif lane.index == INTERACTIVE:
            plan = flow.plan
            due = plan.due(flow.taken / (self._window.rate or ASSUMED_RATE))
            if due < now:
                due = max(due, now - MOST_LATE_SECONDS)
            else:
                due = min(due, now + (LATEST_DUE_SECONDS if plan.deadline is None else MOST_EARLY_SECONDS))
            flow.start = due
        elif flow.start < lane.virtual_time:
            flow.start = lane.virtual_time
        return flow.start

    def overtakes(self, line: Line, now: float) -> bool:
        """Whether a line of another link, parked here, goes before more urgent ones."""
        lane = self.all[line.lane]
        return is_aged(line, now) or (lane.reservation > 0.0 and self.is_overdue(lane, now))

    def is_overdue(self, lane: Lane, now: float) -> bool:
        behind = lane.reservation * (self._total - lane.level_at)
        return behind >= self._window.chunk_bytes or now - lane.served_at > AGEING_SECONDS

    def _balance(self, lane: Lane) -> float:
        """Bytes that the lane is behind its reservation of what the link has served since.

        What it was served beyond its reservation in a certain time counts, and no more; nor do more than two chunks.
        """
        balance = lane.reservation * (self._total - lane.level_at)
        if balance > 0.0:
            most = 2.0 * self._window.chunk_bytes
            return balance if balance < most else most
        least = -lane.reservation * RESERVATION_SECONDS * (self._window.rate or ASSUMED_RATE)
        return balance if balance > least else least

    def _settle(self, lane: Lane, balance: float) -> None:
        if lane.reservation:
            lane.level_at = self._total - balance / lane.reservation

    def _pay(self, lane: Lane, length: int, now: float) -> None:
        """The lane has been served."""
        self._total += length
        lane.served_at = now
        if lane.reservation:
            self._settle(lane, self._balance(lane) - length)
